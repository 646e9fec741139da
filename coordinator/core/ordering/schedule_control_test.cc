// Inside an epoch: the frozen tier.
#include "coordinator/core/ordering/schedule_control.h"

#include <string>

#include "coordinator/core/limits.h"
#include "coordinator/core/testing/testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace maypole::coordinator {
namespace {

using ::testing::HasSubstr;

// Node n0 with ranks 0 and 1, node n1 with rank 2; epoch 1 runs.
class ScheduleEpochTest : public ::testing::Test {
 protected:
  explicit ScheduleEpochTest(const Config& config = Config()) : bed_(config) {
    bed_.Ready(a_, 3, {0, 1});
    bed_.Ready(b_, 3, {2});
  }
  void Report(Executor& e, const std::string& name, uint32_t generation,
              int64_t elements = 4) {
    const std::vector<uint32_t> ranks =
        &e == &a_ ? std::vector<uint32_t>{0, 1} : std::vector<uint32_t>{2};
    proto::PresentOperation op = Allreduce(name, ranks, {elements}, generation);
    op.set_urgency(2);
    bed_.From(e, Present(1, {op}));
  }
  void Both(const std::string& name, uint32_t generation,
            int64_t elements = 4) {
    Report(a_, name, generation, elements);
    Report(b_, name, generation, elements);
  }
  // Steps until the nodes get a schedule.
  void Freeze() {
    for (uint32_t g = 1; g <= 3; ++g) {
      Both("x", g);
      Both("y", g);
    }
  }
  static const proto::Schedule* ScheduleOf(const Executor& e) {
    const proto::Schedule* last = nullptr;
    for (const auto& m : e.inbox) {
      if (m.has_schedule()) last = &m.schedule();
    }
    return last;
  }
  void End(Executor& e, uint64_t number, uint64_t runs = 0,
           const std::string& text = "why") {
    proto::ExecutorMessage m;
    proto::ScheduleEnded* ended = m.mutable_schedule_ended();
    m.set_epoch(1);
    ended->set_number(number);
    ended->set_runs(runs);
    ended->set_operations(runs);
    ended->set_why(proto::SCHEDULE_OTHER_OPERATION);
    ended->set_text(text);
    bed_.From(e, m);
  }
  std::string Tier() { return bed_.Status().jobs(0).tier(); }

