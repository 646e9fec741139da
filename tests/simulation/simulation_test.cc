// Plays seeds, and verifies that the checker finds deliberate defects.
// --long: 10,000 seeds, and 5,000 of elastic jobs.
#include <gtest/gtest.h>

#include <iostream>
#include <string>

#include "tests/simulation/elastic_world.h"
#include "tests/simulation/report.h"
#include "tests/simulation/world.h"

namespace maypole::simulation {
namespace {

bool play_all = false;
// More than the three ranks of a node have under way at a time.
constexpr uint32_t kFewSlots = 16;

TEST(SimulationTest, NoSeedBreaksAPromise) {
  const uint64_t seeds = play_all ? 10000 : 400;
  Report report;
  for (uint64_t seed = 1; seed <= seeds; ++seed) {
    report.Add(seed, Play({.seed = seed}));
  }
  std::cout << report.Text();
  EXPECT_EQ(report.failures(), 0);
  // The seeds have covered all kinds of events.
  EXPECT_EQ(report.counts().seeds, seeds);
  EXPECT_GT(report.counts().ended_well, 20 * seeds);
  EXPECT_GT(report.counts().mismatches, seeds);
  EXPECT_GT(report.counts().interruptions, seeds);
  EXPECT_GT(report.counts().ranks_killed, seeds / 4);
  EXPECT_GT(report.counts().ranks_killed_within_a_step, seeds / 20);
  EXPECT_GT(report.counts().executors_killed, seeds / 20);
  EXPECT_GT(report.counts().coordinators_killed, seeds / 20);
  EXPECT_GT(report.counts().links_cut, seeds / 20);
  EXPECT_GT(report.counts().reconnects, seeds / 20);
  EXPECT_GT(report.counts().backends_failed, seeds / 40);
  EXPECT_GT(report.counts().late_reports, seeds / 100);
  EXPECT_GT(report.counts().deadlocks, seeds / 100);
  EXPECT_GT(report.counts().gpu_operations, seeds / 10);
  EXPECT_GT(report.counts().gathered_on_gpus, seeds / 40);
  EXPECT_GT(report.counts().runs_of_ranks, seeds / 40);
  EXPECT_GT(report.counts().gathered_by_ranks, seeds / 20);
  EXPECT_GT(report.counts().nccl_failures, seeds / 100);
  EXPECT_GT(report.counts().rooms_too_small, seeds / 100);
  EXPECT_GT(report.counts().nccl_runs, seeds / 10);
  EXPECT_GT(report.counts().brought_to_host, seeds / 10);
}

// Names change with each step, and there are few slots for them.
TEST(SimulationTest, SlotsGoFromNameToName) {
  const uint64_t seeds = play_all ? 3000 : 150;
  Report report;
  for (uint64_t seed = 1; seed <= seeds; ++seed) {
    report.Add(seed, Play({.seed = seed, .slots = kFewSlots}));
  }
  std::cout << report.Text();
  EXPECT_EQ(report.failures(), 0);
  EXPECT_GT(report.counts().slots_freed, 2 * seeds);
}

// No difference is reported where there is none, whatever happens: joins,
// process sets, lost ranks, new epochs, slots that go from name to name.
TEST(SimulationTest, ChecksumsRaiseNoFalseAlarm) {
  const uint64_t seeds = play_all ? 3000 : 40;
  for (const uint32_t slots : {64u, kFewSlots}) {
    Report report;
    for (uint64_t seed = 1; seed <= seeds; ++seed) {
      report.Add(seed, Play({.seed = seed, .slots = slots, .checksums = true}));
    }
    std::cout << report.Text();
    EXPECT_EQ(report.failures(), 0);
    EXPECT_GT(report.counts().results_compared, seeds);
  }
}

// Nodes execute equal steps without the coordinator, and stop when something
// else comes: another operation, a join, a request, a death, a late rank.
TEST(SimulationTest, NoSeedWithEqualStepsBreaksAPromise) {
  const uint64_t seeds = play_all ? 10000 : 100;
  Report report;
  for (uint64_t seed = 1; seed <= seeds; ++seed) {
    report.Add(seed, Play({.seed = seed, .repeats = true}));
  }
  std::cout << report.Text();
  EXPECT_EQ(report.failures(), 0);
  EXPECT_GT(report.counts().schedules_over, seeds);
  EXPECT_GT(report.counts().scheduled_runs, 5 * seeds);
  EXPECT_GT(report.counts().inputs_sent, seeds);
  EXPECT_GT(report.counts().small_runs, 2 * seeds);
}

// Every second seed has no equal steps, so that all of its messages are passed
// on.
TEST(SimulationTest, NoSeedWithNodesInATreeBreaksAPromise) {
  const uint64_t seeds = play_all ? 10000 : 100;
  Report report;
  for (uint64_t seed = 1; seed <= seeds; ++seed) {
    const bool restarts = seed % 4 == 0;
    report.Add(seed, Play({.seed = seed,
                           .repeats = seed % 8 < 4,
                           .tree = true,
                           .restarts = restarts}));
  }
  std::cout << report.Text();
  EXPECT_EQ(report.failures(), 0);
  // The coordinator dies while ranks start anew, in the place of others.
  report.Add(245, Play({.seed = 245, .tree = true}));
  EXPECT_EQ(report.failures(), 0);
  EXPECT_GT(report.counts().schedules_over, seeds / 2);
  EXPECT_GT(report.counts().scheduled_runs, seeds / 2);
  EXPECT_GT(report.counts().relayed, 10 * seeds);
  EXPECT_GT(report.counts().inputs_sent, 2 * seeds);
  EXPECT_GT(report.counts().small_runs, seeds);
}

// The coordinator is killed again and again, and nothing else goes wrong: so no
// epoch ends, and no operation fails that should not.
TEST(SimulationTest, NoSeedWithManyRestartsBreaksAPromise) {
  const uint64_t seeds = play_all ? 5000 : 60;
  for (const bool repeats : {false, true}) {
    Report report;
    for (uint64_t seed = 1; seed <= seeds; ++seed) {
      report.Add(seed,
                 Play({.seed = seed, .repeats = repeats, .restarts = true}));
    }
    std::cout << report.Text();
    // A schedule crosses with the departure of a node's last rank.
    report.Add(513, Play({.seed = 513, .repeats = repeats, .restarts = true}));
    EXPECT_EQ(report.failures(), 0);
    EXPECT_GT(report.counts().coordinators_killed, 10 * seeds);
    EXPECT_GT(report.counts().continued, 2 * seeds);
  }
}

// An operator starts and stops timelines at any moment: no job ends by that,
// and no result changes. Agents die and come back, which ends no epoch, either.
TEST(SimulationTest, NoSeedWithAnOperatorBreaksAPromise) {
  const uint64_t seeds = play_all ? 5000 : 30;
  Report report;
  for (uint64_t seed = 1; seed <= seeds; ++seed) {
    report.Add(seed, Play({.seed = seed, .agents = true, .timelines = true}));
  }
  std::cout << report.Text();
  EXPECT_EQ(report.failures(), 0);
  EXPECT_GT(report.counts().timelines_started, seeds / 4);
  EXPECT_GT(report.counts().timelines_stopped, seeds / 8);
  EXPECT_GT(report.counts().timelines_complete, seeds / 8);
  EXPECT_GT(report.counts().agents_killed, seeds / 4);
}

// A rank leaves early; the names of what fails for want of it are given back.
TEST(SimulationTest, SlotsAreTakenBackAfterADeparture) {
  Report report;
  report.Add(3193, Play({.seed = 3193, .slots = kFewSlots}));
  EXPECT_EQ(report.failures(), 0);
  EXPECT_GT(report.counts().slots_freed, 2);
}

// Seeds beyond those of the plain run that have found a bug.
TEST(SimulationTest, SeedsOfOldBugs) {
  for (const uint64_t seed :
       {446, 1271, 1465, 1797, 1906, 4382, 5597, 5714, 5980, 6773}) {
    Report report;
    report.Add(seed, Play({.seed = seed}));
    EXPECT_EQ(report.failures(), 0) << seed;
  }
}

// Ranks of elastic jobs die, come and leave; hosts come and go.
TEST(SimulationTest, NoSeedOfAnElasticJobBreaksAPromise) {
  const uint64_t seeds = play_all ? 5000 : 100;
  Report report;
  for (uint64_t seed = 1; seed <= seeds; ++seed) {
    report.Add(seed, PlayElastic({.seed = seed}), /*elastic=*/true);
  }
  std::cout << report.Text();
  EXPECT_EQ(report.failures(), 0);
  EXPECT_GT(report.counts().processes_started, 3 * seeds);
  EXPECT_GT(report.counts().elastic_epochs, 4 * seeds);
  EXPECT_GT(report.counts().commits, 20 * seeds);
  EXPECT_GT(report.counts().changes, seeds / 4);
  EXPECT_GT(report.counts().asked_to_leave, seeds / 20);
  EXPECT_GT(report.counts().came_too_late, seeds / 20);
  EXPECT_GT(report.counts().ranks_killed, seeds / 2);
  EXPECT_GT(report.counts().ranks_killed_within_a_step, seeds / 20);
  EXPECT_GT(report.counts().executors_killed, seeds / 20);
  EXPECT_GT(report.counts().agents_killed, seeds / 20);
  EXPECT_GT(report.counts().hosts_lost, seeds / 20);
  EXPECT_GT(report.counts().host_changes, seeds / 20);
  // Not all can go on.
  EXPECT_GT(report.counts().jobs_ended_badly, seeds / 40);
  EXPECT_LT(report.counts().jobs_ended_badly, seeds / 3);
}

TEST(SimulationTest, EqualSeedsGiveEqualRuns) {
  for (const uint64_t seed : {7, 21, 63}) {
    EXPECT_EQ(Play({.seed = seed}).counts.steps,
              Play({.seed = seed}).counts.steps);
    EXPECT_EQ(PlayElastic({.seed = seed}).counts.steps,
              PlayElastic({.seed = seed}).counts.steps);
  }
}

class Sabotaged : public testing::TestWithParam<std::string> {};

TEST_P(Sabotaged, IsFound) {
  RunOptions options;
  ASSERT_TRUE(ReadSabotage(GetParam(), &options.sabotage));
  for (options.seed = 1; options.seed <= 200; ++options.seed) {
    const RunResult result = Play(options);
    if (result.found.empty()) continue;
    std::cout << GetParam() << ": seed " << options.seed << ": "
              << result.found.front() << "\n";
    return;
  }
  FAIL() << GetParam() << " was not found in 200 seeds";
}

TEST(SimulationTest, AnElasticJobWithoutWishesIsFound) {
  if (!play_all) GTEST_SKIP() << "up to 2,000 worlds: simulation_test_long";
  RunOptions options{.sabotage = Sabotage::kNoWish};
  // Seldom must a process wait for long without another fault that explains it:
  // in one world of 200.
  for (options.seed = 1; options.seed <= 2000; ++options.seed) {
    const RunResult result = PlayElastic(options);
    if (result.found.empty()) continue;
    EXPECT_NE(result.found.front().find("waits to enter"), std::string::npos);
    return;
  }
  FAIL() << "no_wish was not found in 2000 seeds";
}

INSTANTIATE_TEST_SUITE_P(All, Sabotaged,
                         testing::Values("drop_message", "swap_runs",
                                         "ignore_death", "wrong_sum", "no_wake",
                                         "no_mismatch", "skip_run",
                                         "forget_chunk", "late_write",
                                         "keep_epoch", "no_drain"),
                         [](const auto& info) { return info.param; });

}  // namespace

void ReadArguments(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    play_all = play_all || argv[i] == std::string("--long");
  }
}

}  // namespace maypole::simulation

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  maypole::simulation::ReadArguments(argc, argv);
  return RUN_ALL_TESTS();
}
