// The frozen tier, as an executor sees it.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "common/wire/signature_message.h"
#include "worker/core/limits.h"
#include "worker/core/testing/core_testing.h"

namespace maypole::worker {
namespace {

// Node n0 of two has operation 'a' (slot 0, id 11), and it has run once.
class ExecutorScheduleTest : public ExecutorCoreTest {
 protected:
  void SetUp() override {
    StartTwoNodes();
    Slot("a");
    core_.OnReadySlot(Ready(0, 1, Kind::kAllreduce, 8, 8));
    proto::CoordinatorMessage m;
    AddOperation(AddRun(&m, 1), 11, "a", Kind::kAllreduce, 1);
    core_.OnCoordinator(m);
    core_.OnPresenceAcknowledged();
    Drop();
  }
  void Begin(uint64_t number = 1) {
    proto::CoordinatorMessage m;
    m.set_epoch(1);
    m.mutable_schedule()->set_number(number);
    m.mutable_schedule()->set_length(1);
    proto::ScheduledOperation* op =
        m.mutable_schedule()->add_runs()->add_operations();
    op->set_id(11);
    WriteSignature(Ready(0, 1, Kind::kAllreduce, 8, 8).signatures[0],
                   op->mutable_signature());
    core_.OnCoordinator(m);
  }
  void PeerIsReady(uint64_t position) {
    proto::PeerMessage m;
    m.set_schedule(1);
    m.set_ready(position);
    core_.OnPeerMessage(1, m);
  }
  void PeerRefuses(uint64_t from) {
    proto::PeerMessage m;
    m.set_schedule(1);
    m.mutable_refusal()->set_from(from);
    m.mutable_refusal()->set_text("the peer's reason");
    core_.OnPeerMessage(1, m);
  }
  // What has happened since the last call.
  struct Done {
    std::vector<proto::PeerMessage> to_peers;
    std::vector<RunSpec> runs;
    std::vector<proto::ExecutorMessage> to_coordinator;
    std::vector<std::string> aborts;
  };
  Done TakeDone() {
    Done done;
    for (Action& a : core_.TakeActions()) {
      if (auto* p = std::get_if<SendToPeers>(&a)) {
        EXPECT_EQ(p->nodes, std::vector<uint32_t>{1});
        done.to_peers.push_back(p->message);
      } else if (auto* r = std::get_if<IssueRun>(&a)) {
        done.runs.push_back(r->run);
      } else if (auto* c = std::get_if<SendToCoordinator>(&a)) {
        done.to_coordinator.push_back(c->message);
      } else if (auto* e = std::get_if<AbortBoard>(&a)) {
        done.aborts.push_back(e->text);
      }
    }
    return done;
  }
};

TEST_F(ExecutorScheduleTest, RunsWithoutTheCoordinator) {
  Begin();
  for (uint32_t g = 2; g <= 100; ++g) {
    core_.OnReadySlot(Ready(0, g, Kind::kAllreduce, 8, 8));
    Done done = TakeDone();
    ASSERT_EQ(done.to_peers.size(), 1u);
    EXPECT_EQ(done.to_peers[0].ready(), g - 2);
    EXPECT_TRUE(done.runs.empty());
    PeerIsReady(g - 2);
    done = TakeDone();
    ASSERT_EQ(done.runs.size(), 1u);
    EXPECT_EQ(done.runs[0].operations[0].slot, 0u);
    EXPECT_EQ(done.runs[0].operations[0].generation, g);
    EXPECT_EQ(done.runs[0].tensor_bytes, 32u);
    EXPECT_TRUE(done.to_coordinator.empty());
    core_.OnRunFree(done.runs[0].record);
  }
}

TEST_F(ExecutorScheduleTest, InputsOfSmallRunsTravelWithTheMessage) {
  Begin();
  const auto wanted = Take<WantCopies>();
  ASSERT_EQ(wanted.size(), 1u);
  EXPECT_EQ(wanted[0].slot, 0u);
  EXPECT_TRUE(wanted[0].wanted);
  ReadySlot ready = Ready(0, 2, Kind::kAllreduce, 8, 8);
  ready.copied = true;
  core_.OnReadySlot(ready);
  const auto sent = Take<SendToPeers>();
  ASSERT_EQ(sent.size(), 1u);
  ASSERT_EQ(sent[0].operations.size(), 1u);
  EXPECT_EQ(sent[0].operations[0].slot, 0u);
  EXPECT_EQ(sent[0].operations[0].generation, 2u);
  EXPECT_EQ(sent[0].operations[0].bytes(), 32u);
  EXPECT_EQ(sent[0].operations[0].finish.over_nodes.divisor, 4);  // ranks
  EXPECT_EQ(sent[0].operations[0].finish.over_nodes.scale, 0.5);
  proto::PeerMessage m;
  m.set_schedule(1);
  m.set_ready(0);
  m.set_inputs(std::string(32, 'x'));
  core_.OnPeerMessage(1, m);
  const auto finished = Take<FinishSmall>();
  ASSERT_EQ(finished.size(), 1u);
  EXPECT_EQ(finished[0].operations[0].generation, 2u);
  EXPECT_EQ(finished[0].inputs,
            (std::vector<std::string>{"", std::string(32, 'x')}));
  // The operation is over, so the ranks may submit it again. At the schedule's
  // end it is pending, and is reported.
  core_.OnReadySlot(Ready(0, 3, Kind::kAllreduce, 8, 8));
  EXPECT_EQ(TakeDone().to_peers.at(0).ready(), 1u);
  PeerRefuses(1);
  EXPECT_EQ(
      TakeDone().to_coordinator.at(1).presence().operations(0).generation(),
      3u);
}

TEST_F(ExecutorScheduleTest, InputsOfAnotherLengthEndTheEpoch) {
  Begin();
  ReadySlot ready = Ready(0, 2, Kind::kAllreduce, 8, 8);
  ready.copied = true;
  core_.OnReadySlot(ready);
  proto::PeerMessage m;
  m.set_schedule(1);
  m.set_ready(0);
  m.set_inputs("");
  core_.OnPeerMessage(1, m);
  EXPECT_EQ(TakeDone().aborts.size(), 1u);
}

TEST_F(ExecutorScheduleTest, WhatWasReportedBeforeIsScheduled) {
  core_.OnReadySlot(Ready(0, 2, Kind::kAllreduce, 8, 8));
  EXPECT_EQ(TakeDone().to_coordinator.size(), 1u);
  Begin();
  PeerIsReady(0);
  const Done done = TakeDone();
  ASSERT_EQ(done.runs.size(), 1u);
  EXPECT_EQ(done.runs[0].operations[0].generation, 2u);
}

TEST_F(ExecutorScheduleTest, AnotherOperationEndsItAndAllIsReported) {
  Begin();
  Slot("b");
  core_.OnReadySlot(Ready(0, 2, Kind::kAllreduce, 8, 8));
  Drop();
  core_.OnReadySlot(Ready(1, 1, Kind::kAllreduce, 8, 8));
  Done done = TakeDone();
  ASSERT_EQ(done.to_peers.size(), 1u);
  EXPECT_EQ(done.to_peers[0].refusal().from(), 1u);
  EXPECT_EQ(done.to_peers[0].refusal().text(), "allreduce 'b' (node n0)");
  EXPECT_TRUE(done.to_coordinator.empty());
  // This node is ready for the run, but the peer is not: the run is reported.
  PeerRefuses(0);
  done = TakeDone();
  EXPECT_TRUE(done.runs.empty());
  ASSERT_EQ(done.to_coordinator.size(), 2u);
  const proto::ScheduleEnded& ended = done.to_coordinator[0].schedule_ended();
  EXPECT_EQ(ended.number(), 1u);
  EXPECT_EQ(ended.runs(), 0u);
  EXPECT_EQ(ended.why(), proto::SCHEDULE_OTHER_OPERATION);
  EXPECT_EQ(ended.text(), "allreduce 'b' (node n0)");
  const proto::Presence& presence = done.to_coordinator[1].presence();
  ASSERT_EQ(presence.operations_size(), 2);
  EXPECT_EQ(presence.operations(0).id(), 11u);
  EXPECT_EQ(presence.operations(0).generation(), 2u);
  EXPECT_EQ(presence.operations(1).identity().name(), "b");
}

TEST_F(ExecutorScheduleTest, AnotherShapeEndsIt) {
  Begin();
  core_.OnReadySlot(Ready(0, 2, Kind::kAllreduce, 9, 9));
  PeerRefuses(0);
  const Done done = TakeDone();
  EXPECT_EQ(done.to_peers[0].refusal().why(),
            proto::SCHEDULE_OPERATION_CHANGED);
  ASSERT_EQ(done.to_coordinator.size(), 2u);
  EXPECT_EQ(
      done.to_coordinator[1].presence().operations(0).signatures(0).shape(0),
      9);
}

TEST_F(ExecutorScheduleTest, ARankThatWaitsTooLongEndsIt) {
  Begin();
  ReadySlot ready = Ready(0, 2, Kind::kAllreduce, 8, 8);
  core_.OnReadySlot(ready);
  EXPECT_EQ(core_.WaitMs(), -1);
  core_.OnTime(1000);
  ready.urgency = Urgency::kAwaited;
  core_.OnReadySlot(ready);
  EXPECT_EQ(core_.WaitMs(), kScheduleLateMs);
  Drop();
  core_.OnTime(1000 + kScheduleLateMs);
  Done done = TakeDone();
  ASSERT_EQ(done.to_peers.size(), 1u);
  EXPECT_EQ(done.to_peers[0].refusal().why(), proto::SCHEDULE_LATE);
  EXPECT_EQ(done.to_peers[0].refusal().text(),
            "a rank has waited 100 ms for allreduce 'a' (node n0)");
  PeerRefuses(0);
  done = TakeDone();
  ASSERT_EQ(done.to_coordinator.size(), 2u);
  EXPECT_EQ(done.to_coordinator[1].presence().operations(0).urgency(), 1u);
}

TEST_F(ExecutorScheduleTest, ADepartureEndsIt) {
  Begin();
  LeaveElsewhere();
  const Done done = TakeDone();
  ASSERT_EQ(done.to_peers.size(), 1u);
  EXPECT_EQ(done.to_peers[0].refusal().why(), proto::SCHEDULE_RANK_LEFT);
}

TEST_F(ExecutorScheduleTest, AScheduleOfUnknownOperationsEndsTheEpoch) {
  proto::CoordinatorMessage m;
  m.set_epoch(1);
  m.mutable_schedule()->set_number(1);
  m.mutable_schedule()->set_length(1);
  m.mutable_schedule()->add_runs()->add_operations()->set_id(99);
  core_.OnCoordinator(m);
  const Done done = TakeDone();
  ASSERT_EQ(done.aborts.size(), 1u);
  EXPECT_NE(done.aborts[0].find("operation 99"), std::string::npos);
}

TEST_F(ExecutorScheduleTest, ASecondScheduleAtATimeEndsTheEpoch) {
  Begin();
  Begin(2);
  EXPECT_EQ(TakeDone().aborts.size(), 1u);
}

}  // namespace
}  // namespace maypole::worker
