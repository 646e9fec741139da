// How epochs start, or fail to start, in many orders of events.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "worker/core/limits.h"
#include "worker/core/testing/core_testing.h"

namespace maypole::worker {
namespace {

TEST_F(ExecutorCoreTest, RanksReadyWhenAllLocalRanksAreThere) {
  core_.OnClient(1, MakeHello(1, 2, 1, 2), 1001);
  EXPECT_EQ(Take<OpenLink>().size(), 1u);
  core_.OnClient(2, MakeHello(0, 2, 0, 2), 1000);
  const auto sent = TakeSent();
  ASSERT_EQ(sent.size(), 1u);
  const proto::RanksReady& ready = sent[0].ranks_ready();
  EXPECT_EQ(ready.chunk_bytes(), 1048576u);
  EXPECT_EQ(ready.size(), 2u);
  ASSERT_EQ(ready.ranks_size(), 2);
  EXPECT_EQ(ready.ranks(0), 0u);
  EXPECT_EQ(ready.pids(1), 101);
}

TEST_F(ExecutorCoreTest, TheRanksFusionThresholdsAreTold) {
  session::Hello first = MakeHello(0, 2, 0, 2);
  first.fusion_threshold = 0;
  core_.OnClient(1, first, 1000);
  session::Hello bad = MakeHello(1, 2, 1, 2);
  bad.fusion_threshold = -2;
  core_.OnClient(2, bad, 1001);
  EXPECT_EQ(Take<RefuseClient>().at(0).client, 2u);
  core_.OnClient(3, MakeHello(1, 2, 1, 2), 1001);
  const auto sent = TakeSent();
  ASSERT_EQ(sent.size(), 1u);
  const auto& ready = sent.back().ranks_ready();
  ASSERT_EQ(ready.fusion_thresholds_size(), 2);
  EXPECT_EQ(ready.fusion_thresholds(0), 0);
  EXPECT_EQ(ready.fusion_thresholds(1), -1);
}

TEST_F(ExecutorCoreTest, OneNodeNeedsNoBackend) {
  Join(2);
  Drop();
  core_.OnCoordinator(StartMessage(4, 1));
  const auto created = Take<CreateBoard>();
  ASSERT_EQ(created.size(), 1u);
  EXPECT_EQ(created[0].config.epoch, 4u);
  EXPECT_EQ(created[0].config.nodes, 1u);
  EXPECT_EQ(created[0].config.global_rank[1], 1);
  EXPECT_EQ(created[0].clients, (std::vector<ClientId>{1, 2}));
  core_.OnBoardCreated(absl::OkStatus());
  EXPECT_EQ(Slot("x").negotiated, 0u);
  // Ranks run their operations themselves: nothing is reported.
  core_.OnReadySlot(Ready(0, 1, Kind::kAllreduce, 8, 8));
  EXPECT_TRUE(TakeSent().empty());
}

TEST_F(ExecutorCoreTest, WrongHelloIsRefusedAndTouchesNobodyElse) {
  core_.OnClient(1, MakeHello(0, 2, 0, 2), 0);
  core_.OnClient(2, MakeHello(1, 3, 1, 2), 0);
  core_.OnClient(3, MakeHello(0, 2, 1, 2), 0);
  core_.OnClient(4, MakeHello(1, 2, 0, 2), 0);
  core_.OnClient(5, MakeHello(1, 2, 5, 2), 0);
  core_.OnClient(6, MakeHello(7, 2, 1, 2), 0);
  core_.OnClient(7, MakeHello(1, 0, 1, 2), 0);
  const auto refused = Take<RefuseClient>();
  ASSERT_EQ(refused.size(), 6u);
  EXPECT_EQ(refused[0].text,
            "rank 1 says that the job has 3 ranks, but rank 0 says 2; give all "
            "ranks of the job the same MAYPOLE_SIZE");
  EXPECT_EQ(refused[1].text,
            "rank 0 is connected already (pid 100); was the job started twice "
            "with one MAYPOLE_JOB?");
  EXPECT_EQ(refused[2].text,
            "rank 1 has local rank 0, which is also that of rank 0; each rank "
            "of a node needs its own MAYPOLE_LOCAL_RANK");
  EXPECT_EQ(refused[4].client, 6u);
  core_.OnClient(8, MakeHello(1, 2, 1, 2), 0);
  EXPECT_EQ(TakeSent().size(), 1u);
}

// The missing ranks connect to the agent that is started in its place, so the
// other ranks must do so as well.
TEST_F(ExecutorCoreTest, WithoutItsAgentAnIncompleteStartIsLeftToAnotherOne) {
  core_.OnClient(1, MakeHello(0, 4, 0, 2), 0);
  Drop();
  core_.OnSupervisorGone();
  const auto closed = Take<CloseClient>();
  ASSERT_EQ(closed.size(), 1u);
  EXPECT_EQ(closed[0].client, 1u);
  EXPECT_EQ(core_.clients(), 0u);
}

TEST_F(ExecutorCoreTest, TheCoordinatorIsToldThatNobodyWaitsWithoutAnAgent) {
  core_.OnClient(1, MakeHello(0, 4, 0, 2), 0);
  Drop();
  core_.OnSupervisorGone();
  const auto sent = TakeSent();
  ASSERT_EQ(sent.size(), 1u);
  ASSERT_TRUE(sent[0].has_ranks_waiting());
  EXPECT_EQ(sent[0].ranks_waiting().ranks_size(), 0);
}

// Rank 1 has left the epoch, and waits for the next one; rank 0 goes on.
class NextStartTest : public ExecutorCoreTest {
 protected:
  NextStartTest() {
    StartTwoNodes();
    core_.OnGoodbye(2, 0);
    core_.OnClient(3, MakeHello(1, 4, 1, 2), 0);
    Drop();
  }
  void ExpectTheEpochGoesOn() {
    for (const proto::ExecutorMessage& m : TakeSent()) {
      EXPECT_FALSE(m.has_ranks_waiting()) << "the coordinator ends the epoch";
    }
  }
};

TEST_F(NextStartTest, TheDeathOfTheAgentDoesNotEndTheEpoch) {
  core_.OnSupervisorGone();
  EXPECT_EQ(Take<CloseClient>().at(0).client, 3u);
  ExpectTheEpochGoesOn();
}

TEST_F(NextStartTest, AStartThatTakesTooLongDoesNotEndTheEpoch) {
  core_.OnTime(1);
  core_.OnTime(200000);
  EXPECT_EQ(Take<RefuseClient>().at(0).client, 3u);
  ExpectTheEpochGoesOn();
}

TEST_F(ExecutorCoreTest, WithoutItsAgentACompleteStartGoesOn) {
  Join(2);
  Drop();
  core_.OnSupervisorGone();
  EXPECT_TRUE(Take<CloseClient>().empty());
  core_.OnCoordinator(StartMessage(4, 1));
  EXPECT_EQ(Take<CreateBoard>().size(), 1u);
}

TEST_F(ExecutorCoreTest, MissingLocalRankIsNamedAfterTheStartTimeout) {
  core_.OnClient(1, MakeHello(0, 2, 0, 2), 0);
  core_.OnTime(120999);  // the coordinator goes first
  EXPECT_TRUE(Take<RefuseClient>().empty());
  core_.OnTime(121000);
  const auto refused = Take<RefuseClient>();
  ASSERT_EQ(refused.size(), 1u);
  EXPECT_EQ(refused[0].text,
            "job 'job' cannot start: local rank 1 of 2 has not called init() "
            "on node n0 (host hosta) within 120 s");
  core_.OnClientGone(1, "its connection closed");
  EXPECT_TRUE(TakeSent().empty());  // nobody has died
}

TEST_F(ExecutorCoreTest, TheMostImpatientRankSaysHowLongAStartMayTake) {
  session::Hello hello = MakeHello(0, 3, 0, 3);
  hello.start_timeout_ms = 300000;
  core_.OnClient(1, hello, 0);
  EXPECT_EQ(TakeSent().at(0).ranks_waiting().start_timeout_ms(), 300000);
  core_.OnTime(299000);  // longer than --start_timeout
  hello = MakeHello(1, 3, 1, 3);
  hello.start_timeout_ms = 299500;
  core_.OnClient(2, hello, 0);
  EXPECT_EQ(TakeSent().at(0).ranks_waiting().start_timeout_ms(), 299500);
  core_.OnTime(300499);
  EXPECT_TRUE(Take<RefuseClient>().empty());
  core_.OnTime(300500);
  const auto refused = Take<RefuseClient>();
  ASSERT_EQ(refused.size(), 2u);
  EXPECT_EQ(refused[1].text,
            "job 'job' cannot start: local rank 2 of 3 has not called init() "
            "on node n0 (host hosta) within 299.5 s");
}

TEST_F(ExecutorCoreTest, AnAbsurdStartTimeoutIsRefused) {
  for (const int64_t ms : {int64_t{-2}, int64_t{0}, int64_t{86400001}}) {
    session::Hello hello = MakeHello(0, 2, 0, 2);
    hello.start_timeout_ms = ms;
    core_.OnClient(1, hello, 0);
    EXPECT_EQ(Take<RefuseClient>().size(), 1u) << ms;
  }
}

TEST_F(ExecutorCoreTest, TheCoordinatorIsToldWhoWaits) {
  core_.OnClient(1, MakeHello(2, 4, 0, 2), 0);
  auto sent = TakeSent();
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_EQ(sent[0].ranks_waiting().start_timeout_ms(), 0);
  EXPECT_EQ(sent[0].ranks_waiting().size(), 4u);
  EXPECT_EQ(sent[0].ranks_waiting().local_size(), 2u);
  ASSERT_EQ(sent[0].ranks_waiting().ranks_size(), 1);
  EXPECT_EQ(sent[0].ranks_waiting().ranks(0), 2u);
  core_.OnClientGone(1, "its connection closed");
  sent = TakeSent();
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_TRUE(sent[0].has_ranks_waiting());
  EXPECT_EQ(sent[0].ranks_waiting().ranks_size(), 0);
}

TEST_F(ExecutorCoreTest,
       TheCoordinatorsSentenceReachesRanksThatWaitForLocalOnes) {
  core_.OnClient(1, MakeHello(0, 4, 0, 2), 0);
  Drop();
  core_.OnCoordinator(EndMessage(0, "rank 1 of 4 has not called init()"));
  const auto refused = Take<RefuseClient>();
  ASSERT_EQ(refused.size(), 1u);
  EXPECT_EQ(refused[0].client, 1u);
  EXPECT_EQ(refused[0].text, "rank 1 of 4 has not called init()");
  core_.OnClientGone(1, "its connection closed");
  EXPECT_TRUE(TakeSent().empty());
  Join(4);
  EXPECT_TRUE(TakeSent().back().has_ranks_ready());
}

TEST_F(ExecutorCoreTest, AStartThatTimedOutWhileTheLastRankCameIsGivenUp) {
  Join(4);
  Drop();
  core_.OnCoordinator(EndMessage(0, "rank 1 of 4 has not called init()"));
  const auto sent = TakeSent();
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_TRUE(sent[0].has_ranks_waiting());
  EXPECT_EQ(sent[0].ranks_waiting().ranks_size(), 0);
}

TEST_F(ExecutorCoreTest, FailedStartIsToldToAllLocalRanks) {
  Join(4);
  Drop();
  core_.OnCoordinator(EndMessage(0, "ranks 2,3 did not come"));
  const auto refused = Take<RefuseClient>();
  ASSERT_EQ(refused.size(), 2u);
  EXPECT_EQ(refused[1].text, "ranks 2,3 did not come");
  // They may try again.
  Join(4);
  EXPECT_TRUE(TakeSent().back().has_ranks_ready());
}

// The reason goes to ranks, whose errors always have a text.
TEST_F(ExecutorCoreTest, AnEndWithoutAReasonIsSaidToBeOne) {
  Join(4);
  Drop();
  core_.OnCoordinator(EndMessage(0, ""));
  const auto refused = Take<RefuseClient>();
  ASSERT_EQ(refused.size(), 2u);
  EXPECT_EQ(refused[1].text,
            "the coordinator ended the epoch without giving a reason");
  StartOneNode(3);
  core_.OnCoordinator(EndMessage(3, ""));
  const auto aborted = Take<AbortBoard>();
  ASSERT_EQ(aborted.size(), 1u);
  EXPECT_EQ(aborted[0].text,
            "the coordinator ended the epoch without giving a reason");
}

TEST_F(ExecutorCoreTest, RankThatDiesWhileStartingFailsTheStart) {
  Join(4);
  Drop();
  core_.OnClientGone(2, "its connection closed without shutdown");
  auto actions = core_.TakeActions();
  const auto* sent = std::get_if<SendToCoordinator>(&actions.at(0));
  ASSERT_NE(sent, nullptr);
  EXPECT_EQ(sent->message.epoch(), 0u);
  EXPECT_FALSE(sent->message.rank_gone().clean());
  EXPECT_EQ(sent->message.rank_gone().how(),
            "its connection closed without shutdown");
  const auto* refused = std::get_if<RefuseClient>(&actions.at(1));
  ASSERT_NE(refused, nullptr);
  EXPECT_EQ(refused->client, 1u);
  EXPECT_EQ(refused->text,
            "the job cannot start: rank 1 (pid 101, host hosta, node n0) died: "
            "its connection closed without shutdown");
  // The start crossed our message, so it is no longer for these ranks.
  core_.OnCoordinator(StartMessage(1, 2));
  EXPECT_TRUE(core_.TakeActions().empty());
}

TEST_F(ExecutorCoreTest, EpochStartThatDoesNotFitIsRefused) {
  Join(4);
  Drop();
  auto m = StartMessage(1, 2);
  m.mutable_epoch_start()->set_node_index(1);
  core_.OnCoordinator(m);
  EXPECT_EQ(Take<RefuseClient>().size(), 2u);
  Join(4);
  Drop();
  m.mutable_epoch_start()->set_node_index(77);
  core_.OnCoordinator(m);
  EXPECT_EQ(Take<RefuseClient>().size(), 2u);
  Join(4);
  Drop();
  m = StartMessage(1, 2);
  m.mutable_epoch_start()->clear_chunk_bytes();
  core_.OnCoordinator(m);
  EXPECT_EQ(Take<RefuseClient>().size(), 2u);
}

TEST_F(ExecutorCoreTest, BackendThatCannotConnectFailsTheStart) {
  Join(4);
  core_.OnCoordinator(StartMessage(1, 2));
  Drop();
  core_.OnBackendPrepared(absl::UnavailableError("no such address"));
  auto sent = core_.TakeActions();
  EXPECT_EQ(std::get<SendToCoordinator>(sent.at(0)).message.failed().message(),
            "no such address");
  EXPECT_EQ(std::get<RefuseClient>(sent.at(1)).text, "no such address");
}

// A rank of another node may run, and die, before this node has its board.
TEST_F(ExecutorCoreTest, NobodyIsWelcomeWhenTheStartFailsWhileTheBoardIsMade) {
  Join(4);
  core_.OnCoordinator(StartMessage(1, 2));
  core_.OnBackendPrepared(std::vector<std::string>{"address"});
  proto::CoordinatorMessage endpoints;
  endpoints.set_epoch(1);
  endpoints.mutable_endpoints();
  core_.OnCoordinator(endpoints);
  core_.OnBackendConnected(absl::OkStatus());
  Drop();
  core_.OnCoordinator(EndMessage(1, "rank 2 was lost"));
  EXPECT_FALSE(core_.OnBoardCreated(absl::OkStatus()));
  const auto refused = Take<RefuseClient>();
  ASSERT_EQ(refused.size(), 2u);
  EXPECT_EQ(refused[0].text, "rank 2 was lost");
}

TEST_F(ExecutorCoreTest, WhatComesWhileStartingIsDoneWhenTheBoardIsThere) {
  Join(4);
  core_.OnCoordinator(StartMessage(1, 2));
  core_.OnBackendPrepared(std::vector<std::string>{"", "a"});
  proto::CoordinatorMessage failed;
  failed.set_epoch(1);
  failed.mutable_operation_failed()->set_id(1);
  failed.mutable_operation_failed()->set_generation(1);
  failed.mutable_operation_failed()->set_code(9);
  failed.mutable_operation_failed()->set_message("rank 2 has left");
  failed.mutable_operation_failed()->mutable_identity()->set_name("x");
  core_.OnCoordinator(failed);
  proto::CoordinatorMessage m;
  m.set_epoch(1);
  m.mutable_endpoints()->add_addresses("");
  m.mutable_endpoints()->add_addresses("b");
  core_.OnCoordinator(m);
  proto::CoordinatorMessage left;
  left.set_epoch(1);
  left.mutable_rank_left()->set_rank(2);
  left.mutable_rank_left()->set_message("rank 2 has left");
  core_.OnCoordinator(left);
  core_.OnBackendConnected(absl::OkStatus());
  Drop();
  core_.OnBoardCreated(absl::OkStatus());
  const std::vector<Action> actions = core_.TakeActions();
  ASSERT_EQ(actions.size(), 3u);  // AllotSlot first
  ASSERT_TRUE(std::holds_alternative<FailSlot>(actions[1]));
  EXPECT_EQ(std::get<FailSlot>(actions[1]).text, "rank 2 has left");
  ASSERT_TRUE(std::holds_alternative<MarkLeft>(actions[2]));
  EXPECT_EQ(std::get<MarkLeft>(actions[2]).text, "rank 2 has left");
}

TEST_F(ExecutorCoreTest, WhatCameForAStartThatFailedIsForgotten) {
  Join(4);
  core_.OnCoordinator(StartMessage(1, 2));
  proto::CoordinatorMessage left;
  left.set_epoch(1);
  left.mutable_rank_left()->set_rank(2);
  left.mutable_rank_left()->set_message("rank 2 has left");
  core_.OnCoordinator(left);
  core_.OnCoordinator(EndMessage(1, "node n1 was lost"));
  StartOneNode(2);
  EXPECT_TRUE(Take<MarkLeft>().empty());
}

}  // namespace
}  // namespace maypole::worker
