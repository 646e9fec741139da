#include "tests/bench/cpp/cases.h"

#include <set>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace maypole::bench {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(Resnet50, HasTheModelsTensors) {
  const std::vector<Parameter> all = Resnet50();
  ASSERT_EQ(all.size(), 161u);
  int64_t elements = 0;
  std::set<std::string> names;
  for (const Parameter& p : all) {
    elements += p.elements();
    names.insert(p.name);
  }
  EXPECT_EQ(elements, 25557032);
  EXPECT_EQ(names.size(), 161u);
  EXPECT_EQ(all.front().name, "conv1.weight");
  EXPECT_THAT(all.front().shape, ElementsAre(64, 3, 7, 7));
  EXPECT_EQ(all.back().name, "fc.bias");
  EXPECT_THAT(all.back().shape, ElementsAre(1000));
}

TEST(Resnet50, BlocksOfALayerDiffer) {
  const std::vector<Parameter> all = Resnet50();
  const auto shape = [&](std::string_view name) -> std::vector<int64_t> {
    for (const Parameter& p : all) {
      if (p.name == name) return p.shape;
    }
    return {};
  };
  EXPECT_THAT(shape("layer1.0.conv1.weight"), ElementsAre(64, 64, 1, 1));
  EXPECT_THAT(shape("layer1.1.conv1.weight"), ElementsAre(64, 256, 1, 1));
  EXPECT_THAT(shape("layer4.0.downsample.0.weight"),
              ElementsAre(2048, 1024, 1, 1));
  EXPECT_THAT(shape("layer4.2.conv2.weight"), ElementsAre(512, 512, 3, 3));
  EXPECT_THAT(shape("layer4.1.downsample.0.weight"), ElementsAre());
}

TEST(Bytes, AreReadAndWritten) {
  for (const auto& [text, bytes] : std::vector<std::pair<std::string, int64_t>>{
           {"4", 4},
           {"64KiB", 65536},
           {"1MiB", 1 << 20},
           {"256MiB", 256 << 20},
           {"2GiB", int64_t{2} << 30}}) {
    int64_t got = 0;
    ASSERT_TRUE(ParseBytes(text, &got).ok()) << text;
    EXPECT_EQ(got, bytes);
  }
  for (const char* text :
       {"", "KiB", "-4", "4 KiB", "4kb", "0x10", "1.5MiB", "99999999999GiB"}) {
    int64_t got = 0;
    const Status s = ParseBytes(text, &got);
    EXPECT_EQ(s.code(), Code::kInvalidArgument) << text;
    EXPECT_THAT(s.message(), HasSubstr("'" + std::string(text) + "'"));
  }
  EXPECT_EQ(BytesText(4), "4 B");
  EXPECT_EQ(BytesText(1024), "1 KiB");
  EXPECT_EQ(BytesText(1028), "1028 B");
  EXPECT_EQ(BytesText(256 << 20), "256 MiB");
}

TEST(Cases, ByDefaultFrom4BTo256MiBAndResnet) {
  std::vector<Case> cases;
  ASSERT_TRUE(MakeCases({}, &cases).ok());
  ASSERT_EQ(cases.size(), 15u);
  int64_t bytes = 4;
  for (int i = 0; i < 14; ++i, bytes *= 4) EXPECT_EQ(cases[i].bytes(), bytes);
  EXPECT_EQ(cases[13].label, "256 MiB");
  EXPECT_EQ(cases[14].bytes(), 25557032 * 4);
  EXPECT_EQ(cases[14].tensors.size(), 161u);
}

TEST(Cases, RoundsFollowFromTheSize) {
  std::vector<Case> cases;
  ASSERT_TRUE(MakeCases({.sizes = "4,16MiB,256MiB"}, &cases).ok());
  EXPECT_EQ(cases[0].rounds, 200);
  EXPECT_EQ(cases[0].warmup, 20);
  EXPECT_EQ(cases[1].rounds, 64);
  EXPECT_EQ(cases[2].rounds, 5);
  EXPECT_EQ(cases[2].warmup, 2);
  EXPECT_EQ(cases[3].rounds, 10);
  ASSERT_TRUE(MakeCases({.sizes = "4", .rounds = 7}, &cases).ok());
  EXPECT_EQ(cases[0].rounds, 7);
}

TEST(Cases, MaxBytesLeavesOutTheLarger) {
  std::vector<Case> cases;
  ASSERT_TRUE(
      MakeCases({.sizes = "4,1KiB,2KiB", .max_bytes = "1KiB"}, &cases).ok());
  ASSERT_EQ(cases.size(), 2u);
  EXPECT_EQ(cases[1].label, "1 KiB");
}

TEST(Cases, WrongFlagsAreNamed) {
  std::vector<Case> cases;
  const auto error = [&](const CaseOptions& options) {
    const Status s = MakeCases(options, &cases);
    EXPECT_EQ(s.code(), Code::kInvalidArgument);
    return s.message();
  };
  EXPECT_THAT(error({.sizes = "4,6"}), HasSubstr("'6': a size must be"));
  EXPECT_THAT(error({.sizes = "0"}), HasSubstr("'0': a size must be"));
  EXPECT_THAT(error({.sizes = "4,x"}), HasSubstr("'x' is not a number"));
  EXPECT_THAT(error({.sizes = "4,"}), HasSubstr("'' is not a number"));
  EXPECT_THAT(error({.sizes = "1KiB,1024"}), HasSubstr("given twice"));
  EXPECT_THAT(error({.max_bytes = "much"}), HasSubstr("'much'"));
  EXPECT_THAT(error({.rounds = -1}), HasSubstr("-1 rounds"));
  EXPECT_THAT(error({.sizes = "", .resnet = false}), HasSubstr("no size"));
}

}  // namespace
}  // namespace maypole::bench
