#include "client/launcher/node/node_core.h"

#include <gtest/gtest.h>

#include <csignal>

namespace maypole::launcher {
namespace {

using std::chrono::milliseconds;
using Step = NodeCore::Step;

constexpr Exit kKilled{.signaled = true, .value = SIGKILL};
Time At(int ms) { return Time() + std::chrono::hours(1) + milliseconds(ms); }

NodeCore WithDaemons() {
  NodeCore core;
  core.OnDaemonStart("coordinator", 7);
  core.OnDaemonStart("node0", 8);
  return core;
}

TEST(NodeCoreTest, WithoutDaemonsANodeIsReady) {
  EXPECT_TRUE(NodeCore().all_ready());
}

TEST(NodeCoreTest, ADaemonIsReadyWithItsLine) {
  NodeCore core = WithDaemons();
  EXPECT_EQ(core.not_ready(),
            (std::vector<std::string>{"coordinator (pid 7)", "node0 (pid 8)"}));
  core.OnAnnounce("coordinator", "listen=127.0.0.1:1 met");
  EXPECT_FALSE(core.Find("coordinator")->ready);
  core.OnAnnounce("coordinator", "rics=127.0.0.1:2\nmore\n");
  EXPECT_TRUE(core.Find("coordinator")->ready);
  EXPECT_EQ(core.not_ready(), std::vector<std::string>{"node0 (pid 8)"});
  core.OnAnnounce("node0", "socket=/s\n");
  EXPECT_TRUE(core.all_ready());
  EXPECT_EQ(core.Summary(),
            (std::vector<std::string>{
                "coordinator pid=7 listen=127.0.0.1:1 metrics=127.0.0.1:2",
                "node0 pid=8 socket=/s"}));
}

TEST(NodeCoreTest, AWorkerTellsWhichRanksHaveJoined) {
  NodeCore core = WithDaemons();
  EXPECT_TRUE(core.OnAnnounce("node0", "rank=7 job=j\nrank=").empty());
  EXPECT_TRUE(core.Find("node0")->ready);  // the first line is no rank's
  auto joined = core.OnAnnounce("node0", "3 job=j-1\nrank=x job=j\nrank=4\n");
  ASSERT_EQ(joined.size(), 1u);
  EXPECT_EQ(joined[0].rank, 3);
  EXPECT_EQ(joined[0].job, "j-1");
  joined = core.OnAnnounce("node0", "rank=5 job=j\nrank=6 job=j\n");
  ASSERT_EQ(joined.size(), 2u);
  EXPECT_EQ(joined[1].rank, 6);
  core.OnAnnounce("node0", std::string(kMaxAnnouncementBytes, 'x'));
  EXPECT_TRUE(core.OnAnnounce("node0", "\nrank=8 job=j\n").empty());
}

TEST(NodeCoreTest, AnEndlessAnnouncementIsNone) {
  NodeCore core = WithDaemons();
  for (size_t i = 0; i < kMaxAnnouncementBytes; ++i) {
    core.OnAnnounce("node0", "xx");
  }
  core.OnAnnounce("node0", "\n");
  EXPECT_FALSE(core.Find("node0")->ready);
}

TEST(NodeCoreTest, ALostDaemonIsDescribed) {
  NodeCore core = WithDaemons();
  EXPECT_EQ(core.OnDaemonEnd("coordinator", {.value = 5}),
            "coordinator (pid 7) exited with code 5 before it was ready and "
            "wrote nothing");
  core.OnAnnounce("node0", "socket=/s\n");
  core.OnLog("node0");
  EXPECT_EQ(core.OnDaemonEnd("node0", kKilled),
            "node0 (pid 8) was killed by signal 9 (Killed); its last lines "
            "begin with [node0]");
}

TEST(NodeCoreTest, TheEndOfADaemonThatWasAskedToIsNoLoss) {
  NodeCore core = WithDaemons();
  core.AskToEnd("node0");
  EXPECT_EQ(core.OnDaemonEnd("node0", kKilled), "");
}

TEST(NodeCoreTest, EverythingEndsInOrder) {
  NodeCore core = WithDaemons();
  EXPECT_FALSE(core.deadline());
  EXPECT_EQ(core.ContinueEnd(At(0), true, true), Step::kNothing);
  EXPECT_EQ(core.BeginEnd(At(0)), Step::kKillRanks);
  EXPECT_EQ(core.BeginEnd(At(1)), Step::kNothing);
  EXPECT_EQ(core.ContinueEnd(At(2), false, true), Step::kNothing);
  EXPECT_EQ(core.ContinueEnd(At(3), true, true), Step::kStopAgents);
  EXPECT_EQ(core.ContinueEnd(At(4), true, true), Step::kNothing);
  EXPECT_EQ(core.OnDaemonEnd("node0", {}), "");
  EXPECT_EQ(core.ContinueEnd(At(5), true, true), Step::kStopCoordinator);
  EXPECT_EQ(core.ContinueEnd(At(6), true, true), Step::kNothing);
  EXPECT_EQ(core.OnDaemonEnd("coordinator", {}), "");
  EXPECT_FALSE(core.ended());
  EXPECT_EQ(core.ContinueEnd(At(7), true, true), Step::kKillAll);
  EXPECT_TRUE(core.ended());
  EXPECT_FALSE(core.deadline());
  EXPECT_EQ(core.ContinueEnd(At(8), true, true), Step::kNothing);
}

TEST(NodeCoreTest, TheCoordinatorWaitsForAgentsOfOtherHosts) {
  NodeCore core = WithDaemons();
  core.BeginEnd(At(0));
  EXPECT_EQ(core.ContinueEnd(At(1), true, false), Step::kStopAgents);
  core.OnDaemonEnd("node0", {});
  EXPECT_EQ(core.ContinueEnd(At(2), true, false), Step::kNothing);
  EXPECT_EQ(core.ContinueEnd(At(3), true, true), Step::kStopCoordinator);
}

TEST(NodeCoreTest, WithoutDaemonsNothingIsAwaited) {
  NodeCore core;
  core.BeginEnd(At(0));
  EXPECT_EQ(core.ContinueEnd(At(0), true, true), Step::kStopAgents);
  EXPECT_EQ(core.ContinueEnd(At(0), true, true), Step::kStopCoordinator);
  EXPECT_EQ(core.ContinueEnd(At(0), true, true), Step::kKillAll);
}

TEST(NodeCoreTest, WhatDoesNotEndIsNotWaitedForLong) {
  NodeCore core = WithDaemons();
  core.BeginEnd(At(0));
  EXPECT_EQ(core.deadline(), At(1000));
  EXPECT_EQ(core.ContinueEnd(At(1000), false, true), Step::kStopAgents);
  EXPECT_EQ(core.deadline(), At(3000));
  EXPECT_EQ(core.ContinueEnd(At(2999), false, true), Step::kNothing);
  EXPECT_EQ(core.ContinueEnd(At(3000), false, false), Step::kStopCoordinator);
  EXPECT_EQ(core.deadline(), At(4000));
  EXPECT_EQ(core.ContinueEnd(At(3999), false, true), Step::kNothing);
  EXPECT_EQ(core.ContinueEnd(At(4000), false, true), Step::kKillAll);
}

TEST(NodeCoreTest, AHurryMayComeInTheMiddle) {
  NodeCore core = WithDaemons();
  core.BeginEnd(At(0));
  EXPECT_EQ(core.ContinueEnd(At(10), true, true), Step::kStopAgents);
  core.Hurry();
  EXPECT_EQ(core.deadline(), At(110));
  EXPECT_EQ(core.ContinueEnd(At(110), true, true), Step::kStopCoordinator);
  EXPECT_EQ(core.ContinueEnd(At(210), true, true), Step::kKillAll);
}

}  // namespace
}  // namespace maypole::launcher
