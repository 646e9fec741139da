// Starts and ends of epochs (docs/design.md section 12, "Who ends what").
#include "coordinator/core/job.h"

#include "coordinator/core/testing/testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace maypole::coordinator {
namespace {

using std::chrono::seconds;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr int kAborted = static_cast<int>(absl::StatusCode::kAborted);

// Two nodes; node n0 has ranks 0 and 1, node n1 has 2 and 3.
class JobTest : public ::testing::Test {
 protected:
  void Start() {
    bed_.Ready(b_, 4, {2, 3});
    bed_.Ready(a_, 4, {0, 1});
  }
  TestBed bed_;
  Executor& a_ = bed_.Connect("j", "n0");
  Executor& b_ = bed_.Connect("j", "n1");
};

TEST_F(JobTest, StartsWhenAllRanksAreThereNodesOrderedBySmallestRank) {
  bed_.Ready(b_, 4, {3, 2});
  EXPECT_TRUE(b_.inbox.empty());
  bed_.Ready(a_, 4, {0, 1});
  ASSERT_EQ(a_.inbox.size(), 1u);
  ASSERT_EQ(b_.inbox.size(), 1u);
  const proto::EpochStart& start = b_.inbox[0].epoch_start();
  EXPECT_EQ(start.epoch(), 1u);
  EXPECT_EQ(start.size(), 4u);
  EXPECT_EQ(start.node_index(), 1u);
  EXPECT_EQ(a_.inbox[0].epoch_start().node_index(), 0u);
  ASSERT_EQ(start.nodes_size(), 2);
  EXPECT_EQ(start.nodes(0).node(), "n0");
  EXPECT_EQ(start.nodes(1).host(), "host-n1");
  EXPECT_EQ(start.nodes(1).ranks(0), 3u);  // by local rank
  EXPECT_EQ(start.nodes(1).ranks(1), 2u);
  EXPECT_FALSE(bed_.core().Deadline());
}

TEST_F(JobTest, DifferentSizesFailTheStartForAll) {
  bed_.Ready(a_, 4, {0, 1});
  bed_.Ready(b_, 5, {2, 3});
  for (const Executor* e : {&a_, &b_}) {
    ASSERT_EQ(e->ends.size(), 1u);
    EXPECT_EQ(e->ends[0].epoch(), 0u);
    EXPECT_THAT(e->ends[0].message(),
                AllOf(HasSubstr("node n0 (host host-n0) with ranks 0,1"),
                      HasSubstr("has 4 ranks"), HasSubstr("says 5"),
                      HasSubstr("node n1 (host host-n1)")));
  }
}

TEST_F(JobTest, TheLeastOfDifferentChunksIsTaken) {
  bed_.Ready(a_, 4, {0, 1}, 524288);
  bed_.Ready(b_, 4, {2, 3}, 262144);
  for (const Executor* e : {&a_, &b_}) {
    ASSERT_TRUE(e->Last().has_epoch_start());
    EXPECT_EQ(e->Last().epoch_start().chunk_bytes(), 262144u);
  }
}

TEST_F(JobTest, ARankTwiceFailsTheStartForAll) {
  bed_.Ready(a_, 4, {0, 1});
  bed_.Ready(b_, 4, {1, 2});
  ASSERT_EQ(a_.ends.size(), 1u);
  EXPECT_THAT(a_.ends[0].message(),
              AllOf(HasSubstr("rank 1 is there twice"), HasSubstr("node n0"),
                    HasSubstr("node n1")));
  EXPECT_EQ(b_.ends.size(), 1u);
}

TEST_F(JobTest, ARankTwiceOnOneNodeOrOutOfRangeFailsTheStart) {
  bed_.Ready(a_, 4, {0, 0});
  ASSERT_EQ(a_.ends.size(), 1u);
  EXPECT_THAT(a_.ends[0].message(), HasSubstr("rank 0 is there twice"));
  bed_.Ready(a_, 4, {0, 4});
  ASSERT_EQ(a_.ends.size(), 2u);
  EXPECT_THAT(a_.ends[1].message(),
              AllOf(HasSubstr("rank 4"), HasSubstr("job of 4 ranks")));
}

TEST_F(JobTest, ThoseWhoComeLateToAFailedStartAreToldAtOnce) {
  Executor& c = bed_.Connect("j", "n2");
  bed_.Ready(a_, 4, {0});
  bed_.Ready(b_, 5, {1});
  bed_.Ready(c, 4, {2});
  ASSERT_EQ(c.ends.size(), 1u);
  EXPECT_EQ(c.ends[0].message(), a_.ends[0].message());
  // A new attempt by all ranks is a new start.
  bed_.Ready(c, 3, {2});
  bed_.Ready(a_, 3, {0});
  bed_.Ready(b_, 3, {1});
  EXPECT_TRUE(c.Last().has_epoch_start());
}

TEST_F(JobTest, StartTimeoutNamesTheMissingAndTheArrived) {
  bed_.Ready(a_, 4, {0, 1});
  bed_.Pass(seconds(119));
  EXPECT_TRUE(a_.ends.empty());
  bed_.Pass(seconds(2));
  ASSERT_EQ(a_.ends.size(), 1u);
  EXPECT_EQ(a_.ends[0].epoch(), 0u);
  EXPECT_EQ(a_.ends[0].code(),
            static_cast<int>(absl::StatusCode::kDeadlineExceeded));
  EXPECT_THAT(a_.ends[0].message(),
              AllOf(HasSubstr("within 120 s"),
                    HasSubstr("ranks 2,3 of 4 have not called init()"),
                    HasSubstr("node n0 (host host-n0) with ranks 0,1")));
  EXPECT_EQ(bed_.Count(ErrorKind::kStartTimeout), 1);
  EXPECT_FALSE(bed_.core().Deadline());
  bed_.Ready(a_, 4, {0, 1});  // again
  bed_.Ready(b_, 4, {2, 3});
  EXPECT_TRUE(a_.Last().has_epoch_start());
}

proto::ExecutorMessage ReadyWith(const std::vector<uint32_t>& ranks,
                                 const std::vector<int64_t>& thresholds) {
  proto::ExecutorMessage m;
  proto::RanksReady* ready = m.mutable_ranks_ready();
  ready->set_chunk_bytes(4096);
  ready->set_size(4);
  ready->mutable_ranks()->Assign(ranks.begin(), ranks.end());
  ready->mutable_fusion_thresholds()->Assign(thresholds.begin(),
                                             thresholds.end());
  return m;
}

// Two allreduces of 64 bytes in one message: the runs they make.
size_t RunsOfTwo(TestBed* bed, Executor* a, Executor* b) {
  bed->From(*a, Present(1, {Allreduce("x", {0, 1}, {16}),
                            Allreduce("y", {0, 1}, {16})}));
  bed->From(*b, Present(1, {Allreduce("x", {2, 3}, {16}),
                            Allreduce("y", {2, 3}, {16})}));
  return a->runs.size();
}

TEST_F(JobTest, TheSmallestRanksFusionThresholdCounts) {
  bed_.From(b_, ReadyWith({2, 3}, {1024, -1}));
  bed_.From(a_, ReadyWith({0, 1}, {-1, 64}));
  EXPECT_EQ(RunsOfTwo(&bed_, &a_, &b_), 2u);
  EXPECT_THAT(bed_.log(),
              Contains(AllOf(HasSubstr("event=fusion_thresholds_differ job=j"),
                             HasSubstr("rank=1 bytes=64 other_rank=2 "
                                       "other_bytes=1024 used=64"))));
}

TEST_F(JobTest, WithoutAThresholdOfItsRanksAJobHasTheCoordinators) {
  bed_.From(a_, ReadyWith({0, 1}, {}));
  bed_.From(b_, ReadyWith({2, 3}, {-1, -1}));
  EXPECT_EQ(RunsOfTwo(&bed_, &a_, &b_), 1u);
  EXPECT_THAT(bed_.log(), Not(Contains(HasSubstr("fusion"))));
}

TEST_F(JobTest, AbsurdThresholdsAreBadMessages) {
  bed_.From(a_, ReadyWith({0, 1}, {1}));
  EXPECT_TRUE(a_.refused);
  bed_.From(b_, ReadyWith({2, 3}, {-2, 0}));
  EXPECT_TRUE(b_.refused);
}

TEST_F(JobTest, StartTimeoutNamesRanksMissingOnANodeThatHasOthers) {
  bed_.Waiting(a_, 4, {0}, 2);
  bed_.Pass(seconds(100));
  bed_.Ready(b_, 4, {2, 3});
  bed_.Pass(seconds(21));
  for (const Executor* e : {&a_, &b_}) {
    ASSERT_EQ(e->ends.size(), 1u);
    EXPECT_EQ(e->ends[0].epoch(), 0u);
    EXPECT_EQ(e->ends[0].message(),
              "the job did not start within 120 s: rank 1 of 4 has not called "
              "init(); arrived: node n1 (host host-n1) with ranks 2,3, node n0 "
              "(host host-n0) with rank 0 (1 of its 2 ranks)");
  }
  EXPECT_THAT(bed_.log().back(), HasSubstr("rank 1 of 4 has not called init"));
  EXPECT_FALSE(bed_.core().Deadline());
  // Ranks that come late do not belong to it; all may try again.
  bed_.Waiting(a_, 4, {0}, 2);
  bed_.Ready(a_, 4, {0, 1});
  bed_.Ready(b_, 4, {2, 3});
  EXPECT_TRUE(a_.Last().has_epoch_start());
}

// The job names the missing ranks while other ranks wait for them.
TEST_F(JobTest, TheMostImpatientRankSaysHowLongAStartMayTake) {
  bed_.start_timeout_ms = 300000;
  bed_.Waiting(a_, 4, {0}, 2);
  bed_.Pass(seconds(125));  // longer than --start_timeout
  EXPECT_TRUE(a_.ends.empty());
  bed_.start_timeout_ms = 130000;
  bed_.Ready(b_, 4, {2, 3});
  bed_.Pass(seconds(4));
  EXPECT_TRUE(a_.ends.empty());
  bed_.Pass(seconds(1));  // since the first came
  for (const Executor* e : {&a_, &b_}) {
    ASSERT_EQ(e->ends.size(), 1u);
    EXPECT_THAT(e->ends[0].message(),
                HasSubstr("did not start within 130 s: rank 1 of 4"));
  }
  EXPECT_FALSE(bed_.core().Deadline());
}

TEST_F(JobTest, AnAbsurdStartTimeoutIsRefused) {
  bed_.start_timeout_ms = -1;
  bed_.Waiting(a_, 4, {0}, 2);
  EXPECT_TRUE(a_.refused);
  bed_.start_timeout_ms = 86400001;
  bed_.Ready(b_, 4, {2, 3});
  EXPECT_TRUE(b_.refused);
}

TEST_F(JobTest, NobodyWaitsAnyMore) {
  bed_.Waiting(a_, 4, {0}, 2);
  EXPECT_TRUE(bed_.core().Deadline());
  bed_.Waiting(a_, 4, {}, 2);
  EXPECT_FALSE(bed_.core().Deadline());
  bed_.Waiting(a_, 4, {0}, 2);
  bed_.Finish(a_);
  EXPECT_FALSE(bed_.core().Deadline());
}

TEST_F(JobTest, AStartThatTimedOutWhileItsLastRanksCame) {
  bed_.Ready(b_, 4, {2, 3});
  bed_.Waiting(a_, 4, {0}, 2);
  bed_.Pass(seconds(121));
  ASSERT_EQ(a_.ends.size(), 1u);
  // Node n0 was complete before it heard of that, and gave up when it did.
  bed_.Ready(b_, 4, {2, 3});
  bed_.Ready(a_, 4, {0, 1});
  bed_.Waiting(a_, 0, {}, 0);
  ASSERT_EQ(b_.ends.size(), 2u);
  EXPECT_EQ(b_.ends[1].epoch(), 1u);
  EXPECT_THAT(b_.ends[1].message(), HasSubstr("node n0"));
}

TEST_F(JobTest, ANodeThatIsNotCompleteHearsOfAFailedStartWhenItIs) {
  bed_.Waiting(b_, 4, {2}, 2);
  bed_.Ready(a_, 4, {0, 1});
  bed_.From(a_, Gone(0, 1, false, "killed by signal 9"));
  EXPECT_TRUE(b_.ends.empty());
  bed_.Ready(b_, 4, {2, 3});
  ASSERT_EQ(b_.ends.size(), 1u);
  EXPECT_THAT(b_.ends[0].message(), HasSubstr("killed by signal 9"));
}

TEST_F(JobTest, ARankThatDiesWhileWaitingFailsTheStart) {
  Executor& c = bed_.Connect("j", "n2");
  bed_.Ready(c, 5, {4});
  bed_.Ready(a_, 5, {0, 1});
  bed_.From(a_, Gone(0, 1, false, "killed by signal 9"));
  ASSERT_EQ(c.ends.size(), 1u);
  EXPECT_THAT(c.ends[0].message(),
              AllOf(HasSubstr("rank 1 (node n0, host host-n0, pid 1001)"),
                    HasSubstr("killed by signal 9")));
  // The reporter is not told: it may be ready for the next start already.
  EXPECT_TRUE(a_.ends.empty());
  bed_.Ready(a_, 4, {0, 1});
  bed_.Ready(b_, 4, {2, 3});
  EXPECT_TRUE(a_.Last().has_epoch_start());
}

TEST_F(JobTest, AFailedExecutorFailsTheStartForTheOthers) {
  bed_.Ready(a_, 4, {0, 1});
  Executor& c = bed_.Connect("j", "n2");
  bed_.Ready(c, 4, {2});
  proto::ExecutorMessage m;
  m.mutable_failed()->set_message("no memory");
  bed_.From(a_, m);
  EXPECT_TRUE(a_.ends.empty());
  ASSERT_EQ(c.ends.size(), 1u);
  EXPECT_THAT(c.ends[0].message(),
              AllOf(HasSubstr("node n0 (host host-n0) with ranks 0,1 failed"),
                    HasSubstr("no memory")));
}

TEST_F(JobTest, ReadyAgainTakesThePlaceOfTheOlder) {
  bed_.Ready(a_, 4, {0, 1, 3});
  bed_.Ready(a_, 4, {0, 1});
  bed_.Ready(b_, 4, {2, 3});
  ASSERT_TRUE(a_.Last().has_epoch_start());
  EXPECT_EQ(a_.Last().epoch_start().nodes(0).ranks_size(), 2);
}

TEST_F(JobTest, AnExecutorLostWhileWaitingFailsTheStart) {
  bed_.Ready(a_, 4, {0, 1});
  Executor& c = bed_.Connect("j", "n2");
  bed_.Ready(c, 4, {2});
  bed_.Break(a_);
  bed_.Pass(seconds(4));
  ASSERT_EQ(c.ends.size(), 1u);
  EXPECT_THAT(c.ends[0].message(), HasSubstr("cannot start"));
}

// Its ranks have called init(), and a user who looks for them must look there.
TEST_F(JobTest, AStartTimeoutNamesAnExecutorThatWasLostWhileItsRanksCame) {
  bed_.Waiting(a_, 4, {0}, 2);
  bed_.Ready(b_, 4, {2, 3});
  bed_.Break(a_);
  bed_.Pass(seconds(121));
  ASSERT_EQ(b_.ends.size(), 1u);
  EXPECT_EQ(
      b_.ends[0].message(),
      "the job did not start within 120 s: ranks 0,1 of 4 have not "
      "called init(); arrived: node n1 (host host-n1) with ranks 2,3; "
      "lost again: node n0 (host host-n0) with rank 0 (1 of its 2 ranks), "
      "whose executor was lost: its connection broke and did not come "
      "back within 3 s");
  // Not in the next start, in which the node is there.
  bed_.Ready(b_, 4, {2, 3});
  Executor& again = bed_.Connect("j", "n0");
  bed_.Waiting(again, 4, {0}, 2);
  bed_.Pass(seconds(121));
  ASSERT_EQ(b_.ends.size(), 2u);
  EXPECT_THAT(b_.ends[1].message(), Not(HasSubstr("lost again")));
}

TEST_F(JobTest, ADeadRankEndsTheEpochForAll) {
  Start();
  bed_.From(b_, Gone(1, 3, false, "closed its connection (pid 1003)"));
  for (const Executor* e : {&a_, &b_}) {
    ASSERT_EQ(e->ends.size(), 1u);
    EXPECT_EQ(e->ends[0].epoch(), 1u);
    EXPECT_EQ(e->ends[0].code(), kAborted);
    EXPECT_THAT(e->ends[0].message(),
                AllOf(HasSubstr("rank 3 (node n1, host host-n1, pid 1003)"),
                      HasSubstr("closed its connection")));
  }
  EXPECT_EQ(bed_.Count(ErrorKind::kRankLost), 1);
  EXPECT_EQ(bed_.Status().jobs(0).state(), "ended");
}

TEST_F(JobTest, ARankGoneThatCrossedTheEpochsStartCountsForIt) {
  Start();
  bed_.From(a_, Gone(0, 0, false, "died"));
  ASSERT_EQ(b_.ends.size(), 1u);
  EXPECT_EQ(b_.ends[0].epoch(), 1u);
}

TEST_F(JobTest, TheNextEpochAfterAnAbort) {
  Start();
  bed_.From(b_, Gone(1, 3, false, "died"));
  // The message crossed the end, and is dropped.
  bed_.From(a_, Present(1, {Allreduce("x", {0, 1}, {3})}));
  bed_.From(b_, Gone(1, 2, false, "died"));
  bed_.Ready(a_, 4, {0, 1});
  bed_.Ready(b_, 4, {2, 3});
  EXPECT_EQ(a_.Last().epoch_start().epoch(), 2u);
  EXPECT_EQ(bed_.Count(ErrorKind::kRankLost), 1);
  // Ids start again.
  bed_.From(a_, Present(2, {Allreduce("x", {0, 1}, {3})}));
  bed_.From(b_, Present(2, {Allreduce("x", {2, 3}, {3})}));
  ASSERT_EQ(a_.runs.size(), 1u);
  EXPECT_EQ(a_.runs[0].run(), 1u);
  EXPECT_EQ(a_.runs[0].operations(0).id(), 1u);
}

TEST_F(JobTest, AFailedExecutorEndsTheEpoch) {
  Start();
  proto::ExecutorMessage m;
  m.set_epoch(1);
  m.mutable_failed()->set_message("no route to node n0");
  bed_.From(b_, m);
  ASSERT_EQ(a_.ends.size(), 1u);
  EXPECT_THAT(a_.ends[0].message(),
              AllOf(HasSubstr("executor of node n1 (host host-n1) with ranks "
                              "2,3 failed"),
                    HasSubstr("no route to node n0")));
}

TEST_F(JobTest, ALostExecutorEndsTheEpochAfterTheResumeTimeout) {
  Start();
  bed_.Break(b_);
  bed_.Pass(seconds(2));
  EXPECT_TRUE(a_.ends.empty());
  bed_.Pass(seconds(2));
  ASSERT_EQ(a_.ends.size(), 1u);
  EXPECT_THAT(a_.ends[0].message(),
              AllOf(HasSubstr("node n1 (host host-n1) with ranks 2,3"),
                    HasSubstr("did not come back within 3 s")));
  EXPECT_EQ(bed_.Count(ErrorKind::kExecutorLost), 1);
  EXPECT_EQ(bed_.core().totals().nodes, 1u);
}

TEST_F(JobTest, FinishingWithLiveRanksIsNoWayToLeave) {
  Start();
  bed_.Finish(b_);
  EXPECT_TRUE(a_.ends.empty());
  bed_.Pass(seconds(4));
  EXPECT_EQ(a_.ends.size(), 1u);
}

TEST_F(JobTest, AnEpochIsOverWhenAllRanksHaveLeft) {
  Start();
  for (uint32_t rank : {0, 1}) bed_.From(a_, Gone(1, rank, true));
  // Ranks that have left may already wait for the next epoch.
  bed_.Ready(a_, 4, {0, 1});
  EXPECT_EQ(bed_.Status().jobs(0).state(), "running");
  for (uint32_t rank : {2, 3}) bed_.From(b_, Gone(1, rank, true));
  EXPECT_TRUE(a_.ends.empty());
  EXPECT_EQ(bed_.Status().jobs(0).state(), "starting");
  bed_.Ready(b_, 4, {2, 3});
  EXPECT_EQ(b_.Last().epoch_start().epoch(), 2u);
}

TEST_F(JobTest, AnExecutorWhoseRanksHaveLeftMayGo) {
  Start();
  for (uint32_t rank : {0, 1}) bed_.From(a_, Gone(1, rank, true));
  bed_.Finish(a_);
  EXPECT_TRUE(b_.ends.empty());
  bed_.From(b_, Gone(1, 2, true));
  bed_.From(b_, Gone(1, 3, true));
  EXPECT_EQ(bed_.Status().jobs(0).state(), "ended");
  bed_.Finish(b_);
  EXPECT_EQ(bed_.core().totals().jobs, 0u);
}

TEST_F(JobTest, RanksThatHaveNotLeftCannotBeReady) {
  Start();
  bed_.Ready(a_, 4, {0, 1});
  ASSERT_TRUE(a_.refused);
  EXPECT_THAT(a_.refused->message(), HasSubstr("have not left epoch 1"));
}

TEST_F(JobTest, AStrangerWaitsForTheEndOfTheEpochAndIsToldWhyInVain) {
  Start();
  Executor& c = bed_.Connect("j", "n2");
  bed_.Ready(c, 1, {0});
  EXPECT_TRUE(c.inbox.empty());
  bed_.Pass(seconds(121));
  ASSERT_EQ(c.ends.size(), 1u);
  EXPECT_THAT(c.ends[0].message(), HasSubstr("epoch 1 is still running"));
  EXPECT_TRUE(a_.ends.empty());
}

TEST_F(JobTest, AbsurdRanksReadyIsABadMessage) {
  bed_.Ready(a_, 0, {0});
  EXPECT_TRUE(a_.refused);
  bed_.Ready(b_, 1u << 31, {0});
  EXPECT_TRUE(b_.refused);
  Executor& c = bed_.Connect("j", "n2");
  bed_.Ready(c, 4, std::vector<uint32_t>(1000, 0));
  EXPECT_TRUE(c.refused);
  Executor& d = bed_.Connect("j", "n3");
  bed_.Ready(d, 4, {});
  EXPECT_TRUE(d.refused);
  Executor& e = bed_.Connect("j", "n4");
  bed_.Ready(e, kMaxRanks + 1, {0});
  EXPECT_TRUE(e.refused);
  Executor& f = bed_.Connect("j", "n5");
  bed_.Ready(f, kMaxRanks, {kMaxRanks - 1});
  EXPECT_FALSE(f.refused);
  Executor& g = bed_.Connect("j", "n6");
  bed_.Ready(g, 4, {0}, /*chunk_bytes=*/0);
  EXPECT_TRUE(g.refused);
}

}  // namespace
}  // namespace maypole::coordinator
