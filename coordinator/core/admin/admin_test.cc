// An operator's requests: status, abort, drain.
#include <string>

#include "coordinator/core/coordinator_core.h"
#include "coordinator/core/limits.h"
#include "coordinator/core/testing/elastic_testing.h"
#include "coordinator/core/testing/testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace maypole::coordinator {
namespace {

using std::chrono::seconds;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

// Two nodes; node n0 has ranks 0 and 1, node n1 has 2 and 3.
class AdminTest : public ::testing::Test {
 protected:
  void Start() {
    bed_.Ready(b_, 4, {2, 3});
    bed_.Ready(a_, 4, {0, 1});
  }
  proto::JobStatus Job() { return bed_.Status("j").jobs(0); }
  // "2:running 3:late"
  std::string Ranks(int node) {
    std::string out;
    const proto::JobStatus job = Job();
    for (const proto::RankStatus& r : job.nodes(node).rank_status()) {
      if (!out.empty()) out += " ";
      out +=
          (r.unnumbered() ? "-" : std::to_string(r.rank())) + ":" + r.state();
    }
    return out;
  }
  TestBed bed_;
  Executor& a_ = bed_.Connect("j", "n0");
  Executor& b_ = bed_.Connect("j", "n1");
};

constexpr char kAborted[] = "the job was aborted by root@head: too slow";

// --- Status ------------------------------------------------------------------

TEST_F(AdminTest, StatesAndSinceWhen) {
  bed_.Pass(seconds(3));
  EXPECT_EQ(Job().state(), "starting");
  EXPECT_EQ(Job().state_seconds(), 3);
  EXPECT_EQ(Job().nodes(0).rank_status_size(), 0);
  bed_.Waiting(a_, 4, {1}, 2);
  EXPECT_EQ(Ranks(0), "1:waiting");
  Start();
  EXPECT_EQ(Job().state(), "running");
  EXPECT_EQ(Job().state_seconds(), 0);
  EXPECT_EQ(Job().size(), 4u);
  bed_.Pass(seconds(5));
  bed_.From(a_, Gone(1, 0, true));
  EXPECT_EQ(Job().state_seconds(), 5);
  EXPECT_EQ(Ranks(0), "0:left 1:running");
  EXPECT_EQ(Ranks(1), "2:running 3:running");
  EXPECT_EQ(Job().nodes(1).rank_status(1).pid(), 1003);
  EXPECT_FALSE(Job().elastic());
  bed_.From(b_, Gone(1, 2, false, "was killed"));
  EXPECT_EQ(Job().state(), "ended");
  EXPECT_EQ(Job().state_seconds(), 0);
  EXPECT_EQ(Job().size(), 0u);
  EXPECT_THAT(bed_.log(), Contains(HasSubstr("event=rank_lost job=j epoch=1 "
                                             "node=n1 rank=2")));
}

TEST_F(AdminTest, RanksThatWaitForTheNextEpochWhileOneRuns) {
  Start();
  bed_.From(a_, Gone(1, 0, true));
  bed_.From(a_, Gone(1, 1, true));
  bed_.Ready(a_, 4, {0, 1});
  EXPECT_EQ(Ranks(0), "0:waiting 1:waiting");
  EXPECT_EQ(Job().nodes(0).ranks_size(), 2);
  EXPECT_EQ(Job().state(), "running");
}

TEST_F(AdminTest, LateRanksAndWhatTheyHoldUp) {
  Start();
  bed_.From(a_, Present(1, {Allreduce("x", {0, 1}, {3}),
                            Allreduce("y", {0, 1}, {3})}));
  EXPECT_EQ(Job().pending_operations(), 2u);
  EXPECT_EQ(Job().late_ranks_size(), 0);
  bed_.Pass(seconds(7));
  EXPECT_EQ(Ranks(0), "0:running 1:running");
  EXPECT_EQ(Ranks(1), "2:late 3:late");
  EXPECT_THAT(Job().late_ranks(), ElementsAre(2u, 3u));
  EXPECT_THAT(Job().nodes(1).rank_status(0).late_for(),
              ElementsAre("allreduce 'x'", "allreduce 'y'"));
  EXPECT_EQ(Job().pending(0).missing(), 1u);
  EXPECT_EQ(bed_.core().totals().late_ranks, 2u);
  bed_.From(b_, Present(1, {Allreduce("x", {2, 3}, {3}),
                            Allreduce("y", {2, 3}, {3})}));
  bed_.Pass(seconds(2));
  EXPECT_EQ(Ranks(1), "2:running 3:running");
  EXPECT_EQ(Job().operations(), 2u);
  EXPECT_EQ(Job().pending_operations(), 0u);
}

TEST_F(AdminTest, GpusOfARank) {
  Start();
  for (const uint64_t bytes : {64u, 128u}) {
    proto::ExecutorMessage m;
    m.set_epoch(1);
    m.mutable_rank_gpu()->set_rank(1);
    m.mutable_rank_gpu()->set_gpu(3);
    m.mutable_rank_gpu()->set_uuid(std::string(kGpuUuidBytes, '\x4f'));
    m.mutable_rank_gpu()->set_bytes(bytes);
    bed_.From(a_, m);
  }
  EXPECT_EQ(Job().nodes(0).rank_status(0).gpus_size(), 0);
  ASSERT_EQ(Job().nodes(0).rank_status(1).gpus_size(), 1);
  const proto::GpuUse gpu = Job().nodes(0).rank_status(1).gpus(0);
  EXPECT_EQ(gpu.uuid(), "GPU-4f4f4f4f-4f4f-4f4f-4f4f-4f4f4f4f4f4f");
  EXPECT_EQ(gpu.bytes(), 128u);
}

TEST_F(AdminTest, LateForIsBounded) {
  Start();
  for (size_t i = 0; i < kMaxStatusLateFor + 3; ++i) {
    bed_.From(a_,
              Present(1, {Allreduce("t" + std::to_string(i), {0, 1}, {1})}));
  }
  bed_.Pass(seconds(7));
  EXPECT_EQ(Job().nodes(1).rank_status(0).late_for_size(),
            static_cast<int>(kMaxStatusLateFor));
}

TEST_F(AdminTest, AnUnknownJobListsThoseThatThereAre) {
  proto::StatusRequest request;
  request.set_job("k");
  auto reply = bed_.core().Status(bed_.now(), request);
  EXPECT_EQ(reply.status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(reply.status().message(), "there is no job \"k\"; there are: j");
  for (int i = 0; i < 10; ++i) bed_.Connect("m" + std::to_string(i), "n0");
  EXPECT_THAT(std::string(bed_.Abort("k").status().message()),
              HasSubstr("there are: j, m0, m1, m2, m3, m4, m5, m6 and 3 more"));
  TestBed empty;
  EXPECT_EQ(empty.Abort("k").status().message(),
            "there is no job \"k\"; there are no jobs now");
}

TEST(AdminLimitsTest, DetailsAreCutNotJobs) {
  TestBed bed;
  constexpr int kJobs = 80;
  const std::string tail(480, 'x');
  for (int i = 0; i < kJobs; ++i) {
    const std::string job = "j" + std::to_string(i);
    Executor& a = bed.Connect(job, "n0");
    Executor& b = bed.Connect(job, "n1");
    bed.Ready(a, 2, {0});
    bed.Ready(b, 2, {1});
    for (int t = 0; t < kMaxStatusPending + 1; ++t) {
      bed.From(a, Present(1, {Allreduce(std::to_string(t) + tail, {0}, {1})}));
    }
  }
  const proto::StatusReply all = bed.Status();
  EXPECT_EQ(all.jobs_size(), kJobs);
  EXPECT_TRUE(all.cut());
  EXPECT_LT(all.ByteSizeLong(), kMaxSentBytes);
  EXPECT_EQ(all.jobs(0).pending_size(), kMaxStatusPending);
  EXPECT_EQ(all.jobs(kJobs - 1).pending_size(), 0);
  EXPECT_EQ(all.jobs(kJobs - 1).pending_operations(), kMaxStatusPending + 1u);
  EXPECT_EQ(all.jobs(kJobs - 1).nodes_size(), 2);
  const proto::StatusReply one = bed.Status("j79");
  EXPECT_FALSE(one.cut());
  EXPECT_EQ(one.jobs(0).pending_size(), kMaxStatusPending);
}

// --- Timeline ----------------------------------------------------------------

TEST_F(AdminTest, TheFirstRankThatIsThereWritesATimeline) {
  EXPECT_EQ(bed_.RecordTimeline("j", false).status().message(),
            "the job does not run: it is starting");
  Start();
  EXPECT_FALSE(Job().has_timeline());
  bed_.From(a_, Gone(1, 0, true));
  const auto started = bed_.RecordTimeline("j", false);
  ASSERT_TRUE(started.ok()) << started.status();
  const proto::TimelineStatus& t = started->timeline();
  EXPECT_EQ(t.state(), "on");
  EXPECT_EQ(t.rank(), 1u);
  EXPECT_EQ(t.path(), "maypole-timeline-j-1001-1-1.json");
  for (Executor* e : {&a_, &b_}) {
    const proto::Timeline& sent = e->Last().timeline();
    EXPECT_TRUE(sent.on() && sent.by_operator());
    EXPECT_EQ(sent.node(), 0u);
    EXPECT_EQ(sent.path(), t.path());
  }
  EXPECT_EQ(Job().timeline().path(), t.path());
  EXPECT_THAT(
      bed_.log(),
      Contains(HasSubstr("event=timeline_started job=j epoch=1 rank=1 host=")));
  EXPECT_EQ(bed_.RecordTimeline("j", false).status().code(),
            absl::StatusCode::kFailedPrecondition);
  const auto stopped = bed_.RecordTimeline("j", true);
  ASSERT_TRUE(stopped.ok());
  EXPECT_EQ(stopped->timeline().state(), "closing");
  EXPECT_FALSE(b_.Last().timeline().on());
  proto::ExecutorMessage closed;
  closed.set_epoch(1);
  closed.mutable_timeline_closed()->set_number(1);
  closed.mutable_timeline_closed()->set_message("disk full");
  bed_.From(a_, closed);
  EXPECT_EQ(Job().timeline().state(), "off");
  EXPECT_EQ(Job().timeline().error(), "disk full");
  EXPECT_THAT(bed_.log(), Contains(HasSubstr("event=timeline_stopped job=j")));
}

// The directory has the file of the epoch before.
TEST_F(AdminTest, ATimelineOfTheNextEpochHasAnotherFile) {
  Start();
  const auto first = bed_.RecordTimeline("j", false);
  for (const uint32_t rank : {0, 1}) bed_.From(a_, Gone(1, rank, true));
  for (const uint32_t rank : {2, 3}) bed_.From(b_, Gone(1, rank, true));
  Start();
  const auto second = bed_.RecordTimeline("j", false);
  ASSERT_TRUE(first.ok() && second.ok()) << second.status();
  EXPECT_EQ(first->timeline().rank(), second->timeline().rank());
  EXPECT_NE(first->timeline().path(), second->timeline().path());
}

TEST_F(AdminTest, ATimelineNeedsAJobAndARankThatIsThere) {
  EXPECT_EQ(bed_.RecordTimeline("k", false).status().code(),
            absl::StatusCode::kNotFound);
  Start();
  EXPECT_EQ(bed_.RecordTimeline("j", true).status().message(),
            "the job's timeline is not on");
  for (const uint32_t rank : {0, 1}) bed_.From(a_, Gone(1, rank, true));
  const auto of_b = bed_.RecordTimeline("j", false);
  ASSERT_TRUE(of_b.ok());
  EXPECT_EQ(of_b->timeline().rank(), 2u);
}

// --- Abort -------------------------------------------------------------------

TEST_F(AdminTest, AbortEndsARunningEpochOnAllRanksAndNoOtherJob) {
  Start();
  Executor& other = bed_.Connect("k", "n0");
  bed_.Ready(other, 1, {0});
  bed_.From(a_, Gone(1, 0, true));
  auto reply = bed_.Abort("j", "too slow");
  ASSERT_TRUE(reply.ok());
  EXPECT_EQ(reply->ranks(), 3u);
  for (const Executor* e : {&a_, &b_}) {
    ASSERT_EQ(e->ends.size(), 1u);
    EXPECT_EQ(e->ends[0].epoch(), 1u);
    EXPECT_EQ(e->ends[0].message(), kAborted);
  }
  EXPECT_TRUE(other.ends.empty());
  EXPECT_EQ(bed_.Status("k").jobs(0).state(), "running");
  EXPECT_EQ(Job().state(), "ended");
  EXPECT_THAT(bed_.log(), Contains(HasSubstr("event=job_aborted job=j epoch=1 "
                                             "ranks=3")));
  EXPECT_THAT(bed_.log(), Contains(HasSubstr("event=epoch_end job=j epoch=1")));
}

TEST_F(AdminTest, AnAbortedJobStartsNoOtherEpochUntilItIsForgotten) {
  Start();
  ASSERT_TRUE(bed_.Abort("j", "too slow").ok());
  bed_.Ready(a_, 4, {0, 1});
  ASSERT_EQ(a_.ends.size(), 2u);
  EXPECT_EQ(a_.ends[1].epoch(), 0u);
  EXPECT_EQ(a_.ends[1].message(), kAborted);
  bed_.Waiting(b_, 4, {2}, 2);
  ASSERT_EQ(b_.ends.size(), 2u);
  EXPECT_EQ(b_.ends[1].message(), kAborted);
  bed_.Ready(b_, 4, {2, 3});
  EXPECT_EQ(b_.ends.size(), 3u);
  EXPECT_EQ(Job().epoch(), 1u);
  EXPECT_FALSE(bed_.core().Deadline());
  bed_.Finish(a_);
  bed_.Finish(b_);
  EXPECT_EQ(bed_.core().totals().jobs, 0u);
  Executor& a = bed_.Connect("j", "n0");
  bed_.Ready(a, 1, {0});
  EXPECT_TRUE(a.Last().has_epoch_start());
}

TEST_F(AdminTest, AbortEndsAStart) {
  bed_.Ready(a_, 4, {0, 1});
  bed_.Waiting(b_, 4, {2}, 2);
  auto reply = bed_.Abort("j", "too slow");
  ASSERT_TRUE(reply.ok());
  EXPECT_EQ(reply->ranks(), 3u);
  for (const Executor* e : {&a_, &b_}) {
    ASSERT_EQ(e->ends.size(), 1u);
    EXPECT_EQ(e->ends[0].epoch(), 0u);
    EXPECT_EQ(e->ends[0].message(), kAborted);
  }
  EXPECT_FALSE(bed_.core().Deadline());
  EXPECT_EQ(Job().state(), "ended");
}

TEST_F(AdminTest, WhatACallerSaysIsOneLineAndHasALimit) {
  Start();
  ASSERT_TRUE(bed_.Abort("j", "a\nb\x01 " + std::string(5000, 'x')).ok());
  EXPECT_THAT(a_.ends[0].message(), HasSubstr("root@head: a b  xxx"));
  EXPECT_LT(a_.ends[0].message().size(), 600u);
}

TEST(AdminElasticTest, AbortEndsTheEpochAndThoseWhoWaitAndIsFinal) {
  TestBed bed;
  ElasticNode a{&bed.Connect("j", "n0")}, b{&bed.Connect("j", "n1")};
  a.waiting = {{1}, {2}};
  b.waiting = {{3}};
  bed.From(*a.executor, a.Ready(1, 3));
  bed.From(*b.executor, b.Ready(1, 3));
  EXPECT_EQ(bed.Status().jobs(0).state(), "starting");
  EXPECT_EQ(bed.Status().jobs(0).size(), 3u);
  EXPECT_TRUE(bed.Status().jobs(0).elastic());
  EXPECT_TRUE(bed.Status().jobs(0).nodes(0).rank_status(1).unnumbered());
  EXPECT_EQ(bed.Status().jobs(0).nodes(0).rank_status(1).pid(), 1002);
  bed.Pass(seconds(2));
  ASSERT_NE(a.LastStart(), nullptr);
  b.waiting = {{4}};  // a fourth one, for which there is no room
  bed.From(*b.executor, b.Ready(1, 3));
  EXPECT_EQ(bed.Status().jobs(0).nodes(1).rank_status(1).state(), "waiting");
  auto reply = bed.Abort("j", "too slow");
  ASSERT_TRUE(reply.ok());
  EXPECT_EQ(reply->ranks(), 4u);
  ASSERT_EQ(b.Refused().size(), 1u);
  EXPECT_EQ(b.Refused()[0].message(), kAborted);
  EXPECT_EQ(a.executor->ends.back().epoch(), 1u);
  EXPECT_EQ(a.executor->ends.back().message(), kAborted);
  // These would begin the next epoch.
  a.waiting = {{1, 1, 0}, {2, 1, 1}};
  bed.From(*a.executor, a.Ready(1, 3));
  ASSERT_EQ(a.Refused().size(), 1u);
  EXPECT_EQ(a.Refused()[0].message(), kAborted);
  a.waiting = {};
  bed.From(*a.executor, a.Ready(1, 3));
  bed.Pass(seconds(300));
  EXPECT_EQ(a.Refused().size(), 1u);
  EXPECT_EQ(bed.Status().jobs(0).epoch(), 1u);
  EXPECT_EQ(bed.Status().jobs(0).state(), "ended");
}

// --- Drain -------------------------------------------------------------------

TEST_F(AdminTest, ADrainedNodeKeepsItsJobsAndIsRefusedToOthers) {
  Start();
  auto reply = bed_.Drain("n1");
  ASSERT_TRUE(reply.ok());
  EXPECT_THAT(reply->jobs(), ElementsAre("j"));
  EXPECT_THAT(bed_.Status().drained_nodes(), ElementsAre("n1"));
  Executor& other = bed_.Connect("k", "n1");
  ASSERT_TRUE(other.refused);
  EXPECT_EQ(other.refused->message(),
            "node 'n1' has been drained by an operator and takes no new jobs; "
            "start job 'k' on other nodes, or ask for: maypolectl drain n1 "
            "--undo");
  EXPECT_EQ(bed_.Status().jobs_size(), 1);
  EXPECT_FALSE(bed_.Connect("k", "n0").refused);
  // The job continues, and so does its next epoch.
  bed_.From(a_, Present(1, {Allreduce("x", {0, 1}, {3})}));
  bed_.From(b_, Present(1, {Allreduce("x", {2, 3}, {3})}));
  EXPECT_EQ(b_.runs.size(), 1u);
  bed_.From(b_, Gone(1, 2, false, "was killed"));
  Start();
  EXPECT_EQ(Job().epoch(), 2u);
  EXPECT_EQ(Job().state(), "running");
}

TEST_F(AdminTest, AnExecutorOfAJobThatTheNodeKeepsMayComeAnew) {
  Start();
  ASSERT_TRUE(bed_.Drain("n1").ok());
  bed_.Break(b_);
  Executor& anew = bed_.Connect("j", "n1");
  EXPECT_FALSE(anew.refused);
  bed_.Finish(anew);
  EXPECT_EQ(bed_.Drain("n1")->jobs_size(), 0);
  EXPECT_FALSE(bed_.Connect("j", "n1").refused);
}

TEST_F(AdminTest, AJobThatIsForgottenIsNotKept) {
  ASSERT_TRUE(bed_.Drain("n1").ok());
  bed_.Finish(a_);
  bed_.Finish(b_);
  EXPECT_EQ(bed_.Drain("n1")->jobs_size(), 0);
  EXPECT_FALSE(bed_.Connect("j", "n0").refused);
  EXPECT_TRUE(bed_.Connect("j", "n1").refused);
}

TEST_F(AdminTest, UndoTakesJobsAgain) {
  ASSERT_TRUE(bed_.Drain("n1").ok());
  ASSERT_TRUE(bed_.Drain("n1").ok());  // again: nothing new
  ASSERT_TRUE(bed_.Drain("n1", true).ok());
  ASSERT_TRUE(bed_.Drain("n1", true).ok());
  EXPECT_FALSE(bed_.Connect("k", "n1").refused);
  EXPECT_EQ(bed_.Status().drained_nodes_size(), 0);
  int lines = 0;
  for (const std::string& line : bed_.log()) {
    lines += line.find("drained node=n1") != std::string::npos;
  }
  EXPECT_EQ(lines, 2);
}

TEST_F(AdminTest, DrainedNodesHaveGoodNamesAndALimit) {
  EXPECT_EQ(bed_.Drain("").status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(bed_.Drain("a b").status().message(),
            "the node's name must be 1 to 63 printable ASCII characters "
            "without spaces, quotes, slashes and backslashes, not 'a b'; a "
            "node's name is the --node of its maypole-worker (default: the "
            "host's name)");
  EXPECT_FALSE(bed_.Drain(std::string(1000, 'x')).ok());
  for (size_t i = 0; i < kMaxDrained; ++i) {
    ASSERT_TRUE(bed_.Drain("m" + std::to_string(i)).ok());
  }
  EXPECT_EQ(bed_.Drain("one-more").status().code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(bed_.Drain("m0").ok());
}

TEST_F(AdminTest, RefusalsNameJobAndNodeInTheirEvent) {
  bed_.Connect("j", "n1");
  EXPECT_THAT(bed_.log(),
              Contains(HasSubstr("event=session_refused job=j node=n1 ")));
}

}  // namespace
}  // namespace maypole::coordinator
