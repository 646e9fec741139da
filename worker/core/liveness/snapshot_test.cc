// How the core finds stragglers, frozen and blocked ranks in snapshots.
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "worker/core/limits.h"
#include "worker/core/testing/core_testing.h"

namespace maypole::worker {
namespace {

class SnapshotTest : public ExecutorCoreTest {
 protected:
  void Start(int64_t stall_check_ms = 5000) {
    Join(4);
    auto m = StartMessage(1, 2);
    m.mutable_epoch_start()->set_stall_check_ms(stall_check_ms);
    core_.OnCoordinator(m);
    core_.OnBackendPrepared(std::vector<std::string>{"", "a"});
    proto::CoordinatorMessage endpoints;
    endpoints.set_epoch(1);
    endpoints.mutable_endpoints();
    core_.OnCoordinator(endpoints);
    core_.OnBackendConnected(absl::OkStatus());
    core_.OnBoardCreated(absl::OkStatus());
    look_.ranks.resize(2);
    for (RankSnapshot& rank : look_.ranks) rank.here = true;
    Drop();
  }
  // Takes a snapshot every kBoardScanMs until this time.
  void LookUntil(int64_t ms) {
    for (; now_ms_ <= ms; now_ms_ += kBoardScanMs) LookAt(now_ms_);
  }
  void LookAt(int64_t ms) {
    core_.OnTime(ms);
    core_.OnSnapshot(look_);
  }
  std::vector<proto::LateOperations> TakeLate() {
    std::vector<proto::LateOperations> out;
    for (const auto& m : TakeSent()) {
      if (m.has_late()) out.push_back(m.late());
    }
    return out;
  }
  std::vector<proto::Blocked> TakeBlocked() {
    std::vector<proto::Blocked> out;
    for (const auto& m : TakeSent()) {
      if (m.has_blocked()) out.push_back(m.blocked());
    }
    return out;
  }
  // Rank 0 waits for 'x', which rank 1 has not submitted; rank 1 waits for 'y',
  // which both have submitted, and which is present.
  void BlockAll() {
    Slot("x");
    Slot("y");
    core_.OnReadySlot(Ready(1, 1, Kind::kAllreduce, 8, 8));
    look_.ranks[0].blocked_count = 7;
    look_.ranks[0].blocked_on = Tagged(1, 0);
    look_.ranks[0].undecided = true;
    look_.ranks[0].missing = 2;
    look_.ranks[1].blocked_count = 1;
    look_.ranks[1].blocked_on = Tagged(1, 1);
    look_.ranks[1].undecided = true;
    Drop();
  }

