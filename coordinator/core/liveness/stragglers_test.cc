// Stragglers: which ranks are reported, when, and to which node.
#include "coordinator/core/liveness/stragglers.h"

#include <functional>
#include <string>

#include "coordinator/core/limits.h"
#include "coordinator/core/testing/testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace maypole::coordinator {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Ranks = std::vector<uint32_t>;

struct Op {
  std::string name;
  uint32_t generation = 1;
  int64_t waiting_ms = 5000;
  Ranks arrived;
  Ranks missing;
  Ranks stopped = {};
  uint32_t process_set = 0;
};

proto::ExecutorMessage Late(const std::vector<Op>& operations,
                            uint32_t more = 0) {
  proto::ExecutorMessage m;
  m.set_epoch(1);
  m.mutable_late()->set_more(more);
  for (const Op& op : operations) {
    proto::LateOperation* o = m.mutable_late()->add_operations();
    o->mutable_identity()->set_name(op.name);
    o->mutable_identity()->set_process_set(op.process_set);
    o->set_generation(op.generation);
    o->set_waiting_ms(op.waiting_ms);
    o->mutable_arrived()->Assign(op.arrived.begin(), op.arrived.end());
    o->mutable_missing()->Assign(op.missing.begin(), op.missing.end());
    o->mutable_stopped()->Assign(op.stopped.begin(), op.stopped.end());
  }
  return m;
}

// Node n0 with ranks 0 and 1, n1 with ranks 2 and 3; epoch 1 runs. The check
// time is 5 s.
class LateTest : public ::testing::Test {
 protected:
  void SetUp() override { Start(); }
  void Start() {
    bed_.Ready(a_, 4, {0, 1});
    bed_.Ready(b_, 4, {2, 3});
  }
  std::vector<std::string> Logged(const std::string& event) {
    std::vector<std::string> out;
    for (const std::string& line : bed_.log()) {
      if (line.starts_with("event=" + event + " ")) out.push_back(line);
    }
    return out;
  }
  TestBed bed_;
  Executor& a_ = bed_.Connect("j", "n0");
  Executor& b_ = bed_.Connect("j", "n1");
};

TEST_F(LateTest, ANodeThatDoesNotSubmitIsReportedToTheSmallestRank) {
  bed_.From(a_, Present(1, {Allreduce("x", {0, 1}, {3})}));
  bed_.Pass(seconds(5) + milliseconds(100));
  EXPECT_THAT(a_.notices, IsEmpty());
  EXPECT_EQ(bed_.core().totals().late_ranks, 2u);
  EXPECT_EQ(bed_.core().totals().late_operations, 1u);
  bed_.Pass(milliseconds(100));
  EXPECT_THAT(
      a_.notices,
      ElementsAre("maypole: rank 2 (node n1, host host-n1, pid 1002), rank 3 "
                  "(node n1, host host-n1, pid 1003) have not submitted: "
                  "allreduce 'x' (ranks 0,1 have waited 5.2 s); they may be "
                  "slow, stopped or in another branch of the program"));
  EXPECT_THAT(b_.notices, IsEmpty());
  const auto lines = Logged("late_ranks");
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_THAT(lines[0], HasSubstr("job=j epoch=1 ranks=\"ranks 2,3\" "
                                  "operations=1 waited=5.2 reason=\"rank 2 "));
}

TEST_F(LateTest, AReportIsRepeatedLessAndLessOftenAndItsEndIsSaid) {
  bed_.From(a_, Present(1, {Allreduce("x", {0, 1}, {3})}));
  bed_.Pass(milliseconds(10190));
  EXPECT_EQ(a_.notices.size(), 1u);
  bed_.Pass(milliseconds(10));  // 10.2 s
  EXPECT_EQ(a_.notices.size(), 2u);
  EXPECT_THAT(a_.notices[1], HasSubstr("have waited 10.2 s"));
  bed_.Pass(seconds(9));
  EXPECT_EQ(a_.notices.size(), 2u);
  bed_.Pass(seconds(1));  // 20.2 s
  EXPECT_EQ(a_.notices.size(), 3u);
  bed_.Pass(seconds(5));
  bed_.From(b_, Present(1, {Allreduce("x", {2, 3}, {3})}));
  EXPECT_EQ(a_.runs.size(), 1u);
  bed_.Pass(seconds(1));
  ASSERT_EQ(a_.notices.size(), 4u);
  EXPECT_THAT(a_.notices[3],
              HasSubstr("maypole: no rank is late any more (the longest wait "
                        "was 25."));
  EXPECT_EQ(Logged("late_ranks").size(), 3u);
  EXPECT_EQ(Logged("late_ranks_over").size(), 1u);
  EXPECT_EQ(bed_.core().totals().late_ranks, 0u);
  EXPECT_FALSE(bed_.core().Deadline());
}

