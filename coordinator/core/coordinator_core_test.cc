// Sessions: hello, refusals, resume, hostile messages, many jobs.
#include "coordinator/core/coordinator_core.h"

#include <string>
#include <utility>

#include "common/limits.h"
#include "coordinator/core/limits.h"
#include "coordinator/core/testing/testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace maypole::coordinator {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;

proto::ExecutorHello GoodHello() {
  proto::ExecutorHello hello;
  hello.set_protocol_version(kProtocolVersion);
  hello.set_newest_version(kProtocolVersion);
  hello.set_job("j");
  hello.set_node("n0");
  hello.set_host("h");
  hello.set_token("t");
  return hello;
}

int Code(absl::StatusCode code) { return static_cast<int>(code); }

TEST(CoordinatorCoreTest, WelcomesWithSessionAndIncarnation) {
  TestBed bed;
  Executor& e = bed.Connect("j", "n0");
  EXPECT_FALSE(e.refused);
  EXPECT_EQ(e.incarnation, "incarnation-1");
  EXPECT_FALSE(e.session.empty());
  EXPECT_EQ(bed.core().totals().jobs, 1u);
  EXPECT_EQ(bed.core().totals().nodes, 1u);
}

TEST(CoordinatorCoreTest, RefusesFieldsOfAHelloThatAreTooLong) {
  TestBed bed;
  const std::string bytes(128, '7');
  std::vector<proto::ExecutorHello> hellos(3, GoodHello());
  hellos[0].set_token(bytes);
  hellos[1].set_session(bytes);
  hellos[2].set_incarnation(bytes);
  const std::vector<std::string> what = {"a token", "a session",
                                         "an incarnation"};
  for (size_t i = 0; i < hellos.size(); ++i) {
    EXPECT_EQ(bed.Hello(hellos[i]).refused->message(),
              "hello with " + what[i] + " of 128 bytes; 127 are allowed");
  }
}

TEST(CoordinatorCoreTest, RefusesOtherProtocolVersionsNamingBoth) {
  TestBed bed;
  proto::ExecutorHello hello = GoodHello();
  hello.set_protocol_version(77);
  hello.set_newest_version(77);
  Executor& e = bed.Hello(hello);
  ASSERT_TRUE(e.refused);
  EXPECT_EQ(e.refused->code(), Code(absl::StatusCode::kFailedPrecondition));
  EXPECT_EQ(e.refused->message(),
            "this coordinator speaks protocol version 1, but "
            "maypole-worker on node 'n0' speaks protocol version 77; upgrade "
            "this coordinator");
  hello.clear_protocol_version();
  hello.clear_newest_version();
  EXPECT_EQ(bed.Hello(hello).refused->message(),
            "maypole-worker on node 'n0' speaks protocol version 0, but this "
            "coordinator speaks protocol version 1; upgrade maypole-worker on "
            "node 'n0'");
  EXPECT_TRUE(e.closed);
  EXPECT_EQ(bed.core().totals().jobs, 0u);
}

TEST(CoordinatorCoreTest, RefusesAnotherToken) {
  TestBed bed;
  Executor& a = bed.Connect("j", "n0", "right");
  Executor& b = bed.Connect("j", "n1", "wrong");
  EXPECT_FALSE(a.refused);
  ASSERT_TRUE(b.refused);
  EXPECT_EQ(b.refused->code(), Code(absl::StatusCode::kPermissionDenied));
  EXPECT_THAT(b.refused->message(), HasSubstr("another token"));
  EXPECT_TRUE(bed.Connect("j", "n1", "").refused);
  bed.Connect("k", "n0", "");
  EXPECT_TRUE(bed.Connect("k", "n1", "secret").refused);
  // The token goes with the job.
  bed.Finish(a);
  EXPECT_FALSE(bed.Connect("j", "n1", "wrong").refused);
}

TEST(CoordinatorCoreTest, RefusesANodeTwice) {
  TestBed bed;
  bed.Connect("j", "n0");
  Executor& again = bed.Connect("j", "n0");
  ASSERT_TRUE(again.refused);
  EXPECT_EQ(again.refused->code(), Code(absl::StatusCode::kAlreadyExists));
  EXPECT_FALSE(bed.Connect("other", "n0").refused);
}

