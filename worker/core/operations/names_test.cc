// Names that come and go: slots are recalled and given to other names.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "worker/core/limits.h"
#include "worker/core/testing/core_testing.h"

namespace maypole::worker {
namespace {

constexpr uint32_t kFewSlots = 4;

class NamesTest : public ExecutorCoreTest {
 protected:
  NamesTest() : ExecutorCoreTest(kFewSlots) {}

  void Ask(ClientId client, const std::string& name, uint32_t process_set = 0,
           Kind kind = Kind::kAllreduce) {
    auto request = session::Make<session::SlotRequest>();
    request.request = 7;
    request.process_set = process_set;
    request.kind = static_cast<uint32_t>(kind);
    session::SetText(request.name, name);
    core_.OnSlotRequest(client, request);
  }
  // Both ranks ask for the names 0, 1, 2, 3.
  void FillUp() {
    for (uint32_t i = 0; i < kFewSlots; ++i) {
      for (const ClientId client : {1, 2}) {
        Ask(client, std::to_string(i));
        ASSERT_EQ(Reply<session::SlotReply>().slot, i);
      }
    }
  }
  void Answer(ClientId client, const std::vector<uint32_t>& slots) {
    auto answer = session::Make<session::SlotReturn>();
    answer.count = static_cast<uint32_t>(slots.size());
    std::copy(slots.begin(), slots.end(), answer.slots);
    core_.OnSlotReturn(client, answer);
  }
  // The slots of a recall, by local rank.
  using Recalls = std::vector<std::pair<uint32_t, std::vector<uint32_t>>>;
  Recalls TakeRecalls() {
    Recalls out;
    for (const RecallFrom& r : Take<RecallFrom>()) {
      EXPECT_EQ(r.client, r.local_rank + 1);
      out.emplace_back(r.local_rank,
                       std::vector<uint32_t>(
                           r.message.slots, r.message.slots + r.message.count));
    }
    return out;
  }
  static proto::CoordinatorMessage Retired(const std::vector<uint32_t>& ids) {
    proto::CoordinatorMessage m;
    m.set_epoch(1);
    m.mutable_names_retired()->mutable_ids()->Assign(ids.begin(), ids.end());
    return m;
  }
  // The name of the slot has run for the first time, as operation `id`.
  void RunOnce(uint32_t slot, uint32_t id) {
    core_.OnReadySlot(Ready(slot, 1, Kind::kAllreduce, 8, 8));
    core_.OnPresenceAcknowledged();
    proto::CoordinatorMessage m;
    AddOperation(AddRun(&m, ++runs_), id, std::to_string(slot),
                 Kind::kAllreduce, 1);
    core_.OnCoordinator(m);
  }

