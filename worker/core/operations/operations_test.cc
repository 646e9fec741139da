// From arrivals of ranks to runs on the board.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "worker/core/testing/core_testing.h"

namespace maypole::worker {
namespace {

TEST_F(ExecutorCoreTest, PresenceIsBatchedWhileOneIsUnacknowledged) {
  StartTwoNodes();
  for (const char* name : {"a", "b", "c"}) {
    EXPECT_EQ(Slot(name).negotiated, 1u);
  }
  core_.OnReadySlot(Ready(0, 1, Kind::kAllreduce, 8, 8));
  auto sent = TakeSent();
  ASSERT_EQ(sent.size(), 1u);
  const auto& op = sent[0].presence().operations(0);
  EXPECT_EQ(op.identity().name(), "a");
  EXPECT_EQ(op.generation(), 1u);
  ASSERT_EQ(op.signatures_size(), 1);
  EXPECT_EQ(op.signatures(0).ranks_size(), 2);
  core_.OnReadySlot(Ready(1, 1, Kind::kAllreduce, 8, 8));
  core_.OnReadySlot(Ready(2, 1, Kind::kAllreduce, 8, 9));
  core_.OnReadySlot(Ready(2, 1, Kind::kAllreduce, 8, 9));  // the bit came twice
  EXPECT_TRUE(TakeSent().empty());
  core_.OnPresenceAcknowledged();
  sent = TakeSent();
  ASSERT_EQ(sent.size(), 1u);
  ASSERT_EQ(sent[0].presence().operations_size(), 2);
  // Ranks whose signatures differ form separate groups.
  EXPECT_EQ(sent[0].presence().operations(1).signatures_size(), 2);
  EXPECT_EQ(sent[0].presence().operations(1).signatures(1).ranks(0), 1u);
  core_.OnPresenceAcknowledged();
  EXPECT_TRUE(TakeSent().empty());
}

// The coordinator knows the signature of a name's last run.
class AsBeforeTest : public ExecutorCoreTest {
 protected:
  void SetUp() override {
    StartTwoNodes();
    Slot("a");
    EXPECT_FALSE(Reported(1, 8).as_before()) << "it has no id";
    Run(1);
  }
  // The ranks submit an allreduce of `rows` (rank 1: `rows1`) rows. Returns the
  // report.
  proto::PresentOperation Reported(uint32_t generation, int64_t rows,
                                   int64_t rows1 = -1) {
    core_.OnReadySlot(
        Ready(0, generation, Kind::kAllreduce, rows, rows1 < 0 ? rows : rows1));
    const auto sent = TakeSent();
    core_.OnPresenceAcknowledged();
    EXPECT_EQ(sent.size(), 1u);
    const auto& op = sent.at(0).presence().operations(0);
    EXPECT_EQ(op.as_before(), op.signatures_size() == 0);
    return op;
  }
  void Run(uint32_t generation, uint32_t id = 11) {
    proto::CoordinatorMessage m;
    AddOperation(AddRun(&m, ++runs_), id, "a", Kind::kAllreduce, generation);
    core_.OnCoordinator(m);
    Drop();
  }
  uint64_t runs_ = 0;
};

TEST_F(AsBeforeTest, TheSameSignatureIsNotSentAgain) {
  const proto::PresentOperation op = Reported(2, 8);
  EXPECT_TRUE(op.as_before());
  EXPECT_EQ(op.id(), 11u);
  EXPECT_EQ(op.generation(), 2u);
  Run(2);
  EXPECT_TRUE(Reported(3, 8).as_before());
}

TEST_F(AsBeforeTest, AnotherSignatureIsSentOnce) {
  EXPECT_FALSE(Reported(2, 9).as_before());
  Run(2);
  EXPECT_TRUE(Reported(3, 9).as_before());
}

TEST_F(AsBeforeTest, WhatHasFailedIsNotRemembered) {
  EXPECT_FALSE(Reported(2, 9).as_before());
  proto::CoordinatorMessage m;
  m.set_epoch(1);
  m.mutable_operation_failed()->set_id(11);
  m.mutable_operation_failed()->set_generation(2);
  m.mutable_operation_failed()->set_code(9);
  core_.OnCoordinator(m);
  Drop();
  EXPECT_FALSE(Reported(3, 9).as_before()) << "the last run had 8 rows";
  core_.OnCoordinator([&] {
    m.mutable_operation_failed()->set_generation(3);
    return m;
  }());
  Drop();
  EXPECT_TRUE(Reported(4, 8).as_before());
}

TEST_F(AsBeforeTest, RanksThatDisagreeAreReportedInFull) {
  EXPECT_EQ(Reported(2, 8, 9).signatures_size(), 2);
}

TEST_F(AsBeforeTest, AForgottenNameIsReportedInFull) {
  proto::CoordinatorMessage m;
  m.set_epoch(1);
  m.mutable_names_retired()->add_ids(11);
  core_.OnCoordinator(m);
  Drop();
  EXPECT_FALSE(Reported(2, 8).as_before());
  Run(1, 12);  // counted anew
  EXPECT_TRUE(Reported(3, 8).as_before());
}

TEST_F(AsBeforeTest, AnotherCoordinatorLearnsTheSignatureAnew) {
  core_.OnCoordinatorReplaced();
  proto::CoordinatorMessage m;
  m.set_epoch(1);
  m.mutable_recovered();
  core_.OnCoordinator(m);
  Drop();
  EXPECT_FALSE(Reported(2, 8).as_before()) << "it has no id";
  Run(1);
  EXPECT_TRUE(Reported(3, 8).as_before());
}

TEST_F(ExecutorCoreTest, AWaitIsToldOncePerGeneration) {
  StartTwoNodes();
  Slot("a");
  Slot("b");
  core_.OnReadySlot(Ready(0, 1, Kind::kAllreduce, 8, 8));
  core_.OnPresenceAcknowledged();
  auto sent = TakeSent();
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_EQ(sent[0].presence().operations(0).urgency(), 0u);
  ReadySlot waited = Ready(0, 1, Kind::kAllreduce, 8, 8);
  waited.urgency = Urgency::kAwaited;
  core_.OnReadySlot(waited);
  core_.OnReadySlot(waited);
  sent = TakeSent();
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_EQ(sent[0].presence().operations_size(), 0);
  ASSERT_EQ(sent[0].presence().urgent_size(), 1);
  EXPECT_EQ(sent[0].presence().urgent(0).identity().name(), "a");
  EXPECT_EQ(sent[0].presence().urgent(0).generation(), 1u);
  // It waits for the acknowledgement like any report, with later ones.
  ReadySlot immediate = Ready(1, 1, Kind::kAllreduce, 8, 8);
  immediate.urgency = Urgency::kImmediate;
  core_.OnReadySlot(immediate);
  EXPECT_TRUE(TakeSent().empty());
  core_.OnPresenceAcknowledged();
  sent = TakeSent();
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_EQ(sent[0].presence().operations(0).urgency(), 2u);
  EXPECT_EQ(sent[0].presence().urgent_size(), 0);
  core_.OnPresenceAcknowledged();
  core_.OnReadySlot(immediate);
  EXPECT_TRUE(TakeSent().empty());
}

TEST_F(ExecutorCoreTest, AWaitForWhatRunsAlreadyIsNotTold) {
  StartTwoNodes();
  Slot("a");
  core_.OnReadySlot(Ready(0, 1, Kind::kAllreduce, 8, 8));
  core_.OnPresenceAcknowledged();
  proto::CoordinatorMessage m;
  AddOperation(AddRun(&m, 1), 11, "a", Kind::kAllreduce, 1);
  core_.OnCoordinator(m);
  Drop();
  ReadySlot waited = Ready(0, 1, Kind::kAllreduce, 8, 8);
  waited.urgency = Urgency::kAwaited;
  core_.OnReadySlot(waited);
  EXPECT_TRUE(TakeSent().empty());
  // For the next generation the wait is reported, now by id.
  core_.OnReadySlot(Ready(0, 2, Kind::kAllreduce, 8, 8));
  core_.OnPresenceAcknowledged();
  Drop();
  waited.generation = 2;
  core_.OnReadySlot(waited);
  EXPECT_EQ(TakeSent().at(0).presence().urgent(0).id(), 11u);
}

// The coordinator would treat this as a protocol violation.
TEST_F(ExecutorCoreTest, WhatHasNotEndedIsNotSubmittedAgain) {
  StartTwoNodes();
  Slot("a");
  core_.OnReadySlot(Ready(0, 1, Kind::kAllreduce, 8, 8));
  core_.OnPresenceAcknowledged();
  Drop();
  core_.OnReadySlot(Ready(0, 2, Kind::kAllreduce, 8, 8));
  const auto aborts = Take<AbortBoard>();
  ASSERT_EQ(aborts.size(), 1u);
  EXPECT_NE(aborts[0].text.find("allreduce 'a' (call 2) before call 1 "),
            std::string::npos)
      << aborts[0].text;
}

// A rank whose operation needs a rank that has left continues before the
// coordinator answers.
TEST_F(ExecutorCoreTest, AfterSomebodyHasLeftRanksDoNotWaitForTheAnswer) {
  StartTwoNodes();
  Slot("a");
  core_.OnReadySlot(Ready(0, 1, Kind::kAllreduce, 8, 8));
  core_.OnPresenceAcknowledged();
  proto::CoordinatorMessage m;
  m.set_epoch(1);
  m.mutable_rank_left()->set_rank(3);
  core_.OnCoordinator(m);
  Drop();
  core_.OnReadySlot(Ready(0, 2, Kind::kAllreduce, 8, 8));
  EXPECT_EQ(TakeSent().at(0).presence().operations(0).generation(), 2u);
}

// A message with other names would break the stream at the other end.
TEST_F(ExecutorCoreTest, NamesAreUtf8) {
  StartOneNode();
  const auto code = [&](const std::string& name) { return Slot(name).code; };
  for (const char* name : {"a",
                           "gr\xc3\xb6\xc3\x9f"
                           "e",
                           "\xe5\xb1\xa4", "\xf0\x9f\x8c\xb2"}) {
    EXPECT_EQ(code(name), 0u) << name;
  }
  for (const char* name :
       {"gr\xf6\xdf"
        "e",
        "\x80", "\xc3", "\xc0\x80", "\xed\xa0\x80", "\xe0\x80\x80",
        "\xf4\x90\x80\x80", "\xf0\x9f\x8c", "\xff"}) {
    EXPECT_EQ(code(name), static_cast<uint32_t>(Code::kInvalidArgument));
  }
}

TEST_F(ExecutorCoreTest, ExecuteBecomesAFusedRun) {
  StartTwoNodes();
  Slot("a");
  Slot("b");
  core_.OnReadySlot(Ready(0, 1, Kind::kAllreduce, 5, 5));
  core_.OnReadySlot(Ready(1, 1, Kind::kAllreduce, 100, 100));
  Drop();
  proto::CoordinatorMessage m;
  proto::Run* run = AddRun(&m, 1);
  AddOperation(run, 11, "b", Kind::kAllreduce, 1);
  AddOperation(run, 12, "a", Kind::kAllreduce, 1);
  core_.OnCoordinator(m);
  const auto issued = Take<IssueRun>();
  ASSERT_EQ(issued.size(), 1u);
  const RunSpec& spec = issued[0].run;
  EXPECT_EQ(spec.kind, Kind::kAllreduce);
  EXPECT_EQ(spec.dtype, DType::kFloat32);
  EXPECT_EQ(spec.finish.divisor, 4);
  EXPECT_EQ(spec.finish.scale, 0.5);
  EXPECT_EQ(spec.generation, 1u);
  ASSERT_EQ(spec.operations.size(), 2u);
  EXPECT_EQ(spec.operations[0].slot, 1u);
  EXPECT_EQ(spec.operations[1].slot, 0u);
  EXPECT_EQ(spec.operations[1].offset, 448u);  // 400 rounded up to 64
  EXPECT_EQ(spec.bytes, 448u + 20u);
  // From now on the id is known.
  core_.OnPresenceAcknowledged();  // of a
  core_.OnPresenceAcknowledged();  // of b, which followed it
  Drop();
  core_.OnReadySlot(Ready(0, 2, Kind::kAllreduce, 5, 5));
  const auto sent = TakeSent();
  EXPECT_EQ(sent.at(0).presence().operations(0).id(), 12u);
  EXPECT_FALSE(sent[0].presence().operations(0).has_identity());
}

TEST_F(ExecutorCoreTest, AllgatherSpaceIsByGlobalRank) {
  StartTwoNodes();
  Slot("g", Kind::kAllgather);
  core_.OnReadySlot(Ready(0, 1, Kind::kAllgather, 3, 0));
  EXPECT_EQ(TakeSent().at(0).presence().operations(0).first_dims(0), 3);
  proto::CoordinatorMessage m;
  proto::Run* run = AddRun(&m, 1);
  AddOperation(run, 1, "g", Kind::kAllgather, 1);
  for (int64_t d : {3, 0, 2, 5}) run->add_first_dims(d);
  core_.OnCoordinator(m);
  const auto issued = Take<IssueRun>();
  ASSERT_EQ(issued.size(), 1u);
  EXPECT_EQ(issued[0].run.bytes, 40u);
  EXPECT_EQ(issued[0].run.first_dims, (std::vector<int64_t>{3, 0, 2, 5}));
  EXPECT_EQ(
      issued[0].run.blocks,
      (std::vector<NodeBlock>{{0, kAllNodes, 0, 12}, {1, kAllNodes, 12, 40}}));
}

TEST_F(ExecutorCoreTest, BroadcastBelongsToTheRootsNodeAndBarrierHasNoBytes) {
  StartTwoNodes();
  Slot("b", Kind::kBroadcast);
  Slot("w", Kind::kBarrier);
  core_.OnReadySlot(Ready(0, 1, Kind::kBroadcast, 4, 4));
  core_.OnReadySlot(Ready(1, 1, Kind::kBarrier, 0, 0));
  Drop();
  proto::CoordinatorMessage m;
  AddOperation(AddRun(&m, 1), 1, "b", Kind::kBroadcast, 1);
  AddOperation(AddRun(&m, 2), 2, "w", Kind::kBarrier, 1);
  core_.OnCoordinator(m);
  const auto issued = Take<IssueRun>();
  ASSERT_EQ(issued.size(), 2u);
  EXPECT_EQ(issued[0].run.blocks,
            (std::vector<NodeBlock>{{1, kAllNodes, 0, 16}}));
  EXPECT_EQ(issued[1].run.bytes, 0u);
}

TEST_F(ExecutorCoreTest, ExecuteThatDoesNotFitEndsTheEpoch) {
  StartTwoNodes();
  proto::CoordinatorMessage m;
  AddOperation(AddRun(&m, 1), 1, "never", Kind::kAllreduce, 1);
  core_.OnCoordinator(m);
  auto actions = core_.TakeActions();
  EXPECT_TRUE(std::get<SendToCoordinator>(actions.at(0)).message.has_failed());
  EXPECT_EQ(std::get<AbortBoard>(actions.at(1)).code, Code::kInternal);
}

TEST_F(ExecutorCoreTest, SignatureThatCannotBeEndsTheEpochAndNamesTheRank) {
  StartTwoNodes();
  Slot("a");
  ReadySlot ready = Ready(0, 1, Kind::kAllreduce, 8, 8);
  ready.signatures[1].dims = 200;
  core_.OnReadySlot(ready);
  const auto aborted = Take<AbortBoard>();
  ASSERT_EQ(aborted.size(), 1u);
  EXPECT_NE(aborted[0].text.find("rank 1 (node n0"), std::string::npos)
      << aborted[0].text;
}

TEST_F(ExecutorCoreTest, OperationFailedReachesTheSlotEvenIfNoRankUsedIt) {
  StartTwoNodes();
  Slot("a");
  proto::CoordinatorMessage m;
  proto::OperationFailed* failed = m.mutable_operation_failed();
  m.set_epoch(1);
  failed->set_id(5);
  failed->set_generation(1);
  failed->mutable_identity()->set_name("unused");
  failed->set_message("mismatch");
  core_.OnCoordinator(m);
  auto actions = core_.TakeActions();
  EXPECT_EQ(std::get<AllotSlot>(actions.at(0)).slot, 1u);
  const auto& fail = std::get<FailSlot>(actions.at(1));
  EXPECT_EQ(fail.slot, 1u);
  EXPECT_EQ(fail.generation, 1u);
  EXPECT_EQ(fail.text, "mismatch");
}

TEST_F(ExecutorCoreTest, FullSlotTableSaysWhatToDo) {
  ExecutorCore core({.job = "job", .node = "n0", .host = "h", .slots = 64});
  core.OnClient(1, MakeHello(0, 1, 0, 1), 0);
  auto m = StartMessage(1, 1);
  m.mutable_epoch_start()->set_size(1);
  m.mutable_epoch_start()->mutable_nodes(0)->mutable_ranks()->RemoveLast();
  core.OnCoordinator(m);
  core.OnBoardCreated(absl::OkStatus());
  core.TakeActions();
  for (int i = 0; i < 65; ++i) {
    auto request = session::Make<session::SlotRequest>();
    session::SetText(request.name, "n" + std::to_string(i));
    core.OnSlotRequest(1, request);
  }
  core.OnTime(kSlotWaitMs);
  const auto actions = core.TakeActions();
  const auto& last =
      std::get<session::SlotReply>(std::get<ReplyClient>(actions.back()).reply);
  EXPECT_EQ(last.code, static_cast<uint32_t>(Code::kResourceExhausted));
  EXPECT_NE(std::string(last.text).find("--slots"), std::string::npos);
}

TEST_F(ExecutorCoreTest, NoMemoryForAnotherSlotEndsTheEpoch) {
  StartOneNode();
  core_.OnBoardFull(
      absl::ResourceExhaustedError("no shared memory for 128 names"));
  const auto aborts = Take<AbortBoard>();
  ASSERT_EQ(aborts.size(), 1u);
  EXPECT_EQ(aborts[0].code, Code::kResourceExhausted);
  EXPECT_EQ(aborts[0].text,
            "node n0 (host hosta): no shared memory for 128 names");
}

TEST_F(ExecutorCoreTest, RequestsThatCannotBeAreAnswered) {
  StartOneNode();
  EXPECT_EQ(Slot("").code, static_cast<uint32_t>(Code::kInvalidArgument));
  EXPECT_EQ(Slot("x", Kind::kJoin).code,
            static_cast<uint32_t>(Code::kInvalidArgument));
  EXPECT_EQ(Slot("x", static_cast<Kind>(200)).code,
            static_cast<uint32_t>(Code::kInvalidArgument));
  EXPECT_EQ(Slot("x").code, 0u);
  EXPECT_EQ(Slot("x").slot, Slot("x").slot);
}

}  // namespace
}  // namespace maypole::worker