  TestBed bed_;
  Executor& a_ = bed_.Connect("j", "n0");
  Executor& b_ = bed_.Connect("j", "n1");
};

TEST_F(ScheduleEpochTest, EqualStepsBecomeASchedule) {
  EXPECT_EQ(Tier(), "negotiated");
  Freeze();
  for (const Executor* e : {&a_, &b_}) {
    const proto::Schedule* schedule = ScheduleOf(*e);
    ASSERT_NE(schedule, nullptr);
    EXPECT_EQ(schedule->number(), 1u);
    EXPECT_EQ(schedule->length(), 2u);
    ASSERT_EQ(schedule->runs_size(), 2);
    EXPECT_EQ(schedule->runs(0).index(), 0u);
    EXPECT_EQ(schedule->runs(0).operations(0).id(), 1u);
    EXPECT_EQ(schedule->runs(0).operations(0).signature().shape(0), 4);
    EXPECT_EQ(schedule->runs(1).index(), 1u);
    EXPECT_EQ(e->runs.size(), 6u);
  }
  EXPECT_EQ(Tier(), "frozen");
  EXPECT_EQ(bed_.core().totals().frozen_jobs, 1u);
}

TEST_F(ScheduleEpochTest, WhatWasReportedBeforeIsDropped) {
  Both("x", 1);
  Both("y", 1);
  Both("x", 2);
  Both("y", 2);
  Both("x", 3);
  Report(a_, "x", 4);  // before the schedule, and of the next step
  Both("y", 3);
  ASSERT_NE(ScheduleOf(a_), nullptr);
  EXPECT_EQ(bed_.Status().jobs(0).pending_operations(), 0u);
  Report(b_, "x", 4);  // in flight
  EXPECT_EQ(b_.runs.size(), 6u);
  // Reports that follow the end count.
  End(a_, 1);
  Report(a_, "x", 4);
  End(b_, 1);
  Report(b_, "x", 4);
  ASSERT_EQ(b_.runs.size(), 7u);
  EXPECT_EQ(b_.runs[6].operations(0).generation(), 4u);
}

TEST_F(ScheduleEpochTest, GenerationsGoOnAfterASchedule) {
  Freeze();
  End(a_, 1, 200, "a rank came late");
  EXPECT_EQ(Tier(), "frozen");
  End(b_, 1, 200, "the other one said so");
  EXPECT_EQ(Tier(), "negotiated");
  EXPECT_EQ(bed_.Status().jobs(0).schedule_ended(), "a rank came late");
  EXPECT_EQ(bed_.Status().jobs(0).schedules(), 1u);
  EXPECT_EQ(bed_.Status().jobs(0).runs(), 206u);
  EXPECT_EQ(bed_.Status().jobs(0).operations(), 206u);
  Both("x", 104);
  EXPECT_EQ(a_.runs.back().operations(0).generation(), 104u);
  // The schedule was worth it: after three more steps there is another one.
  Both("y", 104);
  for (uint32_t g = 105; g <= 106; ++g) {
    Both("x", g);
    Both("y", g);
  }
  EXPECT_EQ(ScheduleOf(b_)->number(), 2u);
}

TEST_F(ScheduleEpochTest, AnOperationOfAnotherStepPreventsASchedule) {
  for (uint32_t g = 1; g <= 3; ++g) {
    if (g == 3) Report(a_, "z", 1);
    Both("x", g);
    Both("y", g);
  }
  EXPECT_EQ(ScheduleOf(a_), nullptr);
  Report(b_, "z", 1);
}

TEST_F(ScheduleEpochTest, ScheduledNamesAreNotForgotten) {
  Freeze();
  proto::ExecutorMessage m;
  m.set_epoch(1);
  m.mutable_retire_names()->add_ids(1);
  bed_.From(a_, m);
  EXPECT_FALSE(a_.Last().has_names_retired());
  End(a_, 1);
  End(b_, 1);
  bed_.From(a_, m);
  EXPECT_TRUE(a_.Last().has_names_retired());
}

TEST_F(ScheduleEpochTest, ABadEndIsABadMessage) {
  Freeze();
  End(a_, 2);
  EXPECT_TRUE(a_.refused);
}

TEST_F(ScheduleEpochTest, AnEndWithoutAScheduleIsABadMessage) {
  End(b_, 0);
  EXPECT_TRUE(b_.refused);
}

TEST_F(ScheduleEpochTest, AfterADepartureThereIsNoSchedule) {
  Freeze();
  bed_.From(b_, Gone(1, 2, /*clean=*/true));
  End(a_, 1);
  End(b_, 1);
  Report(a_, "x", 4);
  ASSERT_EQ(a_.failures.size(), 1u);
  EXPECT_THAT(a_.failures[0].message(), HasSubstr("rank 2"));
}

class LargeJobTest : public ScheduleEpochTest {
 protected:
  LargeJobTest() : ScheduleEpochTest({.frozen_nodes = 1}) {}
};

TEST_F(LargeJobTest, ALargeJobAgreesThroughATree) {
  Freeze();
  for (const Executor* e : {&a_, &b_}) {
    ASSERT_NE(ScheduleOf(*e), nullptr);
    EXPECT_EQ(ScheduleOf(*e)->fan_out(), 32u);
    EXPECT_EQ(ScheduleOf(*e)->runs_size(), 2);
  }
}

TEST_F(LargeJobTest, ItHasNoScheduleWithRunsOfSomeNodesOnly) {
  TestBed bed({.frozen_nodes = 2});
  Executor* nodes[] = {&bed.Connect("j", "n0"), &bed.Connect("j", "n1"),
                       &bed.Connect("j", "n2")};
  for (uint32_t n = 0; n < 3; ++n) bed.Ready(*nodes[n], 3, {n});
  for (uint32_t n = 0; n < 3; ++n) bed.From(*nodes[n], MakeSet(n, 1, {0, 1}));
  for (uint32_t g = 1; g <= 4; ++g) {
    for (uint32_t n = 0; n < 2; ++n) {
      proto::PresentOperation op = In(1, Allreduce("x", {n}, {4}, g));
      op.set_urgency(2);
      bed.From(*nodes[n], Present(1, {op}));
    }
  }
  EXPECT_EQ(nodes[0]->runs.size(), 4u);
  EXPECT_EQ(ScheduleOf(*nodes[0]), nullptr);
}

}  // namespace
}  // namespace maypole::coordinator
