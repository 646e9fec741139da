// Executors of different versions with one coordinator, also in one job.
#include "common/wire/versions.h"

#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "coordinator/core/limits.h"
#include "coordinator/core/testing/elastic_testing.h"
#include "coordinator/core/testing/testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace maypole::coordinator {
namespace {

using ::testing::ElementsAre;

constexpr VersionRange kOld = {10, 10};

class VersionsTest : public ::testing::Test {
 protected:
  static constexpr uint32_t kEach = 32;

  static std::vector<uint32_t> Ranks(uint32_t first) {
    std::vector<uint32_t> ranks(kEach);
    std::iota(ranks.begin(), ranks.end(), first);
    return ranks;
  }
  void Start(TestBed* bed, Executor& old, Executor& current) {
    bed->Ready(old, 2 * kEach, Ranks(0));
    bed->Ready(current, 2 * kEach, Ranks(kEach));
    ASSERT_TRUE(old.Last().has_epoch_start());
  }
  // The numbers of ranks that the messages tell of.
  static std::vector<int> Told(const Executor& e, size_t from = 0) {
    std::vector<int> out;
    for (size_t i = from; i < e.inbox.size(); ++i) {
      if (!e.inbox[i].has_rank_left()) continue;
      out.push_back(1 + e.inbox[i].rank_left().others_size());
    }
    return out;
  }
  static std::vector<uint32_t> RanksTold(const Executor& e) {
    std::vector<uint32_t> out;
    for (const auto& m : e.inbox) {
      if (!m.has_rank_left()) continue;
      out.push_back(m.rank_left().rank());
      const auto& others = m.rank_left().others();
      out.insert(out.end(), others.begin(), others.end());
    }
    return out;
  }
};

TEST_F(VersionsTest, WelcomeSaysTheVersionOfTheSession) {
  TestBed bed;
  EXPECT_EQ(bed.Connect("j", "n0").version, kProtocolVersion);
  EXPECT_EQ(bed.Connect("j", "n1", "secret", kOld).version, 10u);
  EXPECT_EQ(bed.Connect("j", "n2", "secret", {9, kProtocolVersion + 1}).version,
            kProtocolVersion);
  EXPECT_EQ(bed.Connect("j", "n3", "secret", {11, 0}).version, 11u);
  TestBed older({.frozen_nodes = 0, .versions = kOld});
  EXPECT_EQ(older.Connect("j", "n0").version, 10u);
}

// An older executor could not parse the message that ends its epoch.
TEST_F(VersionsTest, TextsAreUtf8ForOlderExecutors) {
  TestBed bed;
  Executor& a = bed.Connect("j", "n0");
  Executor& b = bed.Connect("j", "n1", "secret", {10, kTextsOfBytes - 1});
  bed.Ready(a, 2, {0});
  bed.Ready(b, 2, {1});
  bed.From(a, Gone(1, 0, false, "it ended in /tmp/\xff"));
  ASSERT_EQ(a.ends.size(), 1u);
  ASSERT_EQ(b.ends.size(), 1u);
  EXPECT_NE(a.ends[0].message().find("it ended in /tmp/\xff"),
            std::string::npos);
  EXPECT_NE(b.ends[0].message().find("it ended in /tmp/\xef\xbf\xbd"),
            std::string::npos)
      << b.ends[0].message();
}

TEST_F(VersionsTest, AResumedSessionKeepsItsVersion) {
  TestBed bed;
  Executor& e = bed.Connect("j", "n0", "secret", kOld);
  bed.Break(e);
  e.version = 0;
  bed.Resume(e);
  EXPECT_EQ(e.version, 10u);
}

TEST_F(VersionsTest, EpochStartSaysEachNodesVersion) {
  TestBed bed;
  Executor& old = bed.Connect("j", "n0", "secret", kOld);
  Executor& current = bed.Connect("j", "n1");
  Start(&bed, old, current);
  const proto::EpochStart& start = current.Last().epoch_start();
  EXPECT_EQ(start.nodes(0).protocol_version(), 10u);
  EXPECT_EQ(start.nodes(1).protocol_version(), kProtocolVersion);
}

TEST_F(VersionsTest, ChunksOfAnOldExecutorAreTakenIfTheyAreTheLeast) {
  TestBed bed;
  Executor& old = bed.Connect("j", "n0", "secret", {10, 11});
  Executor& current = bed.Connect("j", "n1");
  bed.Ready(old, 2, {0}, 524288);
  bed.Ready(current, 2, {1}, 1048576);
  ASSERT_TRUE(current.Last().has_epoch_start());
  EXPECT_EQ(current.Last().epoch_start().chunk_bytes(), 524288u);
}

TEST_F(VersionsTest, AnOldExecutorWithGreaterChunksFailsTheStart) {
  TestBed bed;
  Executor& old = bed.Connect("j", "n0", "secret", {10, 11});
  Executor& current = bed.Connect("j", "n1");
  bed.Ready(old, 2, {0}, 524288);
  bed.Ready(current, 2, {1}, 262144);
  for (const Executor* e : {&old, &current}) {
    ASSERT_EQ(e->ends.size(), 1u);
    EXPECT_EQ(e->ends[0].message(),
              "the job cannot start: node n0 (host host-n0) with rank 0 runs "
              "with --chunk_bytes=524288, node n1 (host host-n1) with rank 1 "
              "with --chunk_bytes=262144, and the former's version of Maypole "
              "uses no other; start maypole-worker there with "
              "--chunk_bytes=262144, or upgrade it");
  }
}

TEST_F(VersionsTest, AnOldExecutorGetsOneRankLeftForEachRank) {
  TestBed bed;
  Executor& old = bed.Connect("j", "n0", "secret", kOld);
  Executor& current = bed.Connect("j", "n1");
  Start(&bed, old, current);
  constexpr uint32_t kMore = 5;
  for (uint32_t rank = 0; rank < kLeavesToldAtOnce + kMore; ++rank) {
    bed.From(old, Gone(1, rank, true));
    if (rank + 1 == kLeavesToldAtOnce) bed.Pass(kLeavePause);
  }
  bed.Pass(kLeavePause);
  EXPECT_EQ(Told(current).back(), static_cast<int>(kMore));
  const std::vector<int> alone(kLeavesToldAtOnce + kMore, 1);
  EXPECT_EQ(Told(old), alone);
  EXPECT_EQ(RanksTold(old), RanksTold(current));
  EXPECT_THAT(old.Last().rank_left().message(),
              ::testing::StartsWith("rank 20 (node n0) has shut down"));
}

TEST_F(VersionsTest, ACoordinatorThatSpeaksVersion10TellsAllAlike) {
  TestBed bed({.frozen_nodes = 0, .versions = kOld});
  Executor& a = bed.Connect("j", "n0");
  Executor& b = bed.Connect("j", "n1");
  Start(&bed, a, b);
  for (uint32_t rank = 0; rank < kEach; ++rank) {
    bed.From(a, Gone(1, rank, true));
  }
  bed.Pass(kLeavePause);
  EXPECT_EQ(Told(b), std::vector<int>(kEach, 1));
}

TEST_F(VersionsTest, AnotherCoordinatorAlsoTellsAnOldExecutorOneByOne) {
  TestBed before;
  Executor* were[] = {&before.Connect("job", "n0", "secret", kOld),
                      &before.Connect("job", "n1")};
  Start(&before, *were[0], *were[1]);
  TestBed after;
  std::vector<Executor*> are;
  for (Executor* was : were) {
    proto::ExecutorHello hello;
    hello.set_protocol_version(was->versions.oldest);
    hello.set_newest_version(was->versions.newest);
    hello.set_job("job");
    hello.set_node(was->node);
    hello.set_token("secret");
    hello.set_session(was->session);
    hello.set_incarnation("the one before");
    are.push_back(&after.Hello(hello));
    proto::ExecutorMessage m;
    *m.mutable_node_state()->mutable_start() = was->inbox[0].epoch_start();
    m.mutable_node_state()->set_connected(true);
    for (const uint32_t rank : {3, 4, 5})
      m.mutable_node_state()->add_left(rank);
    after.From(*are.back(), m);
  }
  EXPECT_THAT(Told(*are[0]), ElementsAre(1, 1, 1));
  EXPECT_THAT(Told(*are[1]), ElementsAre(3));
  EXPECT_THAT(RanksTold(*are[0]), ElementsAre(3, 4, 5));
  for (Executor* e : are) EXPECT_TRUE(e->Last().has_recovered());
  // Later messages are made for the versions, too.
  for (uint32_t rank = kEach; rank < 2 * kEach; ++rank) {
    after.From(*are[1], Gone(1, rank, true));
  }
  after.Pass(kLeavePause);
  EXPECT_GT(Told(*are[1]).back(), 1);
  EXPECT_EQ(Told(*are[0]), std::vector<int>(3 + kEach, 1));
}

TEST_F(VersionsTest, NodesWithoutACommonVersionAreNamed) {
  TestBed bed;
  Executor& old = bed.Connect("j", "n0", "secret", kOld);
  Executor& late = bed.Connect("j", "n1", "secret", {11, 12});
  ASSERT_FALSE(old.refused || late.refused);
  bed.Ready(old, 2, {0});
  bed.Ready(late, 2, {1});
  for (Executor* e : {&old, &late}) {
    ASSERT_EQ(e->ends.size(), 1u);
    EXPECT_EQ(e->ends[0].message(),
              "the job cannot start: maypole-worker on node n0 (host host-n0) "
              "speaks protocol version 10, but maypole-worker on node n1 (host "
              "host-n1) speaks protocol versions 11 to 12; upgrade "
              "maypole-worker on node n0 (host host-n0)");
  }
}

TEST_F(VersionsTest, AnElasticJobRefusesTheNodeThatComesLater) {
  TestBed bed;
  ElasticNode old{&bed.Connect("j", "n0", "secret", kOld)};
  ElasticNode late{&bed.Connect("j", "n1", "secret", {11, 12})};
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
                  "version 10, but"));
  bed.Pass(std::chrono::seconds(2));
  EXPECT_TRUE(old.executor->Last().has_epoch_start());
}

