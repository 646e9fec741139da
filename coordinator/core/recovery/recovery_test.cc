// A coordinator that knows nothing takes over a job. The simulation
// (--restarts) tests other orders of events.
#include "coordinator/core/recovery/recovery.h"

#include <algorithm>
#include <functional>
#include <memory>

#include "absl/strings/str_cat.h"
#include "coordinator/core/limits.h"
#include "coordinator/core/testing/testing.h"
#include "gtest/gtest.h"

namespace maypole::coordinator {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// Two nodes with a rank each, as two coordinators see them.
class RecoveryTest : public testing::Test {
 protected:
  RecoveryTest() : before_(std::make_unique<TestBed>()) {
    for (uint32_t i = 0; i < 2; ++i) {
      Executor& e = before_->Connect("job", "n" + std::to_string(i));
      e_.push_back(&e);
      before_->Ready(e, 2, {i});
    }
    for (uint32_t i = 0; i < 2; ++i) {
      state_[i].mutable_start()->CopyFrom(e_[i]->Last().epoch_start());
      state_[i].set_connected(true);
    }
  }

  // The node has received all that was sent to it except the last `lost`
  // messages.
  void Received(uint32_t i, size_t lost = 0) {
    proto::NodeState& state = state_[i];
    for (size_t m = 0; m + lost < e_[i]->inbox.size(); ++m) {
      const proto::CoordinatorMessage& message = e_[i]->inbox[m];
      for (const proto::Run& run : message.execute().runs()) {
        *state.add_decisions()->mutable_run() = run;
        state.set_last_decision(run.decision());
        state.set_last_run(run.run());
      }
      if (message.has_set_reply()) {
        const proto::SetReply& reply = message.set_reply();
        *state.add_decisions()->mutable_set_reply() = reply;
        state.set_last_decision(reply.decision());
        state.set_sets_answered(
            std::max(state.sets_answered(), reply.number()));
        proto::KnownSet* set = state.add_sets();
        set->set_process_set(reply.process_set());
        *set->mutable_ranks() = reply.ranks();
      }
    }
  }

  Executor& TakeOver(uint32_t i, bool say_state = true) {
    proto::ExecutorHello hello;
    hello.set_protocol_version(kProtocolVersion);
    hello.set_newest_version(kProtocolVersion);
    hello.set_job("job");
    hello.set_node("n" + std::to_string(i));
    hello.set_token("secret");
    hello.set_session(e_[i]->session);
    hello.set_incarnation("the one before");
    Executor& e = after_.Hello(hello);
    if (say_state) Say(e, i);
    return e;
  }
  void Say(Executor& e, uint32_t i) {
    proto::ExecutorMessage m;
    *m.mutable_node_state() = state_[i];
    after_.From(e, m);
  }

  // In parts of this many bytes.
  void SayInParts(Executor& e, uint32_t i, size_t bytes) {
    const std::string state = state_[i].SerializeAsString();
    for (size_t at = 0; at < state.size(); at += bytes) {
      after_.From(e, Part(state.substr(at, bytes), at + bytes >= state.size()));
    }
  }
  static proto::ExecutorMessage Part(const std::string& piece, bool last) {
    proto::ExecutorMessage m;
    m.mutable_node_state_part()->set_piece(piece);
    m.mutable_node_state_part()->set_last(last);
    return m;
  }

