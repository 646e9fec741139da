// OpenNccl() and FindLoadedNccl(), on the fake NCCL and on other libraries.
#include "common/gpu/nccl/nccl.h"

#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace maypole::nccl {
namespace {

using testing::EndsWith;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

constexpr char kFake[] = "tests/gpu/fake_nccl/libnccl.so.2";
constexpr char kOther[] = "tests/gpu/fake/libcuda.so.1";

std::string Refusal(const std::string& path) {
  const Nccl* nccl = nullptr;
  const Status s = OpenNccl(path, &nccl);
  EXPECT_EQ(s.code(), Code::kUnavailable);
  EXPECT_THAT(s.message(), Not(HasSubstr("\n")));
  EXPECT_EQ(nccl, nullptr);
  return s.message();
}

// Must be the first test: later ones load it.
TEST(NcclTest, NothingIsLoadedYet) {
  EXPECT_FALSE(FindLoadedNccl().has_value());
  EXPECT_THAT(Refusal("/nowhere/libnccl.so.2"),
              StartsWith("NCCL cannot be loaded: /nowhere/libnccl.so.2: "));
  EXPECT_THAT(Refusal(kOther), EndsWith(" is not NCCL: it has no "
                                        "ncclGetVersion"));
  EXPECT_FALSE(FindLoadedNccl().has_value());
}

TEST(NcclTest, OpensAndFinds) {
  const Nccl* nccl = nullptr;
  const Status s = OpenNccl(kFake, &nccl);
  ASSERT_TRUE(s.ok()) << s.message();
  EXPECT_EQ(nccl->version, 22809);
  EXPECT_THAT(nccl->path, EndsWith(kFake));
  const Nccl* again = nullptr;
  EXPECT_TRUE(OpenNccl(kFake, &again).ok());
  EXPECT_EQ(nccl, again);
  const auto loaded = FindLoadedNccl();
  ASSERT_TRUE(loaded.has_value());
  EXPECT_EQ(loaded->path, nccl->path);
  EXPECT_EQ(loaded->version, 22809);
  // The dynamic linker also finds it by its name.
  EXPECT_TRUE(OpenNccl("", &again).ok());
  EXPECT_EQ(again->ncclAllReduce, nccl->ncclAllReduce);
}

TEST(NcclTest, ErrorsHaveNcclsText) {
  const Nccl* nccl = nullptr;
  ASSERT_TRUE(OpenNccl(kFake, &nccl).ok());
  EXPECT_TRUE(NcclStatus(*nccl, ncclSuccess, "x").ok());
  EXPECT_TRUE(NcclStatus(*nccl, ncclInProgress, "x").ok());
  const Status s = NcclStatus(*nccl, nccl->ncclGroupEnd(), "ncclGroupEnd");
  EXPECT_EQ(s.code(), Code::kFailedPrecondition);
  EXPECT_THAT(s.message(), StartsWith("ncclGroupEnd: invalid usage"));
  EXPECT_THAT(s.message(), EndsWith(": ncclGroupEnd: not in a group call."));
  EXPECT_EQ(NcclStatus(*nccl, ncclRemoteError, "x").code(), Code::kUnavailable);
}

TEST(NcclTest, Versions) {
  EXPECT_EQ(NcclVersion(22809), "2.28.9");
  EXPECT_EQ(NcclVersion(21800), "2.18.0");
  EXPECT_EQ(NcclVersion(2708), "2.7.8");
}

}  // namespace
}  // namespace maypole::nccl