TEST(CoordinatorCoreTest, ANewExecutorReplacesADetachedOneAtOnce) {
  TestBed bed;
  Executor& a = bed.Connect("j", "n0");
  Executor& b = bed.Connect("j", "n1");
  bed.Ready(a, 2, {0});
  bed.Ready(b, 2, {1});
  bed.Break(a);
  Executor& c = bed.Connect("j", "n0");
  EXPECT_FALSE(c.refused);
  ASSERT_EQ(b.ends.size(), 1u);
  EXPECT_THAT(b.ends[0].message(), HasSubstr("was replaced by a new one"));
}

TEST(CoordinatorCoreTest, RefusesBadNames) {
  for (const char* bad :
       {"", "a b", "a\nb", "\"", "'", "\\", "a/b", "..", "\x80"}) {
    TestBed bed;
    proto::ExecutorHello hello = GoodHello();
    hello.set_job(bad);
    Executor& e = bed.Hello(hello);
    ASSERT_TRUE(e.refused) << bad;
    EXPECT_EQ(e.refused->code(), Code(absl::StatusCode::kInvalidArgument));
    EXPECT_THAT(e.refused->message(),
                HasSubstr("the job id must be 1 to 63 printable ASCII"));
    EXPECT_EQ(bed.Count(ErrorKind::kBadMessage), 1);
  }
  TestBed bed;
  proto::ExecutorHello hello = GoodHello();
  hello.set_node(std::string(kMaxHostBytes + 1, 'x'));
  EXPECT_TRUE(bed.Hello(hello).refused);
  hello = GoodHello();
  hello.set_host("a b");
  EXPECT_TRUE(bed.Hello(hello).refused);
  hello = GoodHello();
  hello.set_token(std::string(kMaxTokenBytes + 1, 'x'));
  EXPECT_TRUE(bed.Hello(hello).refused);
}

TEST(CoordinatorCoreTest, TheFirstMessageMustBeAHello) {
  TestBed bed;
  Executor e;
  e.stream = 99;
  Actions actions;
  const auto collect = [&actions](Actions* a) { actions = std::move(*a); };
  bed.core().Received(bed.now(), 99, Present(1, {}), collect);
  ASSERT_GE(actions.size(), 3u);
  EXPECT_EQ(std::get<Send>(actions[1]).message.ToMessage().refused().code(),
            Code(absl::StatusCode::kInvalidArgument));
  EXPECT_EQ(std::get<Close>(actions[2]).stream, 99u);
  // Messages that it sent before it learned of that are ignored.
  actions.clear();
  bed.core().Received(bed.now(), 99, Present(1, {}), collect);
  EXPECT_TRUE(actions.empty());
}

TEST(CoordinatorCoreTest, LimitsJobs) {
  TestBed bed;
  for (size_t i = 0; i < kMaxJobs; ++i) {
    ASSERT_FALSE(bed.Connect("j" + std::to_string(i), "n").refused);
  }
  Executor& more = bed.Connect("one-more", "n");
  ASSERT_TRUE(more.refused);
  EXPECT_EQ(more.refused->code(), Code(absl::StatusCode::kResourceExhausted));
  EXPECT_FALSE(bed.Connect("j0", "n1").refused);
}

TEST(CoordinatorCoreTest, AcknowledgesEveryPayload) {
  TestBed bed;
  Executor& e = bed.Connect("j", "n0");
  bed.Ready(e, 2, {0});
  EXPECT_EQ(e.link.unacknowledged(), 0u);
}

