#include "client/bootstrap/bootstrap_messages.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace maypole {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(BootstrapMessagesTest, PlacesComeBack) {
  const RankMessage in = {.job = "slurm.1.0.0",
                          .node = "n3",
                          .rank = 5,
                          .size = 7,
                          .local_rank = 1,
                          .local_size = 2,
                          .start_timeout_seconds = 30,
                          .exchange = ExchangeKind::kDerived,
                          .why_none = "no way",
                          .head = "n1",
                          .at_head = true};
  RankMessage out;
  ASSERT_TRUE(Decode(Encode(in), &out).ok());
  EXPECT_EQ(out.job, "slurm.1.0.0");
  EXPECT_EQ(out.node, "n3");
  EXPECT_EQ(out.rank, 5);
  EXPECT_EQ(out.size, 7);
  EXPECT_EQ(out.local_rank, 1);
  EXPECT_EQ(out.local_size, 2);
  EXPECT_EQ(out.start_timeout_seconds, 30);
  EXPECT_EQ(out.exchange, ExchangeKind::kDerived);
  EXPECT_EQ(out.why_none, "no way");
  EXPECT_EQ(out.head, "n1");
  EXPECT_TRUE(out.at_head);
}

TEST(BootstrapMessagesTest, OtherVersionsAreNamed) {
  RankMessage p, out;
  p.versions = {17, 18};
  const Status s = Decode(Encode(p), &out);
  EXPECT_EQ(s.code(), Code::kFailedPrecondition);
  EXPECT_EQ(
      s.message(),
      "the maypolerun that it found speaks protocol version 1, but "
      "libmaypole speaks protocol versions 17 to 18; upgrade the "
      "maypolerun that it found, or set MAYPOLE_BIN to the directory of "
      "the right programs");
  p.versions = {0, 0};
  EXPECT_THAT(Decode(Encode(p), &out).message(),
              HasSubstr("libmaypole speaks protocol version 0, but"));
}

TEST(BootstrapMessagesTest, VersionsAreTheFirstAndTheLastArgument) {
  RankMessage p, out;
  p.versions = {1, 4};
  p.at_head = true;
  const auto lines = Lines(Encode(p));
  EXPECT_EQ(lines[1], "1");
  EXPECT_EQ(lines.back(), "4");
  ASSERT_TRUE(Decode(Encode(p), &out).ok());
  EXPECT_EQ(out.versions, p.versions);
  EXPECT_TRUE(out.at_head);
}

TEST(BootstrapMessagesTest, DamageIsRefused) {
  for (const VersionRange versions : {kProtocolVersions, VersionRange{1, 2}}) {
    RankMessage out;
    const std::string good =
        Encode(RankMessage{.versions = versions, .job = "a", .node = "b"});
    for (size_t n = 0; n < good.size(); ++n) {
      EXPECT_FALSE(Decode(good.substr(0, n), &out).ok()) << n;
    }
    EXPECT_FALSE(Decode(good + "\nmore", &out).ok());
    EXPECT_FALSE(Decode("", &out).ok());
  }
}

TEST(BootstrapMessagesTest, ALineStaysALine) {
  EXPECT_THAT(Lines(Say("error", {"3", "two\nlines"})),
              ElementsAre("error", "3", "two lines"));
}

TEST(BootstrapMessagesTest, TermsComeBack) {
  BootstrapInfo out;
  ASSERT_TRUE(Decode(Encode(BootstrapInfo{
                         {"10.0.0.1:1", "[fd00::1]:1"}, "s", "a token"}),
                     &out)
                  .ok());
  EXPECT_THAT(out.coordinators, ElementsAre("10.0.0.1:1", "[fd00::1]:1"));
  EXPECT_EQ(out.secret, "s");
  EXPECT_EQ(out.token, "a token");
  ASSERT_TRUE(Decode(Encode(BootstrapInfo{{}, "", "t"}), &out).ok());
  EXPECT_TRUE(out.coordinators.empty());
}

// Only a format number that can be read, and differs, is reported as a version
// mismatch.
TEST(BootstrapMessagesTest, InfosThatCannotBeReadSayWhy) {
  BootstrapInfo out;
  EXPECT_EQ(Decode("maypole-bootstrap-2\n\n\n", &out).message(),
            "rank 0 published the coordinator's address in format 2, but this "
            "node reads format 1: install the same version of Maypole on all "
            "nodes");
  EXPECT_EQ(Decode("maypole-bootstrap-1\n127.0.0.1:1", &out).message(),
            "the coordinator's address that rank 0 published is damaged: it "
            "has 2 lines, not 4");
  for (const char* other : {"", "10.0.0.1:29500", "maypole-bootstrap-",
                            "maypole-bootstrap-1x\n\n\n"}) {
    EXPECT_EQ(Decode(other, &out).message(),
              "what rank 0 published (" +
                  std::to_string(std::string(other).size()) +
                  " bytes) is not the address of a coordinator; does "
                  "another program write to the same place?");
  }
}

}  // namespace
}  // namespace maypole