  uint64_t runs_ = 0;
};

TEST_F(NamesTest, TheLeastRecentlyUsedNameGivesItsSlotToANewOne) {
  StartOneNode();
  FillUp();
  Ask(1, "new");
  EXPECT_EQ(Take<FindIdleSlots>().size(), 1u);
  core_.OnIdleSlots({{0, 1}, {1, 1}, {3, 1}});
  EXPECT_EQ(TakeRecalls(), (Recalls{{0, {0}}, {1, {0}}}));
  Answer(1, {});
  Answer(2, {});
  core_.OnTime(kRecallPauseMs);
  EXPECT_EQ(Take<FindIdleSlots>().size(), 1u);
  // All but name 1 have been used since.
  core_.OnIdleSlots({{0, 2}, {1, 1}, {3, 2}});
  EXPECT_EQ(TakeRecalls(), (Recalls{{0, {1}}, {1, {1}}}));
  Answer(1, {1});
  EXPECT_TRUE(core_.TakeActions().empty());
  Answer(2, {1});
  EXPECT_EQ(Take<FreeSlot>().at(0).slot, 1u);
  core_.OnSlotFreed(1, 9);
  const auto actions = core_.TakeActions();
  ASSERT_EQ(actions.size(), 2u);
  const auto& allot = std::get<AllotSlot>(actions[0]);
  EXPECT_EQ(allot.slot, 1u);
  EXPECT_EQ(allot.name, "new");
  EXPECT_EQ(allot.base, 9u);
  const auto& reply = std::get<ReplyClient>(actions[1]);
  EXPECT_EQ(reply.client, 1u);
  EXPECT_EQ(std::get<session::SlotReply>(reply.reply).slot, 1u);
  Ask(2, "new");
  EXPECT_EQ(Reply<session::SlotReply>().slot, 1u);
  Ask(2, "1");  // has no slot any more
  EXPECT_TRUE(Take<ReplyClient>().empty());
}

TEST_F(NamesTest, ASlotThatOneRankKeepsOrAsksForAgainStays) {
  StartOneNode();
  FillUp();
  Ask(1, "new");
  Drop();
  core_.OnIdleSlots({{0, 1}});
  Answer(1, {0});
  Answer(2, {});  // it uses it
  EXPECT_TRUE(Take<FreeSlot>().empty());
  Ask(1, "0");
  EXPECT_EQ(Reply<session::SlotReply>().slot, 0u);
  core_.OnTime(kRecallPauseMs);
  EXPECT_EQ(Take<FindIdleSlots>().size(), 1u);
  core_.OnIdleSlots({{0, 2}});
  EXPECT_EQ(TakeRecalls().size(), 2u);
  Answer(1, {0});
  Ask(1, "0");  // before the other has given it back
  EXPECT_EQ(Reply<session::SlotReply>().slot, 0u);
  Answer(2, {0});
  EXPECT_TRUE(Take<FreeSlot>().empty());
}

TEST_F(NamesTest, NoSlotIsAskedForWhileThereIsRoom) {
  StartOneNode();
  for (uint32_t i = 0; i < kFewSlots; ++i) {
    Ask(1, std::to_string(i));
    EXPECT_TRUE(Take<FindIdleSlots>().empty());
  }
  core_.OnTime(kSlotWaitMs);
  EXPECT_TRUE(core_.TakeActions().empty());
}

TEST_F(NamesTest, MoreNamesInUseThanSlotsIsAnErrorAfterAWhile) {
  StartOneNode();
  FillUp();
  Ask(1, "new");
  for (int64_t now = 0; now < kSlotWaitMs; now += kRecallPauseMs) {
    core_.OnTime(now);
    EXPECT_TRUE(Take<ReplyClient>().empty());
    core_.OnIdleSlots({});
  }
  core_.OnTime(kSlotWaitMs);
  const auto reply = Reply<session::SlotReply>();
  EXPECT_EQ(reply.code, static_cast<uint32_t>(Code::kResourceExhausted));
  EXPECT_EQ(std::string(reply.text),
            "allreduce 'new': all 4 operation names that a job may use at the "
            "same time on this node are in use; wait for some operations "
            "before you submit others, or start maypole-worker with a larger "
            "--slots");
  EXPECT_FALSE(core_.waits_for_slots());
}

// It may only be slow: nothing fails because of that.
TEST_F(NamesTest, ARankThatDoesNotAnswerIsWaitedForAndReported) {
  Join(2);
  auto start = StartMessage(1, 1);
  start.mutable_epoch_start()->set_stall_check_ms(5000);
  core_.OnCoordinator(start);
  core_.OnBoardCreated(absl::OkStatus());
  Drop();
  FillUp();
  Ask(1, "new");
  core_.OnIdleSlots({{0, 1}});
  Answer(1, {0});
  Drop();
  core_.OnTime(4990);
  EXPECT_TRUE(Take<ReplyClient>().empty());
  core_.OnTime(5000);
  const std::string line = Reply<session::Notice>().text;
  EXPECT_EQ(line,
            "maypole: allreduce 'new' waits for one of the 4 operation names "
            "of this node: rank 1 has not given back those that it no longer "
            "uses; it may be stopped");
  Answer(2, {0});
  EXPECT_EQ(Take<FreeSlot>().size(), 1u);
}

TEST_F(NamesTest, WhatARankThatHasLeftKnewIsGivenBack) {
  StartOneNode();
  FillUp();
  Ask(1, "new");
  core_.OnIdleSlots({{2, 1}});
  Answer(1, {2});
  Drop();
  core_.OnGoodbye(2, 0);
  EXPECT_EQ(Take<FreeSlot>().at(0).slot, 2u);
}

TEST_F(NamesTest, WhoWaitsIsToldTheEndOfTheEpoch) {
  StartOneNode();
  FillUp();
  Ask(1, "new");
  Drop();
  core_.OnCoordinator(EndMessage(1, "rank 1 was lost"));
  EXPECT_STREQ(Reply<session::SlotReply>().text, "rank 1 was lost");
}

TEST_F(NamesTest, SlotsThatNobodyHasAskedForAreNotGivenBack) {
  StartOneNode();
  FillUp();
  Answer(2, {0});
  EXPECT_NE(Take<AbortBoard>().at(0).text.find("rank 1 has given back slots"),
            std::string::npos);
}

// Joined ranks derive the next name from how often these were used.
TEST_F(NamesTest, UnnamedOperationsKeepTheirNamesWhileTheirSetIsThere) {
  StartOneNode();
  MakeSet(1, 1, {0});
  Ask(1, "unnamed.0");
  Ask(1, "unnamed.0", 1);
  Ask(1, "unnamed.1");
  Ask(1, "a");
  Ask(1, "b");
  Drop();
  core_.OnIdleSlots({{0, 1}, {1, 1}, {2, 1}});
  EXPECT_TRUE(TakeRecalls().empty());
  proto::CoordinatorMessage m;
  m.set_epoch(1);
  m.mutable_set_reply()->set_number(2);
  m.mutable_set_reply()->set_process_set(1);
  m.mutable_set_reply()->set_remove(true);
  core_.OnCoordinator(m);
  Drop();
  core_.OnIdleSlots({{0, 1}, {1, 1}, {2, 1}});
  EXPECT_EQ(TakeRecalls(), (Recalls{{0, {1}}}));
}

TEST_F(NamesTest, SplitsOfAlltoallsAreGivenBackToo) {
  StartOneNode();
  for (const char* name : {"0", "1", "2", "3"}) {
    Ask(1, name, 0, Kind::kAlltoall);
  }
  const auto allotted = Take<AllotSlot>();
  Ask(1, "new", 0, Kind::kAlltoall);
  core_.OnIdleSlots({{2, 1}});
  Answer(1, {2});
  Drop();
  core_.OnSlotFreed(2, 5);
  const auto again = Take<AllotSlot>();
  ASSERT_EQ(again.size(), 1u);
  EXPECT_EQ(again[0].splits, allotted.at(2).splits);
}

// --- Over several nodes ------------------------------------------------------

TEST_F(NamesTest, TheCoordinatorForgetsANameFirst) {
  StartTwoNodes();
  FillUp();
  RunOnce(0, 11);
  Ask(1, "new");
  Drop();
  core_.OnIdleSlots({{0, 1}});
  auto sent = TakeSent();
  ASSERT_EQ(sent.size(), 1u);
  ASSERT_EQ(sent[0].retire_names().ids_size(), 1);
  EXPECT_EQ(sent[0].retire_names().ids(0), 11u);
  core_.OnIdleSlots({{0, 1}});  // not again
  EXPECT_TRUE(core_.TakeActions().empty());
  core_.OnCoordinator(Retired({11}));
  EXPECT_EQ(Take<FindIdleSlots>().size(), 1u);
  core_.OnIdleSlots({{0, 1}});
  EXPECT_EQ(TakeRecalls().size(), 2u);
  Answer(1, {0});
  Answer(2, {0});
  core_.OnSlotFreed(0, 1);
  EXPECT_EQ(Take<AllotSlot>().at(0).name, "new");
  // The coordinator counts the new name from 1.
  core_.OnReadySlot(Ready(0, 2, Kind::kAllreduce, 8, 8));
  const proto::ExecutorMessage report = TakeSent().at(0);
  const auto& op = report.presence().operations(0);
  EXPECT_EQ(op.identity().name(), "new");
  EXPECT_EQ(op.generation(), 1u);
  proto::CoordinatorMessage m;
  AddOperation(AddRun(&m, 2), 27, "new", Kind::kAllreduce, 1);
  core_.OnCoordinator(m);
  const auto issued = Take<IssueRun>();
  ASSERT_EQ(issued.size(), 1u);
  EXPECT_EQ(issued[0].run.operations[0].generation, 2u);
}

TEST_F(NamesTest, AReportThatCrossesComesAgainByIdentityAndIsCountedFromOne) {
  StartTwoNodes();
  FillUp();
  RunOnce(0, 11);
  Drop();
  core_.OnReadySlot(Ready(0, 2, Kind::kAllreduce, 8, 8));
  EXPECT_EQ(TakeSent().at(0).presence().operations(0).id(), 11u);
  core_.OnPresenceAcknowledged();
  core_.OnCoordinator(Retired({11}));
  const proto::ExecutorMessage report = TakeSent().at(0);
  const auto& again = report.presence().operations(0);
  EXPECT_EQ(again.id(), 0u);
  EXPECT_EQ(again.identity().name(), "0");
  EXPECT_EQ(again.generation(), 1u);
  proto::CoordinatorMessage m;
  AddOperation(AddRun(&m, 2), 27, "0", Kind::kAllreduce, 1);
  core_.OnCoordinator(m);
  const auto issued = Take<IssueRun>();
  ASSERT_EQ(issued.size(), 1u);
  EXPECT_EQ(issued[0].run.operations[0].generation, 2u);
}

TEST_F(NamesTest, WhatIsReportedAndNotAnsweredKeepsItsName) {
  StartTwoNodes();
  FillUp();
  core_.OnReadySlot(Ready(0, 1, Kind::kAllreduce, 8, 8));
  Ask(1, "new");
  Drop();
  core_.OnIdleSlots({{0, 1}});
  EXPECT_TRUE(core_.TakeActions().empty());
}

TEST_F(NamesTest, StandInWaitsForASlotAndWhatIsWantedKeepsIts) {
  StartTwoNodes();
  FillUp();
  proto::CoordinatorMessage m;
  proto::StandIn* s = m.mutable_stand_in();
  m.set_epoch(1);
  s->set_id(5);
  s->mutable_identity()->set_name("new");
  s->mutable_identity()->set_kind(static_cast<uint32_t>(Kind::kAllreduce));
  s->set_generation(1);
  s->mutable_signature()->set_kind(static_cast<uint32_t>(Kind::kAllreduce));
  s->mutable_signature()->set_dtype(static_cast<uint32_t>(DType::kFloat32));
  s->mutable_signature()->set_prescale(1);
  s->mutable_signature()->set_postscale(1);
  s->mutable_signature()->add_shape(8);
  core_.OnCoordinator(m);
  EXPECT_EQ(Take<FindIdleSlots>().size(), 1u);
  core_.OnIdleSlots({{3, 1}});
  Answer(1, {3});
  Answer(2, {3});
  Drop();
  core_.OnSlotFreed(3, 6);
  const auto actions = core_.TakeActions();
  ASSERT_EQ(actions.size(), 2u);
  EXPECT_EQ(std::get<AllotSlot>(actions[0]).name, "new");
  EXPECT_EQ(std::get<WantSlot>(actions[1]).generation, 7u);
  Ask(1, "more");
  Drop();
  core_.OnIdleSlots({{3, 6}});
  EXPECT_TRUE(core_.TakeActions().empty());
}

}  // namespace
}  // namespace maypole::worker