TEST(CoordinatorCoreTest, ResumeBringsWhatWasMissedOnceAndInOrder) {
  TestBed bed;
  Executor& a = bed.Connect("j", "n0");
  Executor& b = bed.Connect("j", "n1");
  bed.Ready(a, 2, {0});
  bed.Ready(b, 2, {1});
  bed.From(a, Present(1, {Allreduce("x", {0}, {3})}));
  bed.Break(a);
  bed.From(b, Present(1, {Allreduce("x", {1}, {3})}));
  EXPECT_EQ(a.runs.size(), 0u);
  EXPECT_EQ(b.runs.size(), 1u);
  bed.From(a, Present(1, {Allreduce("y", {0}, {3})}));  // kept by its link
  bed.Pass(seconds(2));
  bed.Resume(a);
  ASSERT_FALSE(a.refused);
  ASSERT_EQ(a.runs.size(), 1u);
  EXPECT_EQ(a.runs[0].operations(0).identity().name(), "x");
  EXPECT_EQ(bed.reconnects(), 1);
  bed.From(b, Present(1, {Allreduce("y", {1}, {3})}));
  EXPECT_EQ(a.runs.size(), 2u);
  bed.Pass(seconds(100));
  EXPECT_TRUE(b.ends.empty());
}

TEST(CoordinatorCoreTest, ResumeTakesOverFromAStreamWhoseEndWasNotSeen) {
  TestBed bed;
  Executor& a = bed.Connect("j", "n0");
  const StreamId old = a.stream;
  bed.Resume(a);
  EXPECT_FALSE(a.refused);
  // The old stream's end comes late and is ignored.
  bed.core().Ended(bed.now(), old, StreamEnd::kBroken,
                   [](Actions* actions) { EXPECT_TRUE(actions->empty()); });
  EXPECT_FALSE(bed.core().Deadline());
}

TEST(CoordinatorCoreTest, ResumeIsRefusedAfterTheTimeout) {
  TestBed bed;
  Executor& a = bed.Connect("j", "n0");
  bed.Connect("j", "n1");
  bed.Break(a);
  bed.Pass(seconds(4));
  bed.Resume(a);
  ASSERT_TRUE(a.refused);
  EXPECT_EQ(a.refused->code(), Code(absl::StatusCode::kNotFound));
  EXPECT_THAT(a.refused->message(), HasSubstr("within 3 s"));
}

TEST(CoordinatorCoreTest, WhoIsAwayHasItsTimeAfterACoordinatorThatWasStopped) {
  // The stop ends long after the executor's deadline, just after it, or before
  // it.
  for (const Time stop :
       {milliseconds(6000), milliseconds(2100), milliseconds(1900)}) {
    TestBed bed;
    bed.Break(bed.Connect("j", "n0"));
    bed.Pass(seconds(1));
    bed.PassUnseen(stop);
    bed.Pass(milliseconds(2999));
    EXPECT_EQ(bed.core().totals().jobs, 1u) << stop.count();
    bed.Pass(milliseconds(1));
    EXPECT_EQ(bed.core().totals().jobs, 0u) << stop.count();
  }
}

TEST(CoordinatorCoreTest, ACoordinatorThatWasSlowForAMomentWaitsNoLonger) {
  TestBed bed;
  bed.Break(bed.Connect("j", "n0"));
  bed.Pass(seconds(1));
  bed.PassUnseen(seconds(1));
  bed.Pass(milliseconds(999));
  EXPECT_EQ(bed.core().totals().jobs, 1u);
  bed.Pass(milliseconds(1));
  EXPECT_EQ(bed.core().totals().jobs, 0u);
}

// Messages that came meanwhile are handled before the timer.
TEST(CoordinatorCoreTest, AnEventAfterAStopGivesTheTimeAnewToo) {
  TestBed bed;
  bed.Break(bed.Connect("j", "n0"));
  Executor& b = bed.Connect("j", "n1");
  bed.Pass(seconds(1));
  bed.SleepUnseen(milliseconds(2100));
  bed.Acknowledge(b);
  bed.Pass(milliseconds(2999));
  EXPECT_EQ(bed.core().totals().nodes, 2u);
}

TEST(CoordinatorCoreTest, NobodyResumesAnothersSession) {
  TestBed bed;
  Executor& a = bed.Connect("j", "n0", "mine");
  Executor& thief = bed.Connect("k", "n0", "other");
  thief.session = a.session;
  bed.Resume(thief);
  EXPECT_TRUE(thief.refused);
  EXPECT_FALSE(a.closed);
}

