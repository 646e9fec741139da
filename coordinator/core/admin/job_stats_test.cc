#include "coordinator/core/admin/job_stats.h"

#include <gtest/gtest.h>

#include "common/limits.h"
#include "coordinator/core/testing/testing.h"

namespace maypole::coordinator {
namespace {

using std::chrono::seconds;

constexpr uint64_t kSecond = 1000000000;

proto::NodeStats Counters(int64_t time_ms, uint64_t steps,
                          const std::vector<uint64_t>& waited_ns) {
  proto::NodeStats m;
  m.set_time_ms(time_ms);
  m.set_steps(steps);
  m.set_operations(10 * steps);
  m.set_runs(4 * steps);
  m.set_bytes(1000 * steps);
  m.set_sent(2000 * steps);
  m.set_received(3000 * steps);
  m.mutable_waited_ns()->Assign(waited_ns.begin(), waited_ns.end());
  return m;
}

// Of two nodes with two ranks each.
proto::JobStatus Filled(const JobStats& stats, Time now) {
  proto::JobStatus status;
  for (size_t i = 0; i < 2; ++i) {
    proto::NodeStatus* node = status.add_nodes();
    for (int local = 0; local < 2; ++local) node->add_rank_status();
    stats.Fill(now, i, node);
  }
  stats.Fill(now, &status);
  return status;
}

TEST(JobStatsTest, NodesAreToldAgainWhileSomebodyLooks) {
  JobStats stats(2);
  EXPECT_TRUE(stats.Watch(seconds(0)));
  EXPECT_FALSE(stats.Watch(seconds(1)));
  EXPECT_FALSE(stats.Watch(seconds(4)));
  EXPECT_TRUE(stats.Watch(seconds(5)));
}

TEST(JobStatsTest, FiguresAreOfTheTimeBetweenTwoMessages) {
  JobStats stats(2);
  ASSERT_TRUE(stats.Take(seconds(1), 0, 2, Counters(700, 100, {0, 0})).ok());
  EXPECT_FALSE(Filled(stats, seconds(1)).has_stats());
  // 20 steps in 2 s; rank 1 sleeps half of that time, rank 0 a quarter.
  ASSERT_TRUE(
      stats.Take(seconds(3), 0, 2, Counters(2700, 120, {kSecond / 2, kSecond}))
          .ok());
  const proto::JobStatus status = Filled(stats, seconds(3));
  EXPECT_EQ(status.stats().nodes(), 1u);
  EXPECT_DOUBLE_EQ(status.stats().steps_per_second(), 10);
  EXPECT_DOUBLE_EQ(status.stats().operations_per_second(), 100);
  EXPECT_DOUBLE_EQ(status.stats().operations_per_run(), 2.5);
  EXPECT_DOUBLE_EQ(status.stats().bytes_per_second(), 10000);
  EXPECT_DOUBLE_EQ(status.stats().sent_per_second(), 20000);
  EXPECT_DOUBLE_EQ(status.stats().waiting(), 0.375);
  EXPECT_DOUBLE_EQ(status.nodes(0).received_per_second(), 30000);
  EXPECT_DOUBLE_EQ(status.nodes(0).rank_status(0).waiting(), 0.25);
  EXPECT_DOUBLE_EQ(status.nodes(0).rank_status(0).late(), 0.25);
  EXPECT_DOUBLE_EQ(status.nodes(0).rank_status(1).late(), 0);
  EXPECT_FALSE(status.nodes(1).has_sent_per_second());
  EXPECT_FALSE(status.nodes(1).rank_status(0).has_waiting());
}

TEST(JobStatsTest, LatenessIsThatOfAllNodes) {
  JobStats stats(2);
  for (int i = 0; i < 2; ++i) {
    const auto ns = static_cast<uint64_t>(i) * kSecond;
    ASSERT_TRUE(stats
                    .Take(seconds(i), 0, 2,
                          Counters(i * 1000, i * 8, {ns * 9 / 10, ns / 2}))
                    .ok());
    ASSERT_TRUE(
        stats.Take(seconds(i), 1, 2, Counters(i * 1000, i * 10, {0, ns})).ok());
  }
  const proto::JobStatus status = Filled(stats, seconds(1));
  EXPECT_DOUBLE_EQ(status.stats().steps_per_second(), 9);
  EXPECT_DOUBLE_EQ(status.stats().operations_per_second(), 100);
  EXPECT_DOUBLE_EQ(status.stats().sent_per_second(), 36000);
  EXPECT_NEAR(status.nodes(0).rank_status(0).late(), 0.1, 1e-9);
  EXPECT_DOUBLE_EQ(status.nodes(0).rank_status(1).late(), 0.5);
  EXPECT_DOUBLE_EQ(status.nodes(1).rank_status(0).late(), 1);
  EXPECT_DOUBLE_EQ(status.nodes(1).rank_status(1).late(), 0);
}

TEST(JobStatsTest, TimesFromWhichNoDifferenceCanBeTakenAreRefused) {
  JobStats stats(2);
  EXPECT_EQ(stats.Take(seconds(1), 0, 0, Counters(INT64_MIN, 1, {})).message(),
            "statistics at -9223372036854775808 ms; 0 to 4611686018427387904 "
            "are allowed");
  EXPECT_FALSE(stats.Take(seconds(1), 0, 0, Counters(INT64_MAX, 1, {})).ok());
}

TEST(JobStatsTest, OldFiguresAreNotShown) {
  JobStats stats(2);
  for (int i = 1; i < 3; ++i) {
    ASSERT_TRUE(stats.Take(seconds(i), 0, 0, Counters(i * 1000, 1, {})).ok());
  }
  EXPECT_TRUE(Filled(stats, seconds(2) + kStatsAge).has_stats());
  EXPECT_FALSE(Filled(stats, seconds(3) + kStatsAge).has_stats());
}

TEST(JobStatsTest, ACounterOrAClockThatGoesBackIsNoRate) {
  JobStats stats(2);
  for (const int64_t ms : {2000, 3000}) {
    ASSERT_TRUE(
        stats.Take(seconds(1), 0, 0, Counters(ms, ms == 2000 ? 9 : 1, {}))
            .ok());
  }
  EXPECT_EQ(Filled(stats, seconds(1)).stats().steps_per_second(), 0);
  ASSERT_TRUE(stats.Take(seconds(1), 0, 0, Counters(3000, 9, {})).ok());
  EXPECT_FALSE(Filled(stats, seconds(1)).has_stats());
}

TEST(JobStatsTest, GpusAreThoseOfTheLastMessage) {
  JobStats stats(2);
  for (int i = 1; i < 3; ++i) {
    proto::NodeStats m = Counters(i * 1000, 1, {});
    for (const uint32_t busy : {120, 0}) {
      proto::GpuLoad* gpu = m.add_gpus();
      gpu->set_uuid(std::string(kGpuUuidBytes, '\x4f'));
      gpu->set_used_bytes(static_cast<uint64_t>(i));
      gpu->set_total_bytes(80);
      if (busy > 0) gpu->set_busy_percent(busy);
    }
    ASSERT_TRUE(stats.Take(seconds(i), 0, 0, m).ok());
  }
  proto::NodeStatus node;
  stats.Fill(seconds(2), 0, &node);
  ASSERT_EQ(node.gpus_size(), 2);
  EXPECT_EQ(node.gpus(0).uuid(), "GPU-4f4f4f4f-4f4f-4f4f-4f4f-4f4f4f4f4f4f");
  EXPECT_EQ(node.gpus(0).used_bytes(), 2u);
  EXPECT_EQ(node.gpus(0).total_bytes(), 80u);
  EXPECT_EQ(node.gpus(0).busy_percent(), 100u);
  EXPECT_FALSE(node.gpus(1).has_busy_percent());
}

TEST(JobStatsTest, GpusAreChecked) {
  JobStats stats(2);
  proto::NodeStats m = Counters(1, 1, {});
  m.add_gpus()->set_uuid("short");
  EXPECT_EQ(stats.Take(seconds(1), 0, 0, m).message(),
            "statistics of a GPU whose UUID has 5 bytes; 16 are expected");
  for (uint32_t i = 0; i < kMaxGpus; ++i) m.add_gpus();
  EXPECT_EQ(stats.Take(seconds(1), 0, 0, m).message(),
            "statistics of 65 GPUs; 64 are allowed");
}

TEST(JobStatsTest, TheRanksMustBeThoseOfTheNode) {
  JobStats stats(2);
  const absl::Status s = stats.Take(seconds(1), 0, 2, Counters(1, 1, {5}));
  EXPECT_EQ(s.message(), "statistics of 1 ranks; the node has 2");
}

// Two nodes; the operator polls.
TEST(WatchTest, TheNodesAreAskedAndTheStatusHasTheirFigures) {
  TestBed bed;
  Executor& a = bed.Connect("j", "n0");
  Executor& b = bed.Connect("j", "n1");
  bed.Ready(a, 2, {0});
  bed.Ready(b, 2, {1});
  bed.Watch("");
  bed.Watch("j");
  ASSERT_TRUE(a.Last().has_watch_stats());
  EXPECT_EQ(a.Last().watch_stats().every_ms(), 1000u);
  EXPECT_TRUE(b.Last().has_watch_stats());
  for (int i = 0; i < 2; ++i) {
    proto::ExecutorMessage m;
    *m.mutable_node_stats() = Counters(i * 1000, i * 7, {0});
    m.set_epoch(1);
    bed.From(a, m);
  }
  EXPECT_EQ(bed.Status().jobs(0).stats().steps_per_second(), 7);
  proto::ExecutorMessage bad;
  *bad.mutable_node_stats() = Counters(3000, 9, {});
  bad.set_epoch(1);
  bed.From(a, bad);
  EXPECT_TRUE(a.refused);
}

}  // namespace
}  // namespace maypole::coordinator
