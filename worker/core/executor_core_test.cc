// How epochs end, in many orders of events.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "worker/core/limits.h"
#include "worker/core/testing/core_testing.h"

namespace maypole::worker {
namespace {

TEST_F(ExecutorCoreTest, DeathAbortsAtOnceAndTheNextEpochCanFollow) {
  StartTwoNodes();
  core_.OnClientGone(2, "its process ended");
  auto actions = core_.TakeActions();
  const auto& sent = std::get<SendToCoordinator>(actions.at(0)).message;
  EXPECT_EQ(sent.epoch(), 1u);
  const proto::RankGone& gone = sent.rank_gone();
  EXPECT_EQ(gone.rank(), 1u);
  EXPECT_FALSE(gone.clean());
  EXPECT_EQ(std::get<AbortBoard>(actions.at(1)).text,
            "rank 1 (pid 101, host hosta, node n0) died: its process ended");
  EXPECT_EQ(std::get<MarkGone>(actions.at(2)).local_rank, 1);
  core_.OnCoordinator(EndMessage(1, "rank 1 was lost"));  // no second abort
  EXPECT_TRUE(core_.TakeActions().empty());
  // Rank 1 comes again while rank 0 is still there.
  core_.OnClient(3, MakeHello(1, 4, 1, 2), 0);
  EXPECT_TRUE(core_.TakeActions().empty());
  core_.OnGoodbye(1, 1);
  actions = core_.TakeActions();
  EXPECT_TRUE(std::holds_alternative<CloseClient>(actions.at(0)));
  EXPECT_TRUE(std::holds_alternative<DropEpoch>(actions.at(1)));
  core_.OnClient(4, MakeHello(0, 4, 0, 2), 0);
  EXPECT_TRUE(TakeSent().at(0).has_ranks_ready());
}

TEST_F(ExecutorCoreTest, GoodbyeWithPendingOperationsEndsTheEpoch) {
  StartOneNode();
  core_.OnGoodbye(2, 2);
  const auto aborted = Take<AbortBoard>();
  ASSERT_EQ(aborted.size(), 1u);
  EXPECT_EQ(aborted[0].text,
            "rank 1 (pid 101, host hosta, node n0) has shut down with 2 "
            "operations pending");
}

// The other nodes learn the reason, not only that the rank has left.
TEST_F(ExecutorCoreTest, GoodbyeTellsTheErrorThatMakesTheRankLeave) {
  StartOneNode();
  core_.OnLeaveReason(2, "allgather 'x': no memory for a result of 8 bytes");
  core_.OnGoodbye(2, 1);
  const std::string what =
      "has left with 1 operation pending: allgather 'x': no memory for a "
      "result of 8 bytes";
  std::vector<std::string> how;
  std::vector<std::string> aborted;
  for (const Action& a : core_.TakeActions()) {
    if (const auto* sent = std::get_if<SendToCoordinator>(&a)) {
      how.push_back(sent->message.rank_gone().how());
    } else if (const auto* abort = std::get_if<AbortBoard>(&a)) {
      aborted.push_back(abort->text);
    }
  }
  EXPECT_EQ(how, std::vector<std::string>{"it " + what});
  EXPECT_EQ(aborted, std::vector<std::string>{
                         "rank 1 (pid 101, host hosta, node n0) " + what});
}

TEST_F(ExecutorCoreTest, OneOperationIsOne) {
  StartOneNode();
  core_.OnGoodbye(2, 1);
  EXPECT_EQ(Take<AbortBoard>().at(0).text,
            "rank 1 (pid 101, host hosta, node n0) has shut down with 1 "
            "operation pending");
}

// A rank that gives up because another has left is not the first cause.
TEST_F(ExecutorCoreTest, GoodbyeAfterAnotherHasLeftNamesTheFirst) {
  StartTwoNodes();
  proto::CoordinatorMessage left;
  left.set_epoch(1);
  left.mutable_rank_left()->set_rank(3);
  core_.OnCoordinator(left);
  core_.OnGoodbye(1, 0);
  Drop();
  core_.OnGoodbye(2, 15);
  const std::string text =
      "has shut down with 15 operations pending (after rank 3 (node n1) had "
      "shut down)";
  std::vector<std::string> how;
  std::vector<std::string> aborted;
  for (Action& a : core_.TakeActions()) {
    if (auto* b = std::get_if<AbortBoard>(&a)) aborted.push_back(b->text);
    if (auto* s = std::get_if<SendToCoordinator>(&a)) {
      how.push_back(s->message.rank_gone().how());
    }
  }
  ASSERT_EQ(aborted.size(), 1u);
  EXPECT_EQ(aborted[0], "rank 1 (pid 101, host hosta, node n0) " + text);
  ASSERT_EQ(how.size(), 1u);
  EXPECT_EQ(how[0], "it " + text);
}

TEST_F(ExecutorCoreTest, CleanGoodbyeMarksTheRank) {
  StartTwoNodes();
  core_.OnGoodbye(2, 0);
  auto actions = core_.TakeActions();
  EXPECT_TRUE(
      std::get<SendToCoordinator>(actions.at(1)).message.rank_gone().clean());
  EXPECT_EQ(std::get<MarkLeft>(actions.at(2)).local_rank, 1);
  // The coordinator's echo of it is not a second departure.
  proto::CoordinatorMessage m;
  m.set_epoch(1);
  m.mutable_rank_left()->set_rank(1);
  core_.OnCoordinator(m);
  EXPECT_TRUE(Take<MarkLeft>().empty());
  m.mutable_rank_left()->set_rank(2);
  m.mutable_rank_left()->set_message("rank 2 has shut down");
  core_.OnCoordinator(m);
  const auto left = Take<MarkLeft>();
  ASSERT_EQ(left.size(), 1u);
  EXPECT_EQ(left[0].local_rank, -1);
  EXPECT_EQ(left[0].text, "rank 2 has shut down");
}

TEST_F(ExecutorCoreTest, BackendStaysUntilAllRanksOfTheJobHaveLeft) {
  StartTwoNodes();
  core_.OnGoodbye(1, 0);
  core_.OnGoodbye(2, 0);
  EXPECT_TRUE(Take<DropEpoch>().empty());
  proto::CoordinatorMessage m;
  m.set_epoch(1);
  for (uint32_t rank : {0u, 1u, 2u, 3u}) {
    EXPECT_TRUE(Take<DropEpoch>().empty());
    m.mutable_rank_left()->set_rank(rank);
    core_.OnCoordinator(m);
  }
  EXPECT_EQ(Take<DropEpoch>().size(), 1u);
}

TEST_F(ExecutorCoreTest, ARequestAfterAnAbortIsAnsweredWithItsReason) {
  StartOneNode();
  core_.OnClientGone(2, "its process ended without shutdown");
  Drop();
  const session::SlotReply reply = Slot("x");
  EXPECT_EQ(reply.code, static_cast<uint32_t>(Code::kAborted));
  EXPECT_EQ(std::string(reply.text),
            "rank 1 (pid 101, host hosta, node n0) died: its process ended "
            "without shutdown");
}

TEST_F(ExecutorCoreTest, NextEpochStartsWhileTheLastOneDrains) {
  StartTwoNodes();
  core_.OnGoodbye(1, 0);
  core_.OnGoodbye(2, 0);
  Drop();
  Join(4);
  EXPECT_TRUE(TakeSent().back().has_ranks_ready());
  core_.OnCoordinator(StartMessage(2, 2));
  const auto actions = core_.TakeActions();
  EXPECT_TRUE(std::holds_alternative<DropEpoch>(actions.at(0)));
  EXPECT_EQ(std::get<PrepareBackend>(actions.at(1)).node_names.at(1),
            "node n1 (host host1)");
  EXPECT_EQ(std::get<PrepareBackend>(actions.at(1)).node_addresses,
            (std::vector<std::string>{"10.0.0.1", "10.0.0.2"}));
}

// Other nodes may still receive what its backend has sent.
TEST_F(ExecutorCoreTest, AStartThatFailsLeavesTheEpochBeforeItToDrain) {
  StartTwoNodes();
  core_.OnGoodbye(1, 0);
  core_.OnGoodbye(2, 0);
  Join(4);
  Drop();
  core_.OnClientGone(1, "its process ended without shutdown");
  EXPECT_TRUE(Take<DropEpoch>().empty());
  Join(4);
  Drop();
  proto::CoordinatorMessage left;
  left.set_epoch(1);
  left.mutable_rank_left()->set_rank(2);
  core_.OnCoordinator(left);
  EXPECT_TRUE(Take<DropEpoch>().empty());
  left.mutable_rank_left()->set_rank(3);
  core_.OnCoordinator(left);
  EXPECT_EQ(Take<DropEpoch>().size(), 1u);
}

TEST_F(ExecutorCoreTest, NetworkFailureWaitsForTheCoordinatorsReason) {
  StartTwoNodes();
  core_.OnTime(1000);
  core_.OnNetworkFailed(absl::UnavailableError("connection reset"));
  core_.OnTime(3000);
  EXPECT_TRUE(core_.TakeActions().empty());
  core_.OnCoordinator(EndMessage(1, "the executor of node n1 was lost"));
  EXPECT_EQ(Take<AbortBoard>().at(0).text, "the executor of node n1 was lost");
  core_.OnTime(10000);
  EXPECT_TRUE(Take<AbortBoard>().empty());
}

TEST_F(ExecutorCoreTest, NetworkFailureAloneEndsTheEpochAfterABound) {
  StartTwoNodes();
  core_.OnTime(1000);
  core_.OnNetworkFailed(absl::UnavailableError("connection reset"));
  core_.OnTime(1000 + 3000 + kBackendGraceMs);
  auto actions = core_.TakeActions();
  EXPECT_TRUE(std::get<SendToCoordinator>(actions.at(0)).message.has_failed());
  EXPECT_EQ(std::get<AbortBoard>(actions.at(1)).text,
            "the network between nodes failed on node n0 (host hosta): "
            "connection reset");
}

TEST_F(ExecutorCoreTest, NetworkFailureDoesNotMatterWhenTheOthersHaveLeft) {
  StartTwoNodes();
  core_.OnTime(1000);
  EXPECT_TRUE(core_.OnNetworkFailed(absl::UnavailableError("reset")));
  EXPECT_FALSE(core_.OnNetworkFailed(absl::UnavailableError("again")));
  LeaveElsewhere();
  core_.TakeActions();
  core_.OnTime(1000 + 3000 + kBackendGraceMs);
  EXPECT_TRUE(core_.TakeActions().empty());
  core_.OnGoodbye(1, 0);
  core_.OnGoodbye(2, 0);
  EXPECT_EQ(Take<DropEpoch>().size(), 1u);
  EXPECT_FALSE(core_.OnNetworkFailed(absl::UnavailableError("late")));
}

// The other node's ranks have left with their results, but the last bytes for
// this node are lost.
TEST_F(ExecutorCoreTest, NetworkFailureMattersWhileARankIsInARun) {
  for (const bool in_run : {true, false}) {
    SCOPED_TRACE(in_run);
    StartTwoNodes();
    core_.OnTime(1000);
    const uint32_t slot = Slot("x").slot;
    EXPECT_TRUE(core_.OnNetworkFailed(absl::UnavailableError("reset")));
    LeaveElsewhere();
    BoardSnapshot snapshot;
    snapshot.ranks.resize(2);
    for (RankSnapshot& rank : snapshot.ranks) rank.here = true;
    if (in_run) snapshot.ranks[1].holds = slot;
    core_.OnSnapshot(snapshot);
    core_.TakeActions();
    core_.OnTime(1000 + 3000 + kBackendGraceMs);
    EXPECT_EQ(Take<AbortBoard>().size(), in_run ? 1u : 0u);
    core_.OnGoodbye(1, 0);
    core_.OnGoodbye(2, 0);
    Drop();
  }
}

TEST_F(ExecutorCoreTest, LostCoordinatorEndsARunningEpochAndIsSoughtAnewLater) {
  StartOneNode();
  core_.OnLinkLost(absl::UnavailableError("coordinator x:1 lost"));
  const auto aborted = Take<AbortBoard>();
  ASSERT_EQ(aborted.size(), 1u);
  EXPECT_EQ(aborted[0].code, Code::kUnavailable);
  EXPECT_EQ(aborted[0].text, "coordinator x:1 lost");
  core_.OnGoodbye(1, 1);
  core_.OnGoodbye(2, 1);
  Drop();
  Join(2);
  const auto actions = core_.TakeActions();
  EXPECT_TRUE(std::holds_alternative<OpenLink>(actions.at(0)));
}

TEST_F(ExecutorCoreTest, LostCoordinatorRefusesThoseWhoWait) {
  Join(2);
  core_.OnClient(3, MakeHello(0, 2, 0, 2), 0);  // rank 0 twice: refused
  Drop();
  core_.OnLinkLost(absl::PermissionDeniedError("wrong secret"));
  const auto refused = Take<RefuseClient>();
  ASSERT_EQ(refused.size(), 2u);
  EXPECT_EQ(refused[0].code, Code::kPermissionDenied);
}

TEST_F(ExecutorCoreTest, IdleExecutorAsksToEnd) {
  StartOneNode();
  core_.OnTime(100000);
  EXPECT_TRUE(Take<ReportIdle>().empty());
  core_.OnGoodbye(1, 0);
  core_.OnGoodbye(2, 0);
  core_.OnTime(100000 + kIdleMs - 1);
  EXPECT_TRUE(Take<ReportIdle>().empty());
  core_.OnTime(100000 + kIdleMs);
  EXPECT_EQ(Take<ReportIdle>().size(), 1u);
}

// Other nodes would take the end of its connections for a failure.
TEST_F(ExecutorCoreTest, AnExecutorWhoseEpochDrainsIsNotIdle) {
  StartTwoNodes();
  core_.OnGoodbye(1, 0);
  core_.OnGoodbye(2, 0);
  core_.OnTime(100000);
  core_.OnTime(100000 + kIdleMs);
  EXPECT_TRUE(Take<ReportIdle>().empty());
  LeaveElsewhere();
  EXPECT_EQ(Take<DropEpoch>().size(), 1u);
  core_.OnTime(100000 + 2 * kIdleMs);
  EXPECT_EQ(Take<ReportIdle>().size(), 1u);
}

TEST_F(ExecutorCoreTest, OneMessageTellsOfSeveralRanksThatHaveLeft) {
  StartTwoNodes();
  Drop();
  proto::CoordinatorMessage m;
  m.set_epoch(1);
  m.mutable_rank_left()->set_rank(2);
  m.mutable_rank_left()->set_message("rank 2 has left");
  m.mutable_rank_left()->add_others(3);
  core_.OnCoordinator(m);
  const auto left = Take<MarkLeft>();
  ASSERT_EQ(left.size(), 2u);
  EXPECT_EQ(left[0].rank, 2);
  EXPECT_EQ(left[0].text, "rank 2 has left");
  EXPECT_EQ(left[1].rank, 3);
  EXPECT_EQ(left[1].local_rank, -1);
  EXPECT_EQ(left[1].text,
            "rank 3 (node n1) has shut down; operations that need it cannot "
            "run");
  // The epoch drains until all ranks have left, so the core handles both
  // messages.
  core_.OnGoodbye(1, 0);
  core_.OnGoodbye(2, 0);
  EXPECT_EQ(Take<DropEpoch>().size(), 1u);
}

TEST_F(ExecutorCoreTest, StopTellsEverybody) {
  StartOneNode();
  core_.OnClient(9, MakeHello(0, 2, 0, 2), 0);
  Drop();
  core_.OnStop("stopped");
  EXPECT_EQ(Take<AbortBoard>().at(0).text, "stopped");
}

}  // namespace
}  // namespace maypole::worker