TEST_F(LateTest, WhatNodesSayIsMergedWithWhatIsPresent) {
  bed_.From(a_, Present(1, {Allreduce("x", {0, 1}, {3})}));
  bed_.Pass(seconds(3));
  bed_.From(b_, Late({{"x", 1, 6000, {2}, {3}}}));
  bed_.Pass(milliseconds(200));
  ASSERT_EQ(a_.notices.size(), 1u);
  EXPECT_THAT(a_.notices[0],
              HasSubstr("rank 3 (node n1, host host-n1, pid 1003) has not "
                        "submitted: allreduce 'x' (ranks 0,1,2 have waited "
                        "6.2 s); it may be slow"));
}

TEST_F(LateTest, NodesThatSayNothingHaveNotSubmitted) {
  bed_.From(a_, Late({{"x", 1, 5000, {0}, {1}}}));
  bed_.Pass(milliseconds(200));
  ASSERT_EQ(a_.notices.size(), 1u);
  EXPECT_THAT(a_.notices[0],
              AllOf(HasSubstr("rank 1 ("), HasSubstr("rank 2 ("),
                    HasSubstr("rank 3 ("), HasSubstr("(rank 0 has waited")));
}

TEST_F(LateTest, AStoppedProcessIsSaidToBeStopped) {
  bed_.From(a_, Present(1, {Allreduce("x", {0, 1}, {3})}));
  bed_.From(b_, Late({{"x", 1, 5000, {2}, {3}, {3}}}));
  bed_.Pass(milliseconds(200));
  ASSERT_EQ(a_.notices.size(), 1u);
  EXPECT_EQ(a_.notices[0],
            "maypole: rank 3 (node n1, host host-n1, pid 1003) (stopped by a "
            "signal) has not submitted: allreduce 'x' (ranks 0,1,2 have waited "
            "5.2 s)");
}

TEST_F(LateTest, ManyOperationsAreCounted) {
  std::vector<Op> many;
  for (int i = 0; i < 7; ++i) {
    many.push_back({"t" + std::to_string(i), 1, 6000 - i, {2}, {3}});
  }
  for (int i = 0; i < 7; ++i) {
    bed_.From(a_, Present(1, {Allreduce(many[i].name, {0, 1}, {3})}));
  }
  bed_.From(b_, Late(many, 10));
  bed_.Pass(milliseconds(200));
  ASSERT_EQ(a_.notices.size(), 1u);
  EXPECT_THAT(a_.notices[0], HasSubstr("allreduce 't2' (ranks 0,1,2 have "
                                       "waited 6.2 s), and 4 more; it may"));
  EXPECT_EQ(bed_.core().totals().late_operations, 17u);
}

TEST_F(LateTest, AnotherRankThatIsLateIsReportedSoon) {
  bed_.From(a_, Present(1, {Allreduce("x", {0, 1}, {3})}));
  bed_.From(b_, Late({{"x", 1, 5000, {2}, {3}}}));
  bed_.Pass(milliseconds(200));
  EXPECT_EQ(a_.notices.size(), 1u);
  bed_.From(b_, Late({{"x", 1, 5300, {2}, {3}}, {"y", 1, 5000, {3}, {2}}}));
  bed_.Pass(milliseconds(200));
  ASSERT_EQ(a_.notices.size(), 2u);
  EXPECT_THAT(a_.notices[1], HasSubstr("rank 2 ("));
  // Another operation of the same ranks is not.
  bed_.From(b_, Late({{"x", 1, 5600, {2}, {3}},
                      {"y", 1, 5300, {3}, {2}},
                      {"z", 1, 5000, {3}, {2}}}));
  bed_.Pass(seconds(1));
  EXPECT_EQ(a_.notices.size(), 2u);
}

