// StragglerTime: how long other nodes have waited for a node.
#include "coordinator/core/ordering/straggler_time.h"

#include <map>
#include <string>

#include "coordinator/core/testing/testing.h"
#include "gtest/gtest.h"

namespace maypole::coordinator {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

TEST(StragglerTimeTest, ManyOperationsAtOnceAreOneWait) {
  StragglerTime late(2);
  late.Await(seconds(1), 1);
  late.Await(seconds(2), 1);
  late.Came(seconds(4), 1);
  late.Came(seconds(5), 1);
  EXPECT_EQ(late.Take(seconds(9), 1), seconds(4));
  EXPECT_EQ(late.Take(seconds(9), 0), Time::zero());
}

TEST(StragglerTimeTest, AWaitThatGoesOnIsTakenInParts) {
  StragglerTime late(1);
  late.Await(seconds(1), 0);
  EXPECT_EQ(late.Take(seconds(3), 0), seconds(2));
  EXPECT_EQ(late.Take(seconds(3), 0), Time::zero());
  late.Came(seconds(7), 0);
  EXPECT_EQ(late.Take(seconds(10), 0), seconds(4));
}

TEST(StragglerTimeTest, WhatIsGivenUpCountsUntilTheLastTimeTold) {
  StragglerTime late(2);
  late.Await(seconds(1), 0);
  late.Await(seconds(3), 1);
  late.Drop(0);
  late.Drop(0);  // it is awaited for nothing
  EXPECT_EQ(late.TakeUntilNow(0), seconds(2));
  late.Came(seconds(2), 1);  // time does not go back
  EXPECT_EQ(late.TakeUntilNow(1), Time::zero());
}

// Through the core: node n0 with rank 0, n1 with rank 1.
class StragglerTimeInCoreTest : public ::testing::Test {
 protected:
  void SetUp() override {
    bed_.Ready(a_, 2, {0});
    bed_.Ready(b_, 2, {1});
  }
  std::map<std::string, Time> Take() {
    std::map<std::string, Time> all;
    for (const StragglerNode& late :
         bed_.core().TakeStragglerTime(bed_.now())) {
      EXPECT_EQ(late.job, "j");
      all[late.node] = late.time;
    }
    return all;
  }
  TestBed bed_;
  Executor& a_ = bed_.Connect("j", "n0");
  Executor& b_ = bed_.Connect("j", "n1");
};

TEST_F(StragglerTimeInCoreTest, WhoComesLastIsLate) {
  using Late = std::map<std::string, Time>;
  EXPECT_EQ(Take(), (Late{{"n0", Time::zero()}, {"n1", Time::zero()}}));
  bed_.From(a_, Present(1, {Allreduce("x", {0}, {3})}));
  bed_.From(a_, Present(1, {Allreduce("y", {0}, {3})}));
  bed_.Pass(milliseconds(300));
  bed_.From(b_, Present(1, {Allreduce("x", {1}, {3})}));
  bed_.From(b_, Present(1, {Allreduce("y", {1}, {3})}));
  bed_.Pass(milliseconds(100));
  EXPECT_EQ(Take(), (Late{{"n0", Time::zero()}, {"n1", milliseconds(300)}}));
}

TEST_F(StragglerTimeInCoreTest, TheEndOfAnEpochTellsWhatIsLeft) {
  bed_.From(a_, Present(1, {Allreduce("x", {0}, {3})}));
  bed_.Pass(milliseconds(300));
  bed_.From(a_, Present(1, {Allreduce("y", {0}, {3})}));
  bed_.From(b_, Gone(1, 1, false));
  ASSERT_EQ(bed_.stragglers().size(), 1u);
  EXPECT_EQ(bed_.stragglers()[0].node, "n1");
  EXPECT_EQ(bed_.stragglers()[0].time, milliseconds(300));
  EXPECT_EQ(Take()["n1"], Time::zero());
}

}  // namespace
}  // namespace maypole::coordinator
