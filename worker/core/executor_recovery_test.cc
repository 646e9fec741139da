// A coordinator that cannot be reached, or that has replaced another.
#include "gtest/gtest.h"
#include "worker/core/testing/core_testing.h"

namespace maypole::worker {
namespace {

class ExecutorRecoveryTest : public ExecutorCoreTest {
 protected:
  // Both ranks submit the operation with 8 rows.
  void Submit(uint32_t slot, uint32_t generation) {
    core_.OnReadySlot(Ready(slot, generation, Kind::kAllreduce, 8, 8));
  }
  void Execute(uint64_t number, uint32_t id, const std::string& name,
               uint32_t generation, uint64_t settled = 0) {
    proto::CoordinatorMessage m;
    proto::Run* run = AddRun(&m, number);
    run->set_decision(number);
    AddOperation(run, id, name, Kind::kAllreduce, generation);
    m.set_settled(settled);
    core_.OnCoordinator(m);
  }
  void Recover(uint64_t epoch) {
    proto::CoordinatorMessage m;
    m.set_epoch(epoch);
    m.mutable_recovered();
    core_.OnCoordinator(m);
  }
  proto::NodeState TakeState() {
    const auto sent = TakeSent();
    EXPECT_EQ(sent.size(), 1u);
    return sent.empty() ? proto::NodeState() : sent[0].node_state();
  }
};

TEST_F(ExecutorRecoveryTest, TellsWhatItKnowsThenWaitsThenReportsAnew) {
  StartTwoNodes();
  const uint32_t x = Slot("x").slot, y = Slot("y").slot;
  Submit(x, 1);
  Execute(1, 7, "x", 1);
  Submit(x, 2);
  Execute(2, 7, "", 2, /*settled=*/1);
  MakeSet(1, 1, {0, 2});
  Submit(x, 3);
  Submit(y, 1);
  Drop();
  core_.OnCoordinatorReplaced();
  const proto::NodeState state = TakeState();
  EXPECT_EQ(state.start().epoch(), 1u);
  EXPECT_EQ(state.start().nodes_size(), 2);
  EXPECT_FALSE(state.has_end());
  EXPECT_TRUE(state.connected());
  EXPECT_EQ(state.last_decision(), 2u);
  ASSERT_EQ(state.decisions_size(), 1) << "all nodes have the first one";
  EXPECT_EQ(state.decisions(0).run().operations(0).generation(), 2u);
  EXPECT_EQ(state.last_run(), 2u);
  ASSERT_EQ(state.sets_size(), 1);
  EXPECT_EQ(state.sets(0).ranks(1), 2u);
  EXPECT_EQ(state.sets_answered(), 1u);

  Submit(Slot("z").slot, 1);
  EXPECT_TRUE(TakeSent().empty()) << "the coordinator does not know the epoch";
  Recover(1);
  const auto sent = TakeSent();
  ASSERT_EQ(sent.size(), 1u);
  const proto::Presence& presence = sent[0].presence();
  ASSERT_EQ(presence.operations_size(), 3);
  // Reported by name, and counted from the last answered operation.
  EXPECT_EQ(presence.operations(0).id(), 0u);
  EXPECT_EQ(presence.operations(0).identity().name(), "x");
  for (const proto::PresentOperation& op : presence.operations()) {
    EXPECT_EQ(op.generation(), 1u);
  }
}

TEST_F(ExecutorRecoveryTest, RequestsJoinsAndDeparturesAreSaidAgain) {
  StartTwoNodes();
  auto request = session::Make<session::SetRequest>();
  request.number = 1;
  request.members[0] = 0b101;
  core_.OnSetRequest(1, request);
  request.by_members = 1;
  request.members[0] = 0b1001;
  core_.OnSetRequest(1, request);
  auto join = session::Make<session::JoinRequest>();
  join.number = 1;
  core_.OnJoinRequest(1, join);
  join.settled = 1;
  core_.OnJoinRequest(1, join);
  core_.OnGoodbye(2, 0);
  core_.OnCoordinatorReplaced();
  Drop();
  Recover(1);
  const auto sent = TakeSent();
  ASSERT_EQ(sent.size(), 5u);
  EXPECT_EQ(sent[0].rank_gone().rank(), 1u);
  EXPECT_TRUE(sent[0].rank_gone().clean());
  EXPECT_EQ(sent[1].set_request().number(), 1u);
  EXPECT_EQ(sent[1].set_request().ranks(1), 2u);
  EXPECT_TRUE(sent[2].set_request().by_members());
  EXPECT_EQ(sent[2].set_request().ranks(1), 3u);
  EXPECT_FALSE(sent[3].join_state().settled());
  EXPECT_TRUE(sent[4].join_state().settled());
}

TEST_F(ExecutorRecoveryTest, AFailureMeanwhileIsTheLastThingSaid) {
  StartTwoNodes();
  core_.OnCoordinatorReplaced();
  Drop();
  core_.OnClientGone(1, "its connection closed");
  EXPECT_TRUE(TakeSent().empty());
  Recover(1);
  const auto sent = TakeSent();
  ASSERT_GE(sent.size(), 2u);
  EXPECT_EQ(sent[0].rank_gone().rank(), 0u);
  EXPECT_TRUE(sent[1].has_failed());
}

TEST_F(ExecutorRecoveryTest, AnEpochThatFailedIsToldWithItsReason) {
  StartTwoNodes();
  core_.OnCoordinator(EndMessage(1, "rank 3 died"));
  Drop();
  core_.OnCoordinatorReplaced();
  const proto::NodeState state = TakeState();
  EXPECT_EQ(state.start().epoch(), 1u);
  EXPECT_EQ(state.end().message(), "rank 3 died");
}

TEST_F(ExecutorRecoveryTest, AStartGoesOn) {
  Join(4);
  Drop();
  core_.OnCoordinatorReplaced();
  EXPECT_FALSE(TakeState().has_start());
  core_.OnCoordinator(StartMessage(1, 2));
  Drop();
  Recover(1);
  EXPECT_TRUE(TakeSent().empty()) << "its ranks are ready no more";
  core_.OnBackendPrepared(std::vector<std::string>{"", "a"});
  EXPECT_TRUE(TakeSent().at(0).has_endpoint());
  // Once more, before the other nodes' Endpoint has come.
  core_.OnCoordinatorReplaced();
  EXPECT_FALSE(TakeState().connected());
  Recover(1);
  EXPECT_TRUE(TakeSent().at(0).has_endpoint());
}

TEST_F(ExecutorRecoveryTest, RanksThatWaitForTheCoordinatorGiveUpAfterAMinute) {
  StartTwoNodes();
  const uint32_t x = Slot("x").slot;
  core_.OnCoordinatorAway(absl::UnavailableError("coordinator h:1 lost: gone"));
  core_.OnTime(1000);
  core_.OnTime(3'600'000);
  EXPECT_TRUE(Take<AbortBoard>().empty()) << "nobody waits for it";
  Submit(x, 1);
  core_.OnTime(3'600'000);
  core_.OnTime(3'659'000);
  EXPECT_TRUE(Take<AbortBoard>().empty());
  core_.OnTime(3'660'000);
  std::string text;
  bool closed = false;
  for (const Action& a : core_.TakeActions()) {
    if (const auto* abort = std::get_if<AbortBoard>(&a)) text = abort->text;
    closed = closed || std::holds_alternative<CloseLink>(a);
  }
  EXPECT_EQ(text, "coordinator h:1 lost: gone (waited for it for 60 s)");
  EXPECT_TRUE(closed);
}

TEST_F(ExecutorRecoveryTest, DoesNotEndBeforeTheNextCoordinatorHasItsReport) {
  StartTwoNodes();
  EXPECT_FALSE(core_.owes_report());
  core_.OnCoordinatorReplaced();
  core_.OnClientGone(1, "its connection closed");
  core_.OnGoodbye(2, 0);
  ASSERT_EQ(core_.clients(), 0u);
  EXPECT_FALSE(core_.drains());
  EXPECT_TRUE(core_.owes_report());
  core_.OnTime(1000);
  core_.OnTime(3'600'000);
  EXPECT_TRUE(Take<ReportIdle>().empty());
  Recover(1);
  EXPECT_EQ(TakeSent().at(0).rank_gone().rank(), 0u);
  EXPECT_FALSE(core_.owes_report());
  core_.OnTime(7'200'000);
  EXPECT_FALSE(Take<ReportIdle>().empty());
}

TEST_F(ExecutorRecoveryTest, ItsReportWaitsForACoordinatorForAMinute) {
  StartTwoNodes();
  core_.OnCoordinatorAway(absl::UnavailableError("gone"));
  core_.OnClientGone(1, "its connection closed");
  core_.OnGoodbye(2, 0);
  core_.OnTime(1000);
  core_.OnTime(60'000);
  EXPECT_TRUE(core_.owes_report());
  core_.OnTime(61'000);
  EXPECT_FALSE(core_.owes_report());
  EXPECT_EQ(Take<CloseLink>().size(), 1u);
}

TEST_F(ExecutorRecoveryTest, ACoordinatorThatIsBackInTimeIsForgiven) {
  StartTwoNodes();
  Submit(Slot("x").slot, 1);
  core_.OnCoordinatorAway(absl::UnavailableError("gone"));
  core_.OnTime(1000);
  core_.OnTime(50'000);
  core_.OnCoordinatorBack();
  core_.OnTime(100'000);
  core_.OnCoordinatorAway(absl::UnavailableError("gone"));
  core_.OnTime(101'000);
  core_.OnTime(150'000);
  EXPECT_TRUE(Take<AbortBoard>().empty());
}

TEST_F(ExecutorRecoveryTest, AScheduleThatOthersHaveIsRefused) {
  StartTwoNodes();
  core_.OnCoordinatorReplaced();
  Drop();
  proto::CoordinatorMessage m;
  m.set_epoch(1);
  m.mutable_schedule()->set_number(1);
  m.mutable_schedule()->set_length(2);
  m.mutable_schedule()->set_refuse(true);
  core_.OnCoordinator(m);
  const auto told = Take<SendToPeers>();
  ASSERT_EQ(told.size(), 1u);
  EXPECT_EQ(told[0].message.refusal().from(), 0u);
  EXPECT_EQ(told[0].message.refusal().why(), proto::SCHEDULE_COORDINATOR);
  Recover(1);
  EXPECT_TRUE(TakeSent().empty()) << "the other node has not refused";
  core_.OnPeerMessage(1, told[0].message);
  const auto sent = TakeSent();
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_EQ(sent[0].schedule_ended().why(), proto::SCHEDULE_COORDINATOR);
}

// The coordinator does not know a decision of the previous epoch that only this
// node has received, so it reuses the number.
TEST(DecisionLog, AnEpochsDecisionsAreKeptWhateverTheOneBeforeHad) {
  DecisionLog log;
  proto::CoordinatorMessage m;
  m.mutable_execute()->add_runs()->set_decision(3);
  log.BeginEpoch();
  log.Take(m);
  log.BeginEpoch();
  log.Take(m);
  proto::NodeState state;
  log.Write(&state);
  ASSERT_EQ(state.decisions_size(), 1);
  EXPECT_EQ(state.decisions(0).run().decision(), 3u);
  EXPECT_EQ(state.last_decision(), 3u);
}

}  // namespace
}  // namespace maypole::worker