TEST(CoordinatorCoreTest, AnIdleExecutorThatFinishesIsForgottenAtOnce) {
  TestBed bed;
  Executor& a = bed.Connect("j", "n0");
  bed.Finish(a);
  EXPECT_EQ(bed.core().totals().jobs, 0u);
  EXPECT_FALSE(bed.core().Deadline());
}

TEST(CoordinatorCoreTest, BadMessagesEndTheSessionAndLeaveOtherJobsAlone) {
  using Message = proto::ExecutorMessage;
  std::vector<Message> bad(7);
  bad[0].set_sequence(5);  // a gap
  bad[0].set_epoch(1);
  bad[0].mutable_presence();
  bad[1].set_acknowledged(1000);
  bad[2].mutable_hello();
  bad[3].mutable_presence();  // not numbered
  bad[4].set_sequence(2);     // numbered, with nothing in it
  bad[5] = Present(7, {});    // an epoch that does not exist
  bad[5].set_sequence(2);
  bad[6].set_sequence(2);
  bad[6].set_epoch(1);
  bad[6].mutable_timeline_request()->set_rank(1);  // of the other node
  for (const Message& m : bad) {
    TestBed bed;
    Executor& a = bed.Connect("j", "n0");
    Executor& b = bed.Connect("j", "n1");
    Executor& other = bed.Connect("other", "n0");
    bed.Ready(a, 2, {0});
    bed.Ready(b, 2, {1});
    bed.Ready(other, 1, {0});
    bed.Raw(a, m);
    ASSERT_TRUE(a.refused) << m.ShortDebugString();
    EXPECT_THAT(a.refused->message(), HasSubstr("node n0 (host host-n0)"));
    EXPECT_TRUE(a.closed);
    ASSERT_EQ(b.ends.size(), 1u);
    EXPECT_THAT(b.ends[0].message(), HasSubstr("broke the protocol"));
    EXPECT_EQ(bed.Count(ErrorKind::kBadMessage), 1);
    EXPECT_TRUE(other.ends.empty());
    bed.From(other, Present(1, {Allreduce("x", {0}, {3})}));
    EXPECT_EQ(other.runs.size(), 1u);
  }
}

TEST(CoordinatorCoreTest, AnExecutorThatDoesNotAcknowledgeIsGivenUp) {
  TestBed bed;
  Executor& a = bed.Connect("j", "n0");
  Executor& b = bed.Connect("j", "n1");
  bed.Ready(a, 2, {0});
  bed.Ready(b, 2, {1});
  for (uint32_t g = 1; g <= kMaxUnacknowledged && b.ends.empty(); ++g) {
    // Only a's own messages acknowledge; b's are delivered without
    // acknowledgements.
    bed.From(a, Present(1, {Allreduce("x", {0}, {3}, g)}));
    proto::ExecutorMessage m = Present(1, {Allreduce("x", {1}, {3}, g)});
    m.set_sequence(b.link.Push(proto::ExecutorMessage())->sequence());
    bed.Raw(b, m);
  }
  ASSERT_TRUE(b.refused);
  EXPECT_THAT(b.refused->message(), HasSubstr("does not acknowledge"));
  ASSERT_EQ(a.ends.size(), 1u);
  EXPECT_THAT(a.ends[0].message(), HasSubstr("node n1"));
}

TEST(CoordinatorCoreTest, StopTellsEverybodyAndClosesAllStreams) {
  TestBed bed;
  Executor& a = bed.Connect("j", "n0");
  bed.Ready(a, 1, {0});
  Actions actions;
  bed.core().Stop([&actions](Actions* a) { actions = std::move(*a); });
  bool told = false, closed = false;
  for (const Action& action : actions) {
    if (const Send* s = std::get_if<Send>(&action)) {
      const proto::CoordinatorMessage m = s->message.ToMessage();
      told =
          told || m.epoch_end().message().find("stopped") != std::string::npos;
    }
    closed = closed || std::holds_alternative<Close>(action);
  }
  EXPECT_TRUE(told);
  EXPECT_TRUE(closed);
  EXPECT_EQ(bed.core().totals().nodes, 0u);
}

