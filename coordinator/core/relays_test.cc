// Relayed messages, as the coordinator sees them. The simulation (--tree) tests
// other orders of events.
#include "coordinator/core/relays.h"

#include "coordinator/core/testing/testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace maypole::coordinator {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::Contains;
using testing::HasSubstr;

constexpr Config kConfig{.frozen_nodes = 0, .relay_nodes = 3, .fan_out = 2};

// Four nodes with a rank each.
class RelaysTest : public testing::Test {
 protected:
  RelaysTest() : bed_(kConfig) {
    for (uint32_t i = 0; i < 4; ++i) {
      e_.push_back(&bed_.Connect("job", "n" + std::to_string(i)));
      bed_.Ready(*e_[i], 4, {i});
    }
  }

  void SayReady(Executor& e) {
    proto::ExecutorMessage m;
    m.set_epoch(1);
    m.mutable_relays_ready();
    bed_.From(e, m);
  }
  // The first `nodes` nodes report it.
  void Allreduce(const std::string& name, uint32_t nodes = 4,
                 uint32_t process_set = 0) {
    for (uint32_t i = 0; i < nodes; ++i) {
      proto::PresentOperation op =
          In(process_set, coordinator::Allreduce(name, {i}, {4}));
      op.set_urgency(2);
      bed_.From(*e_[i], Present(1, {op}));
    }
  }
  std::vector<size_t> Runs() const {
    std::vector<size_t> runs;
    for (const Executor* e : e_) runs.push_back(e->runs.size());
    return runs;
  }
  void AllAcknowledge() {
    for (Executor* e : e_) bed_.Acknowledge(*e);
  }
  using Counts = std::vector<size_t>;

  TestBed bed_;
  std::vector<Executor*> e_;
};

TEST_F(RelaysTest, WhatAllGetGoesToTheFirstNode) {
  EXPECT_EQ(e_[3]->inbox[0].epoch_start().relay_fan_out(), 2u);
  Allreduce("before");
  EXPECT_EQ(Runs(), (Counts{1, 1, 1, 1})) << "the tree is not ready";
  SayReady(*e_[0]);
  Allreduce("x");
  Allreduce("y");
  EXPECT_EQ(Runs(), (Counts{1, 1, 1, 1}));
  ASSERT_EQ(e_[0]->relayed.size(), 2u);
  EXPECT_EQ(e_[0]->relayed[0].incarnation(), e_[0]->incarnation);
  bed_.PassOn(e_);
  EXPECT_EQ(Runs(), (Counts{3, 3, 3, 3}));
  for (const Executor* e : e_) EXPECT_EQ(e->runs[2].run(), 3u);
}

TEST_F(RelaysTest, WhatFewNodesGetGoesToThem) {
  SayReady(*e_[0]);
  for (uint32_t i = 0; i < 4; ++i) bed_.From(*e_[i], MakeSet(i, 1, {0, 1}));
  EXPECT_EQ(e_[0]->relayed.size(), 1u) << "the reply to all";
  bed_.PassOn(e_);
  Allreduce("x", 2, 1);
  EXPECT_TRUE(e_[0]->relayed.empty());
  EXPECT_EQ(Runs(), (Counts{1, 1, 0, 0}));
}

TEST_F(RelaysTest, WhatIsNotAcknowledgedGoesToEachNode) {
  SayReady(*e_[0]);
  Allreduce("x");
  AllAcknowledge();  // no node has got it
  bed_.Pass(milliseconds(900));
  EXPECT_EQ(Runs(), (Counts{0, 0, 0, 0}));
  bed_.Pass(milliseconds(200));
  EXPECT_EQ(Runs(), (Counts{1, 1, 1, 1}));
  EXPECT_THAT(bed_.log(),
              Contains(HasSubstr("reason=\"node n0 does not acknowledge\"")));
  bed_.PassOn(e_);  // comes late
  EXPECT_EQ(Runs(), (Counts{1, 1, 1, 1}));
  bed_.Pass(seconds(11));
  Allreduce("y");
  EXPECT_EQ(Runs(), (Counts{2, 2, 2, 2})) << "nobody had acknowledged x";
  AllAcknowledge();
  bed_.Pass(seconds(11));
  Allreduce("z");
  EXPECT_EQ(Runs(), (Counts{2, 2, 2, 2}));
  bed_.PassOn(e_);
  EXPECT_EQ(Runs(), (Counts{3, 3, 3, 3}));
}

TEST_F(RelaysTest, NothingIsSentAgainWhileAllAcknowledge) {
  SayReady(*e_[0]);
  for (int i = 0; i < 5; ++i) {
    Allreduce("x" + std::to_string(i));
    bed_.PassOn(e_);
    AllAcknowledge();
    bed_.Pass(milliseconds(700));
  }
  EXPECT_EQ(Runs(), (Counts{5, 5, 5, 5}));
  EXPECT_THAT(bed_.log(), Not(Contains(HasSubstr("relays_paused"))));
}

TEST_F(RelaysTest, ABrokenStreamMayHaveTakenSomethingAlong) {
  SayReady(*e_[0]);
  Allreduce("x");
  bed_.Break(*e_[0]);
  EXPECT_EQ(Runs(), (Counts{0, 1, 1, 1}));
  bed_.Resume(*e_[0]);
  EXPECT_EQ(Runs(), (Counts{1, 1, 1, 1}));
  Allreduce("y");
  EXPECT_EQ(Runs(), (Counts{2, 2, 2, 2})) << "for a while to each";
  e_[0]->relayed.clear();
  AllAcknowledge();
  bed_.Pass(seconds(11));
  Allreduce("z");
  EXPECT_EQ(e_[0]->relayed.size(), 1u);
}

TEST_F(RelaysTest, ANodeThatLeavesPassesNothingOn) {
  SayReady(*e_[0]);
  Allreduce("x");
  bed_.From(*e_[2], Gone(1, 2, /*clean=*/true));
  EXPECT_EQ(Runs(), (Counts{1, 1, 1, 1}));
  for (const Executor* e : e_) EXPECT_TRUE(e->Last().has_rank_left());
  AllAcknowledge();
  bed_.Pass(seconds(30));
  SayReady(*e_[0]);  // has crossed it
  Allreduce("y", 4);
  EXPECT_EQ(e_[0]->relayed.size(), 1u) << "of x";
}

TEST_F(RelaysTest, TheEndOfTheEpochGoesToEachNode) {
  SayReady(*e_[0]);
  Allreduce("x");
  ASSERT_TRUE(bed_.Abort("job", "enough").ok());
  EXPECT_EQ(Runs(), (Counts{1, 1, 1, 1}));
  for (const Executor* e : e_) EXPECT_EQ(e->ends.size(), 1u);
}

TEST_F(RelaysTest, OnlyTheFirstNodeCanSayThatTheTreeIsReady) {
  SayReady(*e_[1]);
  ASSERT_TRUE(e_[1]->refused.has_value());
  EXPECT_THAT(e_[1]->refused->message(), HasSubstr("only the first node"));
}

}  // namespace
}  // namespace maypole::coordinator