  BoardSnapshot look_;
  int64_t now_ms_ = 0;
};

TEST_F(SnapshotTest, LateRanksAreToldOnceAndWhenItIsOver) {
  Start();
  Slot("x");
  look_.waiting = {{0, 1, 1, 2}};
  LookUntil(4500);
  EXPECT_TRUE(TakeLate().empty());
  EXPECT_EQ(core_.suspects(), 2u);
  look_.stopped = 2;
  LookUntil(9000);
  auto late = TakeLate();
  ASSERT_EQ(late.size(), 1u);
  ASSERT_EQ(late[0].operations_size(), 1);
  const proto::LateOperation& op = late[0].operations(0);
  EXPECT_EQ(op.identity().name(), "x");
  EXPECT_EQ(op.generation(), 1u);
  EXPECT_EQ(op.waiting_ms(), 5000);
  EXPECT_EQ(op.arrived(0), 0u);
  EXPECT_EQ(op.missing(0), 1u);
  EXPECT_EQ(op.stopped(0), 1u);
  look_.waiting.clear();
  LookUntil(10000);
  late = TakeLate();
  ASSERT_EQ(late.size(), 1u);
  EXPECT_EQ(late[0].operations_size(), 0);
  // The next generation has its own time.
  look_.waiting = {{0, 2, 1, 2}};
  LookUntil(15000);
  EXPECT_TRUE(TakeLate().empty());
  LookUntil(16000);
  EXPECT_EQ(TakeLate().size(), 1u);
}

// A rank that is late does not read the notice.
TEST_F(SnapshotTest, ANoticeGoesToARankThatWaits) {
  Start();
  Slot("x");
  Slot("y");
  proto::CoordinatorMessage notice;
  notice.set_epoch(1);
  notice.mutable_notice();
  const auto told = [&] {
    Drop();
    core_.OnCoordinator(notice);
    const auto replies = Take<ReplyClient>();
    return replies.empty() ? 0 : replies[0].client;
  };
  EXPECT_EQ(told(), 1u);  // nobody waits
  look_.waiting = {{0, 1, 2, 1}};
  LookUntil(6000);
  EXPECT_EQ(told(), 2u);
  // If both are late, the smallest rank gets it.
  look_.waiting = {{0, 1, 2, 1}, {1, 1, 1, 2}};
  LookUntil(12000);
  EXPECT_EQ(told(), 1u);
}

TEST_F(SnapshotTest, ANoticeGoesToARankThatWaitsForOtherNodes) {
  Start();
  MakeSet(1, 1, {1, 3});
  Slot("x", Kind::kAllreduce, 1, 2);
  ReadySlot ready = Ready(0, 1, Kind::kAllreduce, 8, 8);
  ready.signatures.resize(1);
  ready.signatures[0].process_set = 1;
  core_.OnReadySlot(ready);
  Drop();
  proto::CoordinatorMessage notice;
  notice.set_epoch(1);
  notice.mutable_notice();
  core_.OnCoordinator(notice);
  EXPECT_EQ(Take<ReplyClient>().at(0).client, 2u);
}

TEST_F(SnapshotTest, AStopIsToldWhenItIsSeen) {
  Start();
  Slot("x");
  look_.waiting = {{0, 1, 1, 2}};
  LookUntil(6000);
  EXPECT_EQ(TakeLate().at(0).operations(0).stopped_size(), 0);
  look_.stopped = 3;  // that rank 0 is stopped does not matter
  LookUntil(7000);
  const auto late = TakeLate();
  ASSERT_EQ(late.size(), 1u);
  ASSERT_EQ(late[0].operations(0).stopped_size(), 1);
  EXPECT_EQ(late[0].operations(0).stopped(0), 1u);
}

TEST_F(SnapshotTest, ManyLateOperationsAreCut) {
  Start();
  for (uint32_t i = 0; i < 70; ++i) {
    Slot("x" + std::to_string(i));
    look_.waiting.push_back({i, 1, 1, 2});
  }
  LookUntil(5000);
  const auto late = TakeLate();
  ASSERT_EQ(late.size(), 1u);
  EXPECT_EQ(late[0].operations_size(), 64);
  EXPECT_EQ(late[0].more(), 6u);
}

TEST_F(SnapshotTest, WithoutACheckTimeNothingIsLate) {
  Start(0);
  Slot("x");
  look_.waiting = {{0, 1, 1, 2}};
  LookUntil(100000);
  EXPECT_TRUE(TakeSent().empty());
  EXPECT_EQ(core_.suspects(), 0u);
}

TEST_F(SnapshotTest, ARankThatStandsStillInAnOperationIsLost) {
  Start();
  Slot("x");
  look_.ranks[1].holds = 0;
  LookUntil(9500);
  EXPECT_TRUE(Take<AbortBoard>().empty());
  look_.stopped = core_.suspects();
  LookUntil(10000);
  auto actions = core_.TakeActions();
  ASSERT_EQ(actions.size(), 3u);
  EXPECT_EQ(std::get<CloseClient>(actions[0]).client, 2u);
  const auto& gone =
      std::get<SendToCoordinator>(actions[1]).message.rank_gone();
  EXPECT_EQ(gone.rank(), 1u);
  EXPECT_FALSE(gone.clean());
  EXPECT_EQ(gone.how(),
            "it has not moved for 10 s while allreduce 'x' was under way (its "
            "process is stopped)");
  EXPECT_EQ(std::get<AbortBoard>(actions[2]).text,
            "rank 1 (pid 101, host hosta, node n0) has not moved for 10 s "
            "while allreduce 'x' was under way (its process is stopped)");
  // It is not marked as gone: it may yet write to others' memory.
  core_.OnGoodbye(1, 1);
  EXPECT_EQ(Take<DropEpoch>().size(), 1u);
}

TEST_F(SnapshotTest, WhoMovesOrHoldsNothingIsNotLost) {
  Start();
  Slot("x");
  look_.ranks[0].holds = 0;
  for (int64_t ms = 0; ms < 60000; ms += kBoardScanMs) {
    if (ms % 9000 == 0) ++look_.ranks[0].beat;
    LookAt(ms);
  }
  look_.ranks[0].holds.reset();
  for (int64_t ms = 60000; ms < 90000; ms += kBoardScanMs) LookAt(ms);
  EXPECT_TRUE(Take<AbortBoard>().empty());
}

// A machine that was suspended for an hour has not frozen its ranks.
TEST_F(SnapshotTest, TimeInWhichNobodyLooksDoesNotCount) {
  Start();
  Slot("x");
  look_.ranks[0].holds = 0;
  for (int hour = 1; hour < 9; ++hour) LookAt(hour * 3600000);
  EXPECT_TRUE(Take<AbortBoard>().empty());
}

TEST_F(SnapshotTest, BlockedIsToldWhenItIsSeenTwice) {
  Start();
  BlockAll();
  core_.OnSnapshot(look_);
  EXPECT_TRUE(TakeBlocked().empty());
  core_.OnSnapshot(look_);
  auto told = TakeBlocked();
  ASSERT_EQ(told.size(), 1u);
  EXPECT_EQ(told[0].handled(), 2u);  // the start and the endpoints
  EXPECT_EQ(told[0].round(), 0u);
  ASSERT_EQ(told[0].ranks_size(), 2);
  EXPECT_EQ(told[0].ranks(0).rank(), 0u);
  EXPECT_EQ(told[0].ranks(0).identity().name(), "x");
  EXPECT_EQ(told[0].ranks(0).generation(), 1u);
  EXPECT_EQ(told[0].ranks(0).missing(0), 1u);
  EXPECT_EQ(told[0].ranks(0).count(), 7u);
  EXPECT_EQ(told[0].ranks(1).missing_size(), 0);
  core_.OnSnapshot(look_);
  EXPECT_TRUE(TakeBlocked().empty());
  // One moves.
  look_.ranks[0].blocked_count = 8;
  core_.OnSnapshot(look_);
  told = TakeBlocked();
  ASSERT_EQ(told.size(), 1u);
  EXPECT_EQ(told[0].ranks_size(), 0);
  core_.OnSnapshot(look_);
  EXPECT_TRUE(TakeBlocked().empty());
  // And is blocked again: that is another wait.
  look_.ranks[0].blocked_count = 9;
  core_.OnSnapshot(look_);
  EXPECT_TRUE(TakeBlocked().empty());
  core_.OnSnapshot(look_);
  EXPECT_EQ(TakeBlocked().at(0).ranks(0).count(), 9u);
}

TEST_F(SnapshotTest, AConfirmationAnswersWithWhatIsSeenThen) {
  Start();
  BlockAll();
  proto::CoordinatorMessage m;
  m.set_epoch(1);
  m.mutable_confirm_blocked()->set_round(3);
  EXPECT_FALSE(core_.wants_snapshot());
  core_.OnCoordinator(m);
  EXPECT_TRUE(core_.wants_snapshot());
  core_.OnSnapshot(look_);
  EXPECT_FALSE(core_.wants_snapshot());
  auto told = TakeBlocked();
  ASSERT_EQ(told.size(), 1u);
  EXPECT_EQ(told[0].round(), 3u);
  EXPECT_EQ(told[0].handled(), 3u);
  EXPECT_EQ(told[0].ranks_size(), 2);
  look_.ranks[1].blocked_count = 2;
  m.mutable_confirm_blocked()->set_round(4);
  core_.OnCoordinator(m);
  core_.OnSnapshot(look_);
  told = TakeBlocked();
  ASSERT_EQ(told.size(), 1u);
  EXPECT_EQ(told[0].round(), 4u);
  EXPECT_EQ(told[0].ranks_size(), 0);
}

// Each of these might still end without another rank's call.
class NotBlockedTest : public SnapshotTest,
                       public testing::WithParamInterface<int> {};

TEST_P(NotBlockedTest, WhatMayStillEndIsNoDeadlock) {
  Start();
  BlockAll();
  core_.OnPresenceAcknowledged();
  switch (GetParam()) {
    case 0:  // it attends to something
      look_.ranks[0].blocked_count = 6;
      break;
    case 1:  // decided, though it does not know it yet
      look_.ranks[0].undecided = false;
      break;
    case 2:  // the missing rank stands in
      look_.ranks[1].aside = true;
      look_.ranks[1].blocked_on = kBlockedInJoin;
      break;
    case 3:  // the missing rank has left: the wait fails
      look_.ranks[1].here = false;
      break;
    case 4: {  // under way
      proto::CoordinatorMessage m;
      AddOperation(AddRun(&m, 1), 11, "y", Kind::kAllreduce, 1);
      core_.OnCoordinator(m);
      break;
    }
    case 5:  // not reported yet
      look_.ranks[1].blocked_on = Tagged(2, 1);
      break;
    case 6:  // reported, not sent yet
      Slot("z");
      Slot("w");
      core_.OnReadySlot(Ready(2, 1, Kind::kAllreduce, 8, 8));
      core_.OnReadySlot(Ready(3, 1, Kind::kAllreduce, 8, 8));
      break;
    case 7:  // it has not asked for a set
      look_.ranks[1].blocked_on = kBlockedForSet;
      break;
    case 8:  // it has not joined
      look_.ranks[1].blocked_on = kBlockedInJoin;
      break;
    case 9:  // it is not there
      look_.ranks[0].here = look_.ranks[1].here = false;
      break;
    default:
      break;
  }
  for (int i = 0; i < 3; ++i) core_.OnSnapshot(look_);
  EXPECT_TRUE(TakeBlocked().empty());
}

INSTANTIATE_TEST_SUITE_P(All, NotBlockedTest, testing::Range(0, 10));

TEST_F(SnapshotTest, RequestsAndJoinsThatHaveNoAnswerBlock) {
  Start();
  BlockAll();
  auto join = session::Make<session::JoinRequest>();
  join.number = 1;
  core_.OnJoinRequest(1, join);
  look_.ranks[0].blocked_on = kBlockedInJoin;
  auto set = session::Make<session::SetRequest>();
  set.number = 1;
  core_.OnSetRequest(2, set);
  look_.ranks[1].blocked_on = kBlockedForSet;
  Drop();
  for (int i = 0; i < 2; ++i) core_.OnSnapshot(look_);
  const auto told = TakeBlocked();
  ASSERT_EQ(told.size(), 1u);
  EXPECT_TRUE(told[0].ranks(0).joining());
  EXPECT_FALSE(told[0].ranks(0).has_identity());
  EXPECT_TRUE(told[0].ranks(1).asks_for_set());
  // The node has been asked to stand in, and has not done so yet.
  proto::CoordinatorMessage m;
  proto::StandIn* s = m.mutable_stand_in();
  m.set_epoch(1);
  s->mutable_identity()->set_name("elsewhere");
  s->set_generation(1);
  s->mutable_signature()->set_op(static_cast<uint32_t>(Op::kSum));
  s->mutable_signature()->set_prescale(1);
  s->mutable_signature()->set_postscale(1);
  core_.OnCoordinator(m);
  core_.OnSnapshot(look_);
  EXPECT_EQ(TakeBlocked().at(0).ranks_size(), 0);
}

// A simple model of the rule over random snapshots: a deadlock is reported
// exactly when two snapshots in a row have shown the same.
TEST_F(SnapshotTest, RandomLooks) {
  Start();
  BlockAll();
  std::mt19937 random(7);
  BoardSnapshot before;
  bool told = false;
  for (int step = 0; step < 20000; ++step) {
    if (random() % 3 == 0) {
      RankSnapshot& rank = look_.ranks[random() % 2];
      rank.blocked_count += random() % 2;
    }
    const auto all = [](const BoardSnapshot& snapshot) {
      return !snapshot.ranks.empty() &&
             snapshot.ranks[0].blocked_count % 2 == 1 &&
             snapshot.ranks[1].blocked_count % 2 == 1;
    };
    const bool same =
        all(before) &&
        before.ranks[0].blocked_count == look_.ranks[0].blocked_count &&
        before.ranks[1].blocked_count == look_.ranks[1].blocked_count;
    const bool blocked = all(look_) && same;
    core_.OnSnapshot(look_);
    const auto messages = TakeBlocked();
    if (blocked != told) {
      ASSERT_EQ(messages.size(), 1u) << "step " << step;
      ASSERT_EQ(messages[0].ranks_size(), blocked ? 2 : 0) << "step " << step;
    } else {
      ASSERT_TRUE(messages.empty()) << "step " << step;
    }
    told = blocked;
    before = look_;
  }
}

}  // namespace
}  // namespace maypole::worker