TEST_F(LateTest, WhatANodeSaysNoMoreIsOver) {
  bed_.From(a_, Late({{"x", 1, 5000, {0}, {1}}}));
  bed_.Pass(milliseconds(200));
  EXPECT_EQ(a_.notices.size(), 1u);
  bed_.From(a_, Late({}));
  ASSERT_EQ(a_.notices.size(), 2u);
  EXPECT_THAT(a_.notices[1], HasSubstr("no rank is late any more"));
}

TEST_F(LateTest, WhatHasBeenAnsweredMeanwhileIsNotLate) {
  bed_.From(a_, Present(1, {Allreduce("x", {0, 1}, {3})}));
  bed_.From(b_, Present(1, {Allreduce("x", {2, 3}, {3})}));
  bed_.From(b_, Late({{"x", 1, 5000, {2}, {3}}}));
  bed_.Pass(seconds(1));
  EXPECT_THAT(a_.notices, IsEmpty());
  // But its next generation is.
  bed_.From(b_, Late({{"x", 2, 5000, {2}, {3}}}));
  bed_.Pass(seconds(1));
  EXPECT_EQ(b_.notices.size(), 1u);
}

TEST_F(LateTest, RanksThatStandAsideOrHaveLeftAreNotLate) {
  bed_.From(a_, Present(1, {Allreduce("x", {0, 1}, {3})}));
  bed_.From(b_, Join(2, 1, false));
  bed_.Pass(seconds(6));
  ASSERT_EQ(a_.notices.size(), 1u);
  EXPECT_THAT(a_.notices[0], HasSubstr("maypole: rank 3 ("));
  EXPECT_THAT(a_.notices[0], ::testing::Not(HasSubstr("rank 2")));
  // An operation that needs a rank that has left fails, and is not late.
  bed_.From(b_, Late({{"y", 1, 5000, {2}, {3}}}));
  bed_.From(a_, Gone(1, 0, true));
  bed_.Pass(seconds(20));
  EXPECT_EQ(bed_.core().totals().late_ranks, 0u);
  ASSERT_EQ(a_.notices.size(), 2u);
  EXPECT_THAT(a_.notices[1], HasSubstr("no rank is late any more"));
}

// A joined rank that is stopped, on a node with one that waits.
TEST_F(LateTest, WhoStandsAsideAndDoesNotStandInIsLate) {
  bed_.From(b_, Join(3, 1, false));
  bed_.Pass(seconds(2));
  bed_.From(a_, Present(1, {Allreduce("x", {0, 1}, {3})}));
  bed_.Pass(seconds(5));
  bed_.From(b_, Late({{"x", 1, 5000, {2}, {3}, {3}}}));
  bed_.Pass(milliseconds(200));
  ASSERT_EQ(a_.notices.size(), 1u);
  EXPECT_EQ(a_.notices[0],
            "maypole: rank 3 (node n1, host host-n1, pid 1003) (stopped by a "
            "signal) has joined, and does not stand in for: allreduce 'x' "
            "(ranks 0,1,2 have waited 5.2 s)");
}

TEST_F(LateTest, WhoHasJustJoinedHasTheCheckTimeToStandIn) {
  bed_.From(a_, Present(1, {Allreduce("x", {0, 1}, {3})}));
  bed_.From(b_, Late({{"x", 1, 5000, {2}, {3}}}));
  bed_.From(b_, Join(3, 1, false));
  bed_.Pass(milliseconds(5190));
  EXPECT_THAT(a_.notices, IsEmpty());
  bed_.Pass(milliseconds(10));
  EXPECT_EQ(a_.notices.size(), 1u);
}

