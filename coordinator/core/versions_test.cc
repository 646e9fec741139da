// Executors of different versions with one coordinator, also in one job.
#include "common/wire/versions.h"

#include <chrono>

#include "coordinator/core/testing/elastic_testing.h"
#include "coordinator/core/testing/testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace maypole::coordinator {
namespace {

// This version, and an invented next one.
constexpr VersionRange kOld = {1, 1};
constexpr VersionRange kNext = {1, 2};

Config NextConfig() { return {.frozen_nodes = 0, .versions = kNext}; }

TEST(VersionsTest, WelcomeSaysTheVersionOfTheSession) {
  TestBed bed(NextConfig());
  EXPECT_EQ(bed.Connect("j", "n0", "secret", kNext).version, 2u);
  EXPECT_EQ(bed.Connect("j", "n1", "secret", kOld).version, 1u);
  EXPECT_EQ(bed.Connect("j", "n2", "secret", {1, 3}).version, 2u);
  TestBed older({.frozen_nodes = 0, .versions = kOld});
  EXPECT_EQ(older.Connect("j", "n0", "secret", kNext).version, 1u);
}

TEST(VersionsTest, AnExecutorWithoutAVersionOfTheCoordinatorIsRefused) {
  TestBed bed;
  Executor& e = bed.Connect("j", "n0", "secret", {2, 3});
  ASSERT_TRUE(e.refused);
  EXPECT_THAT(e.refused->message(),
              ::testing::HasSubstr("this coordinator speaks protocol version "
                                   "1, but maypole-worker on node 'n0' speaks "
                                   "protocol versions 2 to 3; upgrade this "
                                   "coordinator"));
}

TEST(VersionsTest, AResumedSessionKeepsItsVersion) {
  TestBed bed(NextConfig());
  Executor& e = bed.Connect("j", "n0", "secret", kOld);
  bed.Break(e);
  e.version = 0;
  bed.Resume(e);
  EXPECT_EQ(e.version, 1u);
}

TEST(VersionsTest, EpochStartSaysEachNodesVersion) {
  TestBed bed(NextConfig());
  Executor& old = bed.Connect("j", "n0", "secret", kOld);
  Executor& next = bed.Connect("j", "n1", "secret", kNext);
  bed.Ready(old, 2, {0});
  bed.Ready(next, 2, {1});
  ASSERT_TRUE(next.Last().has_epoch_start());
  const proto::EpochStart& start = next.Last().epoch_start();
  EXPECT_EQ(start.nodes(0).protocol_version(), 1u);
  EXPECT_EQ(start.nodes(1).protocol_version(), 2u);
}

// Only a coordinator that speaks more versions than both can have such nodes.
TEST(VersionsTest, NodesWithoutACommonVersionAreNamed) {
  TestBed bed(NextConfig());
  Executor& old = bed.Connect("j", "n0", "secret", kOld);
  Executor& late = bed.Connect("j", "n1", "secret", {2, 3});
  ASSERT_FALSE(old.refused || late.refused);
  bed.Ready(old, 2, {0});
  bed.Ready(late, 2, {1});
  for (Executor* e : {&old, &late}) {
    ASSERT_EQ(e->ends.size(), 1u);
    EXPECT_EQ(e->ends[0].message(),
              "the job cannot start: maypole-worker on node n0 (host host-n0) "
              "speaks protocol version 1, but maypole-worker on node n1 (host "
              "host-n1) speaks protocol versions 2 to 3; upgrade "
              "maypole-worker on node n0 (host host-n0)");
  }
}

TEST(VersionsTest, AnElasticJobRefusesTheNodeThatComesLater) {
  TestBed bed(NextConfig());
  ElasticNode old{&bed.Connect("j", "n0", "secret", kOld)};
  ElasticNode late{&bed.Connect("j", "n1", "secret", {2, 3})};
  old.waiting = {{.client = 1}};
  late.waiting = {{.client = 2}};
  bed.From(*old.executor, old.Ready(1, 2));
  bed.From(*late.executor, late.Ready(1, 2));
  EXPECT_TRUE(old.executor->ends.empty());
  ASSERT_EQ(late.executor->ends.size(), 1u);
  EXPECT_THAT(late.executor->ends[0].message(),
              ::testing::StartsWith(
                  "the job cannot take the ranks of node n1 (host host-n1): "
                  "maypole-worker on node n0 (host host-n0) speaks protocol "
                  "version 1, but"));
  bed.Pass(std::chrono::seconds(2));
  EXPECT_TRUE(old.executor->Last().has_epoch_start());
}

}  // namespace
}  // namespace maypole::coordinator