  std::unique_ptr<TestBed> before_;
  std::vector<Executor*> e_;
  proto::NodeState state_[2];
  TestBed after_;
};

TEST_F(RecoveryTest, ASetOfMembersThatOneNodeKnowsReachesTheOther) {
  const auto ask = [](uint32_t rank, const std::vector<uint32_t>& ranks) {
    proto::ExecutorMessage m = MakeSet(rank, 0, ranks);
    m.mutable_set_request()->set_by_members(true);
    return m;
  };
  before_->From(*e_[0], MakeSet(0, 1, {1}));
  before_->From(*e_[1], MakeSet(1, 1, {1}));
  before_->From(*e_[0], ask(0, {0}));
  Received(0, /*lost=*/1);
  Received(1);
  ASSERT_EQ(state_[0].sets_size(), 1);
  ASSERT_EQ(state_[1].sets_size(), 2);
  Executor& a = TakeOver(0);
  Executor& b = TakeOver(1);
  ASSERT_EQ(a.set_replies.size(), 1u);
  EXPECT_TRUE(a.set_replies[0].by_members());
  EXPECT_EQ(a.set_replies[0].process_set(), 2u);
  EXPECT_TRUE(b.set_replies.empty());
  // It is known, and ids continue.
  after_.From(a, ask(0, {0}));
  ASSERT_EQ(a.set_replies.size(), 2u);
  EXPECT_EQ(a.set_replies[1].process_set(), 2u);
  EXPECT_EQ(a.set_replies[1].code(), 0);
}

TEST_F(RecoveryTest, WhatOneNodeHasGotReachesTheOther) {
  before_->From(*e_[0], MakeSet(0, 1, {1}));
  before_->From(*e_[1], MakeSet(1, 1, {1}));
  for (uint32_t i = 0; i < 2; ++i) {
    before_->From(*e_[i], Present(1, {Allreduce("x", {i}, {8})}));
  }
  ASSERT_EQ(e_[0]->runs.size(), 1u);
  Received(0);
  Received(1, /*lost=*/2);
  Executor& a = TakeOver(0);
  EXPECT_TRUE(a.inbox.empty()) << "the other node has not come back";
  Executor& b = TakeOver(1);
  ASSERT_EQ(a.inbox.size(), 1u);
  EXPECT_EQ(a.inbox[0].epoch(), 1u);
  EXPECT_FALSE(a.inbox[0].recovered().endpoints());
  ASSERT_EQ(b.inbox.size(), 3u);
  EXPECT_EQ(b.set_replies.at(0).process_set(), 1u);
  EXPECT_EQ(b.runs.at(0).SerializeAsString(),
            e_[1]->runs.at(0).SerializeAsString());
  EXPECT_TRUE(b.inbox[2].has_recovered());

  // The next operation of the name begins at 1, because the ids are forgotten;
  // runs and decisions continue.
  after_.From(a, Present(1, {Allreduce("x", {0}, {8})}));
  after_.From(b, Present(1, {Allreduce("x", {1}, {8})}));
  ASSERT_EQ(b.runs.size(), 2u);
  EXPECT_EQ(b.runs[1].run(), 2u);
  EXPECT_EQ(b.runs[1].operations(0).identity().name(), "x");
  EXPECT_GT(b.runs[1].decision(), b.runs[0].decision());
  // Process set 1 exists, and gets the next number.
  after_.From(a, MakeSet(0, 2, {0}));
  after_.From(b, MakeSet(1, 2, {0}));
  EXPECT_EQ(b.set_replies.at(1).process_set(), 2u);
}

TEST_F(RecoveryTest, DecisionsAreSettledWhenAllHaveThem) {
  for (uint32_t round = 1; round <= 3; ++round) {
    for (uint32_t i = 0; i < 2; ++i) {
      before_->From(*e_[i], Present(1, {Allreduce("x", {i}, {8}, round)}));
    }
  }
  // The third reports have acknowledged the second run.
  EXPECT_EQ(e_[0]->Last().execute().runs(0).decision(), 3u);
  EXPECT_EQ(e_[0]->Last().settled(), 2u);
}

TEST_F(RecoveryTest, ANodeThatDoesNotComeBackEndsTheEpochByName) {
  Executor& a = TakeOver(0);
  after_.Pass(seconds(2));
  EXPECT_TRUE(a.ends.empty());
  after_.Pass(seconds(2));
  ASSERT_EQ(a.ends.size(), 1u);
  EXPECT_EQ(a.ends[0].epoch(), 1u);
  EXPECT_EQ(
      a.ends[0].message(),
      "the executor of node n1 (host host-n1) with rank 1 was lost: it did "
      "not come back within 3 s after the coordinator had been replaced");
  // It comes too late, and is told so.
  Executor& b = TakeOver(1);
  ASSERT_EQ(b.ends.size(), 1u);
  EXPECT_NE(b.ends[0].message().find("came back too late"), std::string::npos);
}

TEST_F(RecoveryTest, AStateThatIsOnItsWayAtTheDeadlineIsAwaited) {
  Executor& a = TakeOver(0);
  after_.Pass(seconds(3) - std::chrono::milliseconds(1));
  Executor& b = TakeOver(1, /*say_state=*/false);
  after_.Pass(std::chrono::milliseconds(500));
  EXPECT_TRUE(a.ends.empty());
  Say(b, 1);
  EXPECT_TRUE(a.Last().has_recovered());
  EXPECT_EQ(a.Last().epoch(), 1u);
  after_.Pass(seconds(5));
  EXPECT_TRUE(a.ends.empty());
}

TEST_F(RecoveryTest, AStateThatDoesNotFollowIsAwaitedForASecond) {
  Executor& a = TakeOver(0);
  after_.Pass(seconds(3) - std::chrono::milliseconds(1));
  TakeOver(1, /*say_state=*/false);
  after_.Pass(std::chrono::milliseconds(999));
  EXPECT_TRUE(a.ends.empty());
  after_.Pass(std::chrono::milliseconds(1));
  ASSERT_EQ(a.ends.size(), 1u);
  EXPECT_NE(a.ends[0].message().find("node n1"), std::string::npos);
}

TEST_F(RecoveryTest, WhatHasEndedOnOneNodeEndsOnAll) {
  state_[1].mutable_end()->set_code(10);
  state_[1].mutable_end()->set_message("rank 1 died");
  Executor& a = TakeOver(0);
  Executor& b = TakeOver(1);
  ASSERT_EQ(a.ends.size(), 1u);
  EXPECT_EQ(a.ends[0].message(), "rank 1 died");
  EXPECT_TRUE(b.ends.empty()) << "it knows";
  // The next epoch gets the next number.
  after_.Ready(a, 2, {0});
  after_.Ready(b, 2, {1});
  EXPECT_EQ(b.Last().epoch_start().epoch(), 2u);
}

TEST_F(RecoveryTest, ANodeThatHasNotHeardOfTheEpochIsTold) {
  state_[1].Clear();
  state_[0].set_connected(false);
  Executor& a = TakeOver(0);
  Executor& b = TakeOver(1);
  ASSERT_EQ(b.inbox.size(), 2u);
  EXPECT_EQ(b.inbox[0].epoch_start().SerializeAsString(),
            e_[1]->inbox[0].epoch_start().SerializeAsString());
  EXPECT_TRUE(b.inbox[1].recovered().endpoints());
  for (Executor* e : {&a, &b}) {
    proto::ExecutorMessage m;
    m.set_epoch(1);
    m.mutable_endpoint()->add_addresses("x");
    m.mutable_endpoint()->add_addresses("y");
    after_.From(*e, m);
  }
  EXPECT_EQ(a.Last().endpoints().addresses(1), "x");
}

// The other node had been told of an epoch when the coordinator died.
TEST_F(RecoveryTest, AStartThatOnlyTheLastToComeBackKnowsGoesOn) {
  state_[1].Clear();
  state_[0].set_connected(false);
  Executor& b = TakeOver(1);
  EXPECT_TRUE(b.inbox.empty()) << "another node may know of an epoch";
  after_.Pass(seconds(2));
  Executor& a = TakeOver(0);
  after_.Pass(seconds(4));
  EXPECT_TRUE(a.ends.empty()) << a.ends[0].message();
  ASSERT_EQ(b.inbox.size(), 2u);
  EXPECT_EQ(b.inbox[0].epoch_start().SerializeAsString(),
            e_[1]->inbox[0].epoch_start().SerializeAsString());
  EXPECT_TRUE(b.inbox[1].recovered().endpoints());
}

TEST_F(RecoveryTest, AStartAfterAnEpochThatAllHaveLeftGoesOn) {
  state_[1].mutable_end();
  for (uint32_t rank = 0; rank < 2; ++rank) state_[1].add_left(rank);
  state_[0].mutable_start()->set_epoch(2);
  state_[0].set_connected(false);
  Executor& b = TakeOver(1);
  Executor& a = TakeOver(0);
  after_.Pass(seconds(4));
  EXPECT_TRUE(a.ends.empty()) << a.ends[0].message();
  ASSERT_EQ(b.inbox.size(), 2u);
  EXPECT_EQ(b.inbox[0].epoch_start().epoch(), 2u);
}

TEST_F(RecoveryTest, AJobWithoutAnEpochIsRecoveredWhenTheTimeIsOver) {
  state_[0].Clear();
  state_[1].Clear();
  Executor& a = TakeOver(0);
  Executor& b = TakeOver(1);
  after_.Ready(a, 2, {0});
  after_.Ready(b, 2, {1});
  EXPECT_TRUE(a.inbox.empty());
  after_.Pass(seconds(4));
  ASSERT_EQ(a.inbox.size(), 2u);
  EXPECT_TRUE(a.inbox[0].has_recovered());
  EXPECT_EQ(b.Last().epoch_start().epoch(), 1u);
}

// A suspended machine receives nothing.
TEST_F(RecoveryTest, AStoppedCoordinatorWaitsAgainForThoseThatAreAway) {
  Executor& a = TakeOver(0);
  after_.PassUnseen(seconds(60));
  EXPECT_TRUE(a.ends.empty()) << a.ends[0].message();
  // Also after a stop for part of the time.
  after_.Pass(seconds(1));
  after_.PassUnseen(milliseconds(2100));
  EXPECT_TRUE(a.ends.empty()) << a.ends[0].message();
  after_.Pass(milliseconds(2999));
  Executor& b = TakeOver(1);
  after_.Pass(seconds(60));
  EXPECT_TRUE(a.ends.empty()) << a.ends[0].message();
  EXPECT_TRUE(a.Last().has_recovered());
  EXPECT_TRUE(b.Last().has_recovered());
}

// The other node is there, so it is not reported as lost.
TEST_F(RecoveryTest, AStartThatIsHeardOfTooLateEndsByTheNameOfTheLateNode) {
  state_[1].Clear();
  Executor& b = TakeOver(1);
  after_.Pass(seconds(4));
  EXPECT_TRUE(b.Last().has_recovered());
  Executor& a = TakeOver(0);
  ASSERT_EQ(a.ends.size(), 1u);
  EXPECT_EQ(a.ends[0].message(),
            "node n0 came back too late after the coordinator had been "
            "replaced");
  after_.Ready(a, 2, {0});
  after_.Ready(b, 2, {1});
  EXPECT_EQ(b.Last().epoch_start().epoch(), 2u);
}

// It had been given up, and the others had started again without it.
TEST_F(RecoveryTest, ANodeOfAnEarlierEpochIsToldWhyThatIsOver) {
  proto::EpochStart* start = state_[0].mutable_start();
  start->set_epoch(2);
  start->set_size(1);
  start->mutable_nodes()->DeleteSubrange(1, 1);
  Executor& b = TakeOver(1);
  Executor& a = TakeOver(0);
  EXPECT_TRUE(a.ends.empty());
  EXPECT_TRUE(a.Last().has_recovered());
  ASSERT_EQ(b.ends.size(), 1u);
  EXPECT_EQ(b.ends[0].epoch(), 1u);
  EXPECT_EQ(b.ends[0].message(),
            "the job had gone on without node n1, in epoch 2, before the "
            "coordinator was replaced");
}

// What ended the later epoch is no reason for the earlier one's end.
TEST_F(RecoveryTest, ANodeOfAnEarlierEpochIsToldTheSameIfTheLastOneIsOver) {
  proto::EpochStart* start = state_[0].mutable_start();
  start->set_epoch(2);
  start->set_size(1);
  start->mutable_nodes()->DeleteSubrange(1, 1);
  state_[0].mutable_end();
  state_[0].add_left(0);
  Executor& b = TakeOver(1);
  Executor& a = TakeOver(0);
  after_.Pass(seconds(4));
  EXPECT_TRUE(a.ends.empty());
  ASSERT_EQ(b.ends.size(), 1u);
  EXPECT_EQ(b.ends[0].epoch(), 1u);
  EXPECT_EQ(b.ends[0].message(),
            "the job had gone on without node n1, in epoch 2, before the "
            "coordinator was replaced");
}

// Its predecessor was in the epoch, and has died with all that it knew.
TEST_F(RecoveryTest, ANewExecutorDoesNotGoOnWithTheEpochOfItsPredecessor) {
  state_[1].Clear();
  Executor& a = TakeOver(0);
  Executor& b = TakeOver(1);
  ASSERT_EQ(a.ends.size(), 1u);
  EXPECT_EQ(
      a.ends[0].message(),
      "the executor of node n1 (host host-n1) with rank 1 was replaced by "
      "a new one");
  ASSERT_EQ(b.inbox.size(), 1u);
  EXPECT_TRUE(b.inbox[0].has_recovered());
  after_.Ready(a, 2, {0});
  after_.Ready(b, 2, {1});
  EXPECT_EQ(b.Last().epoch_start().epoch(), 2u);
}

TEST_F(RecoveryTest, AScheduleThatNotAllHaveIsRefusedByTheOthers) {
  state_[0].set_schedule(1);
  state_[0].set_schedule_length(3);
  state_[0].set_follows(true);
  Executor& a = TakeOver(0);
  Executor& b = TakeOver(1);
  EXPECT_EQ(a.inbox.size(), 1u);
  ASSERT_EQ(b.inbox.size(), 2u);
  EXPECT_TRUE(b.inbox[0].schedule().refuse());
  EXPECT_EQ(b.inbox[0].schedule().number(), 1u);
  // Reports are dropped until the node has left the schedule.
  proto::ExecutorMessage ended;
  ended.set_epoch(1);
  ended.mutable_schedule_ended()->set_number(1);
  ended.mutable_schedule_ended()->set_why(proto::SCHEDULE_COORDINATOR);
  after_.From(a, ended);
  after_.From(b, ended);
  after_.From(a, Present(1, {Allreduce("x", {0}, {8})}));
  after_.From(b, Present(1, {Allreduce("x", {1}, {8})}));
  EXPECT_EQ(b.runs.size(), 1u);
}

// The coordinator would divide by zero.
TEST_F(RecoveryTest, AScheduleHasRuns) {
  state_[0].set_schedule(1);
  state_[0].set_follows(true);
  Executor& a = TakeOver(0);
  Executor& b = TakeOver(1);
  proto::ExecutorMessage ended;
  ended.set_epoch(1);
  ended.mutable_schedule_ended()->set_number(1);
  after_.From(a, ended);
  after_.From(b, ended);
  EXPECT_FALSE(b.refused) << "it has done nothing wrong";
  ASSERT_TRUE(a.refused);
  EXPECT_NE(a.refused->message().find(
                "schedule 1 of 0 runs, with a fan-out of 0; 1 to 4096 runs"),
            std::string::npos)
      << a.refused->message();
}

TEST_F(RecoveryTest, NodesAgreeAboutASchedule) {
  for (uint32_t i = 0; i < 2; ++i) {
    state_[i].set_schedule(1);
    state_[i].set_schedule_length(1 + i);
  }
  EXPECT_FALSE(TakeOver(0).refused);
  Executor& b = TakeOver(1);
  ASSERT_TRUE(b.refused);
  EXPECT_NE(b.refused->message().find("schedule 1 of 2 runs, which another "
                                      "node says to have 1"),
            std::string::npos)
      << b.refused->message();
}

// What large alltoalls have decided is longer than one message may be.
TEST_F(RecoveryTest, AStateMayComeInParts) {
  for (uint32_t i = 0; i < 2; ++i) {
    before_->From(*e_[i], Present(1, {Allreduce("x", {i}, {8})}));
  }
  Received(0);
  Received(1, /*lost=*/1);
  proto::Run* run = state_[0].mutable_decisions(0)->mutable_run();
  for (int64_t n = 0; n < 1 << 20; ++n) run->add_splits(n << 20);
  ASSERT_GT(state_[0].ByteSizeLong(), kMaxMessageBytes);
  Executor& a = TakeOver(0, /*say_state=*/false);
  SayInParts(a, 0, size_t{1} << 20);
  EXPECT_TRUE(a.inbox.empty()) << "the other node has not said its state";
  Executor& b = TakeOver(1, /*say_state=*/false);
  SayInParts(b, 1, 10);
  EXPECT_FALSE(a.refused || b.refused);
  EXPECT_TRUE(a.Last().has_recovered());
  ASSERT_EQ(b.runs.size(), 1u);
  EXPECT_EQ(b.runs[0].splits_size(), 1 << 20);
  EXPECT_TRUE(b.Last().has_recovered());
}

TEST_F(RecoveryTest, PartsThatAreNoStateEndTheSessionOnly) {
  const std::string state = state_[1].SerializeAsString();
  const std::string half = state.substr(0, state.size() / 2);
  const std::vector<std::pair<std::vector<proto::ExecutorMessage>, std::string>>
      wrong = {{{Part(half, false), Part(std::string(9, '\xff'), true)},
                "parts of a node's state that are no NodeState together"},
               {{Part(half, false), Present(1, {})},
                "another message between the parts of a node's state"},
               {{Part(half, false), Part("", false)}, "a part of 0 bytes"},
               {{Part(std::string(kMaxNodeStateBytes, 'x'), false),
                 Part("x", false)},
                absl::StrCat("a part of 1 bytes of a node's state, after ",
                             kMaxNodeStateBytes)}};
  for (const auto& [messages, why] : wrong) {
    Executor& b = TakeOver(1, /*say_state=*/false);
    for (const proto::ExecutorMessage& m : messages) after_.From(b, m);
    ASSERT_TRUE(b.refused) << why;
    EXPECT_NE(b.refused->message().find(why), std::string::npos)
        << b.refused->message();
  }
  // The job continues to recover.
  TakeOver(0);
  EXPECT_TRUE(TakeOver(1).Last().has_recovered());
}

TEST_F(RecoveryTest, NewRanksWaitUntilTheJobIsKnown) {
  Executor& a = TakeOver(0);
  Executor& c = after_.Connect("job", "n2");
  after_.Waiting(c, 2, {0}, 2);
  Executor& b = TakeOver(1);
  EXPECT_TRUE(b.Last().has_recovered());
  EXPECT_EQ(after_.Status("job").jobs(0).state(), "running");
  EXPECT_FALSE(a.closed || c.closed);
}

TEST_F(RecoveryTest, WhatWaitsForTheRecoveryIsBoundedByItsBytes) {
  Executor& a = TakeOver(0);
  proto::ExecutorMessage m;
  m.mutable_timeline_records()->set_records(
      std::string(kMaxMessageBytes / 2, 'x'));
  const size_t fit = kMaxHeldBytes / (kMaxMessageBytes / 2) - 1;
  for (size_t i = 0; i < fit; ++i) after_.From(a, m);
  ASSERT_FALSE(a.refused.has_value());
  after_.From(a, m);
  after_.From(a, m);
  ASSERT_TRUE(a.refused.has_value());
  EXPECT_NE(a.refused->message().find("too many messages while the job"),
            std::string::npos);
  // Its messages no longer take room from the others.
  Executor& b = TakeOver(1);
  for (size_t i = 0; i < fit; ++i) after_.From(b, m);
  EXPECT_FALSE(b.refused.has_value()) << b.refused->message();
}

TEST_F(RecoveryTest, AStreamThatBreaksBeforeTheWelcomeIsOpenedAgain) {
  TakeOver(0, /*say_state=*/false);
  Executor& a = TakeOver(0);
  Executor& b = TakeOver(1);
  EXPECT_FALSE(a.refused);
  EXPECT_TRUE(a.Last().has_recovered());
  EXPECT_TRUE(b.Last().has_recovered());
}

TEST_F(RecoveryTest, AnImpossibleStateEndsTheSessionOnly) {
  state_[1].mutable_start()->mutable_nodes(0)->set_ranks(0, 1);
  Executor& b = TakeOver(1);
  ASSERT_TRUE(b.refused);
  EXPECT_NE(b.refused->message().find("an epoch that has rank 1 twice"),
            std::string::npos)
      << b.refused->message();
  Executor& a = TakeOver(0);
  after_.Pass(seconds(4));
  ASSERT_EQ(a.ends.size(), 1u);
  EXPECT_NE(a.ends[0].message().find("node n1"), std::string::npos);
}

TEST(CheckNodeState, RefusesWhatNoExecutorSays) {
  proto::NodeState state;
  EXPECT_TRUE(CheckNodeState(state).ok());
  proto::Run* run = state.add_decisions()->mutable_run();
  run->set_decision(3);
  run->add_operations();
  EXPECT_FALSE(CheckNodeState(state).ok()) << "beyond the last decision";
  state.set_last_decision(3);
  EXPECT_TRUE(CheckNodeState(state).ok());
  state.add_decisions()->mutable_run()->set_decision(3);
  EXPECT_FALSE(CheckNodeState(state).ok()) << "twice";
  state.clear_decisions();
  state.mutable_start()->set_epoch(1);
  EXPECT_FALSE(CheckNodeState(state).ok()) << "no nodes";

  proto::EpochStart* start = state.mutable_start();
  start->set_size(1);
  proto::NodeInfo* node = start->add_nodes();
  node->set_node("n0");
  node->add_ranks(0);
  EXPECT_TRUE(CheckNodeState(state).ok());
  node->add_clients(1);
  EXPECT_FALSE(CheckNodeState(state).ok()) << "elastic, of 0 to 0 ranks";
  start->set_min_size(1);
  start->set_max_size(1);
  EXPECT_TRUE(CheckNodeState(state).ok());
  start->set_min_size(2);
  EXPECT_FALSE(CheckNodeState(state).ok()) << "of 2 to 1 ranks";
  start->set_min_size(1);
  start->set_stall_check_ms(INT64_MAX);
  EXPECT_EQ(CheckNodeState(state).message(),
            "a node's state with a stall time of 9223372036854775807 ms");
  start->set_stall_check_ms(0);
  state.set_last_decision(UINT64_MAX);
  EXPECT_FALSE(CheckNodeState(state).ok()) << "no decision could follow";
}

// One field after the other is wrong.
TEST(CheckNodeState, ChecksEveryField) {
  proto::NodeState good;
  proto::EpochStart* start = good.mutable_start();
  start->set_epoch(1);
  start->set_size(1);
  start->add_nodes()->set_node("n0");
  start->mutable_nodes(0)->add_ranks(0);
  ASSERT_TRUE(CheckNodeState(good).ok());
  using Change = std::function<void(proto::NodeState*)>;
  const std::vector<std::pair<Change, std::string>> changes = {
      {[](auto* s) { s->mutable_start()->set_checksums(3); }, "mode 3"},
      {[](auto* s) {
         s->mutable_start()->mutable_nodes(0)->set_host(std::string(64, 'h'));
       },
       "an impossible node 'n0'"},
      {[](auto* s) {
         s->set_last_decision(1);
         s->add_decisions()->mutable_run()->set_decision(1);
       },
       "a run of 0 operations"},
      {[](auto* s) {
         s->set_last_decision(1);
         s->add_decisions()->mutable_operation_failed()->set_decision(1);
       },
       "failed without an error"},
      {[](auto* s) { s->set_last_run(UINT64_MAX); },
       "run 18446744073709551615; at most"},
      {[](auto* s) { s->set_schedule(UINT64_MAX); },
       "schedule 18446744073709551615; at most"},
      {[](auto* s) { s->set_sets_answered(UINT32_MAX); },
       "answer about process sets 4294967295"},
      {[](auto* s) { s->set_joins_answered(UINT32_MAX); },
       "answer to joins 4294967295"},
      {[](auto* s) { s->set_schedule(1); }, "schedule 1 of 0 runs"},
      {[](auto* s) { s->set_follows(true); }, "schedule 0 of 0 runs"},
      {[](auto* s) { s->set_schedule_length(4097); }, "of 4097 runs"},
      {[](auto* s) { s->set_schedule_fan_out(4096); }, "fan-out of 4096"},
      {[](auto* s) {
         s->mutable_timeline()->set_number(1);
         s->mutable_timeline()->set_rank(1);
       },
       "a timeline of rank 1 on node 0"},
      {[](auto* s) { s->add_communicators(); }, "communicator 0"},
      {[](auto* s) {
         s->add_communicators()->set_number(1);
         s->mutable_communicators(0)->add_parts()->set_node(1);
       },
       "an impossible communicator 1"},
      {[](auto* s) { s->add_communicator_ids()->set_number(1); },
       "an id of 0 bytes for communicator 1"},
      {[](auto* s) { s->add_ids_received(33); }, "communicator 33"},
      {[](auto* s) { s->add_left(1); }, "rank 1, which the job has not"},
  };
  for (const auto& [change, what] : changes) {
    proto::NodeState state = good;
    change(&state);
    const absl::Status status = CheckNodeState(state);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << what;
    EXPECT_NE(status.message().find(what), std::string::npos)
        << status.message();
  }
}

}  // namespace
}  // namespace maypole::coordinator