// All ranks of a node have joined, and were asked to stand in.
TEST_F(LateTest, ANodeThatDoesNotStandInIsLate) {
  for (const uint32_t r : {2, 3}) bed_.From(b_, Join(r, 1, false));
  bed_.Pass(seconds(60));
  bed_.From(a_, Present(1, {Allreduce("x", {0, 1}, {3})}));
  EXPECT_EQ(b_.stand_ins.size(), 1u);
  bed_.Pass(milliseconds(5190));
  EXPECT_THAT(a_.notices, IsEmpty());
  bed_.Pass(milliseconds(10));
  ASSERT_EQ(a_.notices.size(), 1u);
  EXPECT_THAT(a_.notices[0],
              HasSubstr("rank 3 (node n1, host host-n1, pid 1003) have joined, "
                        "and do not stand in for: allreduce 'x' (ranks 0,1 "
                        "have waited 5.2 s); they may be slow"));
  bed_.From(b_, Present(1, {Allreduce("x", {2, 3}, {3})}));
  bed_.Pass(seconds(1));
  EXPECT_EQ(a_.notices.size(), 2u);
}

// Rank 0 does not print the notice, because it does not read its messages.
TEST_F(LateTest, ANoticeGoesToTheNodeOfARankThatWaits) {
  bed_.From(b_, Present(1, {Allreduce("x", {2, 3}, {3})}));
  bed_.Pass(milliseconds(5200));
  EXPECT_THAT(a_.notices, IsEmpty());
  EXPECT_THAT(b_.notices, ElementsAre(HasSubstr("rank 0 (node n0")));
  bed_.From(a_, Present(1, {Allreduce("x", {0, 1}, {3})}));
  bed_.Pass(seconds(1));
  EXPECT_THAT(a_.notices, IsEmpty());
  EXPECT_THAT(b_.notices, ElementsAre(testing::_, HasSubstr("no rank is late "
                                                            "any more")));
}

TEST_F(LateTest, IfAllAreLateForSomethingTheSmallestIsTold) {
  bed_.From(a_, Present(1, {Allreduce("x", {0, 1}, {3})}));
  bed_.From(b_, Present(1, {Allreduce("y", {2, 3}, {3})}));
  bed_.Pass(milliseconds(5200));
  EXPECT_EQ(a_.notices.size(), 1u);
  EXPECT_THAT(b_.notices, IsEmpty());
}

TEST_F(LateTest, ThatAllWaitForEachOtherEndsTheEpochAfterTenMinutes) {
  bed_.From(a_, Present(1, {Allreduce("x", {0, 1}, {3})}));
  bed_.Pass(std::chrono::minutes(1));
  bed_.From(b_, Present(1, {Allreduce("y", {2, 3}, {3})}));
  bed_.Pass(std::chrono::minutes(10) - milliseconds(1));
  EXPECT_THAT(a_.ends, IsEmpty());
  bed_.Pass(milliseconds(1));
  for (const Executor* e : {&a_, &b_}) {
    ASSERT_EQ(e->ends.size(), 1u);
    EXPECT_EQ(e->ends[0].code(),
              static_cast<int>(absl::StatusCode::kFailedPrecondition));
    EXPECT_THAT(e->ends[0].message(),
                HasSubstr("every rank has waited for another for 600 s: "));
    EXPECT_THAT(e->ends[0].message(),
                HasSubstr("have not submitted: allreduce 'x' (ranks 0,1 have "
                          "waited 660.0 s)"));
    EXPECT_THAT(e->ends[0].message(),
                HasSubstr("have not submitted: allreduce 'y'"));
  }
  EXPECT_EQ(bed_.Count(ErrorKind::kStalled), 1);
}

TEST_F(LateTest, OneRankThatDoesNotWaitIsEnoughToGoOn) {
  // Rank 3 is busy, or stopped.
  bed_.From(a_, Present(1, {Allreduce("x", {0, 1}, {3})}));
  bed_.From(b_, Late({{"y", 1, 5000, {2}, {3}}}));
  bed_.Pass(std::chrono::minutes(60));
  EXPECT_THAT(a_.ends, IsEmpty());
  bed_.From(b_, Late({{"y", 1, 5000, {2, 3}, {}},
                      {"z", 1, 5000, {2}, {3}, /*stopped=*/{3}}}));
  bed_.Pass(std::chrono::minutes(60));
  EXPECT_THAT(a_.ends, IsEmpty());
}