TEST(CoordinatorCoreTest, StatusShowsJobsNodesAndWhatIsPending) {
  TestBed bed;
  Executor& a = bed.Connect("j", "n0");
  Executor& b = bed.Connect("j", "n1");
  bed.Ready(a, 3, {0, 1});
  EXPECT_EQ(bed.Status().jobs(0).state(), "starting");
  bed.Ready(b, 3, {2});
  bed.From(a, Present(1, {Allreduce("x", {0, 1}, {3}, 4)}));
  bed.Break(b);
  const proto::StatusReply reply = bed.Status();
  ASSERT_EQ(reply.jobs_size(), 1);
  const proto::JobStatus& job = reply.jobs(0);
  EXPECT_EQ(reply.incarnation(), "incarnation-1");
  EXPECT_EQ(job.state(), "running");
  EXPECT_EQ(job.epoch(), 1u);
  EXPECT_EQ(job.size(), 3u);
  ASSERT_EQ(job.nodes_size(), 2);
  EXPECT_TRUE(job.nodes(0).connected());
  EXPECT_FALSE(job.nodes(1).connected());
  EXPECT_EQ(job.nodes(0).ranks_size(), 2);
  ASSERT_EQ(job.pending_size(), 1);
  EXPECT_EQ(job.pending(0).name(), "x");
  EXPECT_EQ(job.pending(0).generation(), 4u);
  ASSERT_EQ(job.pending(0).missing_nodes_size(), 1);
  EXPECT_EQ(job.pending(0).missing_nodes(0), "n1");
  EXPECT_EQ(bed.core().totals().ranks, 3u);
  EXPECT_EQ(bed.core().totals().pending_operations, 1u);
}

// Reports what both nodes' executors and their only ranks want.
void ReadyWith(TestBed* bed, const std::vector<Executor*>& nodes,
               const proto::RanksReady& facts) {
  for (uint32_t i = 0; i < nodes.size(); ++i) {
    proto::ExecutorMessage m;
    proto::RanksReady* ready = m.mutable_ranks_ready();
    *ready = facts;
    ready->set_size(static_cast<uint32_t>(nodes.size()));
    ready->add_ranks(i);
    ready->add_pids(100 + i);
    ready->set_stall_check_ms(-1);
    ready->set_stall_shutdown_ms(-1);
    if (i > 0) ready->set_chunk_bytes(facts.chunk_bytes() / 2);
    bed->From(*nodes[i], m);
  }
}

TEST(CoordinatorCoreTest, ChunksHaveTheLeastSizeOfTheNodes) {
  TestBed bed;
  Executor &a = bed.Connect("j", "n0"), &b = bed.Connect("j", "n1");
  proto::RanksReady facts;
  facts.set_chunk_bytes(4194304);
  ReadyWith(&bed, {&a, &b}, facts);
  EXPECT_EQ(a.Last().epoch_start().chunk_bytes(), 2097152u);
}

TEST(CoordinatorCoreTest, FewNodesSendInputsAheadUnlessChecksumsAreCompared) {
  const auto starts = [](const Config& config, ChecksumMode checksums) {
    TestBed bed(config);
    Executor &a = bed.Connect("j", "n0"), &b = bed.Connect("j", "n1");
    proto::RanksReady facts;
    facts.set_chunk_bytes(524288);
    facts.set_checksums(static_cast<uint32_t>(checksums));
    ReadyWith(&bed, {&a, &b}, facts);
    EXPECT_TRUE(a.Last().has_epoch_start());
    EXPECT_EQ(a.Last().epoch_start().sends_inputs(),
              b.Last().epoch_start().sends_inputs());
    return a.Last().epoch_start().sends_inputs();
  };
  EXPECT_TRUE(starts({.eager_nodes = 2}, ChecksumMode::kOff));
  EXPECT_FALSE(starts({.eager_nodes = 1}, ChecksumMode::kOff));
  EXPECT_FALSE(starts({.eager_nodes = 2}, ChecksumMode::kWarn));
}

}  // namespace
}  // namespace maypole::coordinator