// Inputs travel ahead in jobs of few nodes that all know it, unless checksums
// are compared.
TEST_F(VersionsTest, OnlyNodesThatAllKnowItSendInputs) {
  const auto starts = [](const Config& config, VersionRange versions,
                         ChecksumMode checksums) {
    TestBed bed(config);
    Executor& a = bed.Connect("j", "n0");
    Executor& b = bed.Connect("j", "n1", "secret", versions);
    for (Executor* e : {&a, &b}) {
      proto::ExecutorMessage m;
      proto::RanksReady* ready = m.mutable_ranks_ready();
      ready->set_size(2);
      ready->add_ranks(e == &a ? 0 : 1);
      ready->add_pids(100);
      ready->set_chunk_bytes(524288);
      ready->set_stall_check_ms(-1);
      ready->set_stall_shutdown_ms(-1);
      ready->set_checksums(static_cast<uint32_t>(checksums));
      bed.From(*e, m);
    }
    EXPECT_TRUE(a.Last().has_epoch_start());
    EXPECT_EQ(a.Last().epoch_start().sends_inputs(),
              b.Last().epoch_start().sends_inputs());
    return a.Last().epoch_start().sends_inputs();
  };
  constexpr VersionRange kNew = kProtocolVersions;
  EXPECT_TRUE(starts({.eager_nodes = 2}, kNew, ChecksumMode::kOff));
  EXPECT_FALSE(starts({.eager_nodes = 1}, kNew, ChecksumMode::kOff));
  EXPECT_FALSE(
      starts({.eager_nodes = 2}, {10, kEagerInputs - 1}, ChecksumMode::kOff));
  EXPECT_FALSE(starts({.eager_nodes = 2}, kNew, ChecksumMode::kWarn));
}

// Executors from version 13 on say two sizes: what those before version 12 want
// to be equal, and their own.
TEST(ChunksTest, TheirOwnSizeCounts) {
  TestBed bed;
  Executor* nodes[] = {&bed.Connect("j", "n0"), &bed.Connect("j", "n1")};
  for (uint32_t i = 0; i < 2; ++i) {
    proto::ExecutorMessage m;
    proto::RanksReady* ready = m.mutable_ranks_ready();
    ready->set_size(2);
    ready->add_ranks(i);
    ready->add_pids(100 + i);
    ready->set_chunk_bytes(524288);
    ready->set_most_chunk_bytes(i == 0 ? 4194304 : 1048576);
    ready->set_stall_check_ms(-1);
    ready->set_stall_shutdown_ms(-1);
    bed.From(*nodes[i], m);
  }
  EXPECT_EQ(nodes[0]->Last().epoch_start().chunk_bytes(), 1048576u);
}

}  // namespace
}  // namespace maypole::coordinator