TEST_F(LateTest, WhatLastsCountsAndNotWhatRecurs) {
  for (uint32_t n = 1; n < 30; ++n) {
    bed_.From(a_, Present(n, {Allreduce("x", {0, 1}, {3})}));
    bed_.From(b_, Present(n, {Allreduce("y", {2, 3}, {3})}));
    bed_.Pass(std::chrono::minutes(1));
    bed_.From(b_, Present(n, {Allreduce("x", {2, 3}, {3})}));
    bed_.From(a_, Present(n, {Allreduce("y", {0, 1}, {3})}));
  }
  EXPECT_THAT(a_.ends, IsEmpty());
}

TEST_F(LateTest, RequestsForProcessSetsAreLateToo) {
  bed_.From(a_, MakeSet(0, 1, {0, 1}));
  bed_.From(b_, MakeSet(2, 1, {0, 1}));
  bed_.From(b_, MakeSet(3, 1, {0, 1}));
  bed_.Pass(seconds(6));
  ASSERT_EQ(a_.notices.size(), 1u);
  EXPECT_THAT(a_.notices[0],
              HasSubstr("rank 1 (node n0, host host-n0, pid 1001) has not "
                        "submitted: process set request 1 (ranks 0,2,3 have "
                        "waited 5.2 s)"));
}

TEST_F(LateTest, SetsConcernTheirRanksOnly) {
  for (const uint32_t r : {0, 1}) bed_.From(a_, MakeSet(r, 1, {1, 3}));
  for (const uint32_t r : {2, 3}) bed_.From(b_, MakeSet(r, 1, {1, 3}));
  bed_.From(a_, Present(1, {In(1, Allreduce("x", {1}, {3}))}));
  bed_.Pass(seconds(6));
  ASSERT_EQ(a_.notices.size(), 1u);
  EXPECT_THAT(a_.notices[0],
              HasSubstr("rank 3 (node n1, host host-n1, pid 1003) has not "
                        "submitted: allreduce 'x' of process set 1 (rank 1 has "
                        "waited"));
}

TEST_F(LateTest, BadMessages) {
  std::vector<std::vector<Op>> bad = {
      {{"x", 1, 5000, {0}, {2}}},         // not its rank
      {{"x", 1, -1, {0}, {1}}},           // a time in the future
      {{"x", 1, 5000, {0}, {1}, {}, 7}},  // no such set
      std::vector<Op>(kMaxLateOperations + 1, {"x", 1, 5000, {0}, {1}}),
  };
  for (const auto& operations : bad) {
    TestBed bed;
    Executor& a = bed.Connect("j", "n0");
    Executor& b = bed.Connect("j", "n1");
    bed.Ready(a, 4, {0, 1});
    bed.Ready(b, 4, {2, 3});
    bed.From(a, Late(operations));
    EXPECT_TRUE(a.refused);
  }
}

// The job's times are those of the smallest rank that sets any.
class LateTimesTest : public LateTest {
 protected:
  void SetUp() override {}
  // With the times that n0 and n1 set.
  void StartWith(int64_t check_a, int64_t check_b, int64_t shutdown = -1) {
    bed_.stall_check_ms = check_b;
    bed_.stall_shutdown_ms = shutdown;
    bed_.Ready(b_, 4, {2, 3});
    bed_.stall_check_ms = check_a;
    bed_.stall_shutdown_ms = -1;
    bed_.Ready(a_, 4, {0, 1});
    for (const auto& m : a_.inbox) {
      if (m.has_epoch_start()) check_ms_ = m.epoch_start().stall_check_ms();
    }
  }
  int64_t check_ms_ = -1;
};

TEST_F(LateTimesTest, AreFiveSecondsByDefault) {
  StartWith(-1, -1);
  EXPECT_EQ(check_ms_, 5000);
}

TEST_F(LateTimesTest, AreThoseOfTheSmallestRankThatSaysAny) {
  StartWith(700, 3000);
  EXPECT_EQ(check_ms_, 700);
}

TEST_F(LateTimesTest, AreThoseOfALaterRankIfTheFirstSayNothing) {
  StartWith(-1, 3000);
  EXPECT_EQ(check_ms_, 3000);
}

TEST_F(LateTimesTest, ZeroReportsNothing) {
  StartWith(0, -1, 2000);
  EXPECT_EQ(check_ms_, 0);
  bed_.From(a_, Present(1, {Allreduce("x", {0, 1}, {3})}));
  EXPECT_FALSE(bed_.core().Deadline());
  bed_.Pass(seconds(1000));
  EXPECT_THAT(a_.notices, IsEmpty());
  EXPECT_THAT(a_.ends, IsEmpty());
  EXPECT_EQ(Logged("stall_shutdown_too_short").size(), 1u);
}

TEST_F(LateTimesTest, ShutdownEndsTheEpochWithTheSentence) {
  StartWith(1000, -1, 30000);
  bed_.From(a_, Present(1, {Allreduce("x", {0, 1}, {3})}));
  bed_.Pass(milliseconds(29999));
  EXPECT_THAT(a_.ends, IsEmpty());
  bed_.Pass(milliseconds(1));
  for (const Executor* e : {&a_, &b_}) {
    ASSERT_EQ(e->ends.size(), 1u);
    EXPECT_EQ(e->ends[0].epoch(), 1u);
    EXPECT_EQ(e->ends[0].code(), static_cast<int>(absl::StatusCode::kAborted));
    EXPECT_THAT(e->ends[0].message(),
                HasSubstr("the stall shutdown time (30 s) has passed: rank 2 "
                          "(node n1, host host-n1, pid 1002), rank 3 "));
    EXPECT_THAT(e->ends[0].message(), HasSubstr("waited 30.0 s"));
  }
  EXPECT_EQ(bed_.Count(ErrorKind::kStalled), 1);
  EXPECT_FALSE(bed_.core().Deadline());
}

TEST_F(LateTimesTest, ShutdownCountsWhatOneNodeSays) {
  StartWith(1000, -1, 3000);
  bed_.From(b_, Late({{"x", 1, 1500, {2}, {3}}}));
  bed_.Pass(milliseconds(1499));
  EXPECT_THAT(a_.ends, IsEmpty());
  bed_.Pass(milliseconds(1));
  EXPECT_EQ(a_.ends.size(), 1u);
}

TEST_F(LateTimesTest, AShutdownTimeAlsoCountsIfAllWaitForEachOther) {
  StartWith(1000, -1, 3'600'000);
  bed_.From(a_, Present(1, {Allreduce("x", {0, 1}, {3})}));
  bed_.From(b_, Present(1, {Allreduce("y", {2, 3}, {3})}));
  bed_.Pass(std::chrono::minutes(59));
  EXPECT_THAT(a_.ends, IsEmpty());
  bed_.Pass(std::chrono::minutes(1));
  ASSERT_EQ(a_.ends.size(), 1u);
  EXPECT_THAT(a_.ends[0].message(), HasSubstr("the stall shutdown time"));
}

TEST_F(LateTimesTest, AbsurdTimesAreABadMessage) {
  bed_.stall_check_ms = -2;
  bed_.Ready(a_, 4, {0, 1});
  EXPECT_TRUE(a_.refused);
}

TEST(LateSentenceTest, ManyRanksAreNotAllDescribed) {
  TestBed bed;
  Executor& a = bed.Connect("j", "n0");
  Executor& b = bed.Connect("j", "n1");
  bed.Ready(a, 42, {0, 1});
  Ranks many(40);
  for (uint32_t i = 0; i < 40; ++i) many[i] = i + 2;
  bed.Ready(b, 42, many);
  bed.From(a, Present(1, {Allreduce("x", {0, 1}, {3})}));
  bed.Pass(seconds(6));
  ASSERT_EQ(a.notices.size(), 1u);
  EXPECT_THAT(
      a.notices[0],
      HasSubstr("maypole: ranks 2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17 "
                "and 24 more, the first being rank 2 (node n1, host "
                "host-n1, pid 1002), have not submitted: allreduce 'x' "
                "(ranks 0,1 have waited 5.2 s)"));
}

TEST(LateOneNodeTest, AJobOnOneNodeIsReportedToo) {
  TestBed bed;
  Executor& a = bed.Connect("j", "n0");
  bed.Ready(a, 2, {0, 1});
  bed.From(a, Late({{"x", 7, 5000, {0}, {1}}}));
  bed.Pass(milliseconds(200));
  ASSERT_EQ(a.notices.size(), 1u);
  EXPECT_THAT(a.notices[0], HasSubstr("rank 1 (node n0"));
}

}  // namespace
}  // namespace maypole::coordinator
