#include "client/ctl/views.h"

#include <algorithm>
#include <cstdlib>
#include <ctime>
#include <sstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace maypole::ctl {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

proto::JobStatus Job(const std::string& name, int nodes, int local) {
  proto::JobStatus job;
  job.set_job(name);
  job.set_epoch(1);
  job.set_state("running");
  job.set_state_seconds(65);
  job.set_size(nodes * local);
  job.set_operations(12);
  for (int n = 0; n < nodes; ++n) {
    proto::NodeStatus* node = job.add_nodes();
    node->set_node("node" + std::to_string(n));
    node->set_host("host" + std::to_string(n));
    node->set_address("10.0.0." + std::to_string(n + 1));
    node->set_connected(true);
    for (int i = 0; i < local; ++i) {
      proto::RankStatus* r = node->add_rank_status();
      node->add_ranks(n * local + i);
      r->set_rank(n * local + i);
      r->set_pid(4000 + n * local + i);
      r->set_state("running");
    }
  }
  return job;
}

void MakeLate(proto::JobStatus* job, int node, int local, const char* what) {
  proto::RankStatus* r = job->mutable_nodes(node)->mutable_rank_status(local);
  r->set_state("late");
  r->add_late_for(what);
  job->add_late_ranks(r->rank());
}

size_t Longest(const std::string& text) {
  size_t longest = 0;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    longest = std::max(longest, line.size());
  }
  return longest;
}

size_t Lines(const std::string& text) {
  return std::count(text.begin(), text.end(), '\n');
}

TEST(ViewsTest, StatusOfTwoJobs) {
  proto::StatusReply reply;
  reply.set_version("0.1.0");
  reply.set_protocol_version(3);
  reply.set_uptime_seconds(7980);
  *reply.add_jobs() = Job("train-a", 2, 2);
  *reply.add_jobs() = Job("train-b", 1, 1);
  MakeLate(reply.mutable_jobs(0), 1, 1, "allreduce 'x'");
  reply.add_drained_nodes("node1");
  EXPECT_EQ(
      StatusView("head:4001", reply, {}, 80),
      "coordinator head:4001  version 0.1.0  protocol 3  up 2h13m\n"
      "2 jobs, 2 nodes, 5 running ranks, 1 late\n"
      "\n"
      "JOB      STATE      FOR  EPOCH  RANKS  NODES  TIER  LATE  PENDING\n"
      "train-a  running  1m05s      1      4      2  -        1        -\n"
      "train-b  running  1m05s      1      1      1  -        -        -\n"
      "\n"
      "NODE   HOST   ADDRESS   JOBS  RANKS  NOTE\n"
      "node0  host0  10.0.0.1     2      3\n"
      "node1  host1  10.0.0.2     1      2  drained\n"
      "\n"
      "train-a: rank 3 (node node1, pid 4003) keeps others waiting for "
      "allreduce 'x'\n");
}

// Rank 1 of 2 nodes x 2 hardly waits; the others wait for it.
proto::StatusReply WithStats() {
  proto::StatusReply reply;
  reply.set_version("0.1.0");
  proto::JobStatus* job = reply.add_jobs();
  *job = Job("train", 2, 2);
  job->set_tier("frozen");
  job->mutable_stats()->set_steps_per_second(12.43);
  job->mutable_stats()->set_operations_per_second(2001);
  job->mutable_stats()->set_bytes_per_second(1.27e9);
  job->mutable_stats()->set_waiting(0.375);
  const double waiting[] = {0.5, 0, 0.48, 0.52};
  for (int rank = 0; rank < 4; ++rank) {
    proto::RankStatus* r =
        job->mutable_nodes(rank / 2)->mutable_rank_status(rank % 2);
    r->set_waiting(waiting[rank]);
    r->set_late(0.52 - waiting[rank]);
  }
  *reply.add_jobs() = Job("quiet", 1, 1);
  return reply;
}

TEST(ViewsTest, TopShowsFiguresAndTheLatestRanks) {
  EXPECT_EQ(TopView("h:1", WithStats(), 0, 0),
            R"(coordinator h:1  version 0.1.0  protocol 0  up 0.0s
2 jobs, 2 nodes, 5 running ranks

JOB    RANKS  TIER    STEPS/S    B/S  SENT  WAIT  LATEST
train      4  frozen     12.4  1.27G     0   38%  rank 1 52%
quiet      1  local         -      -     -     -  -

JOB    RANK  NODE    PID  WAIT  LATE
train     1  node0  4001    0%   52%  ##########
)");
}

TEST(ViewsTest, TopFitsTheTerminal) {
  proto::StatusReply reply = WithStats();
  for (int i = 0; i < 40; ++i) {
    *reply.add_jobs() = Job("job" + std::to_string(i), 1, 1);
  }
  const std::string view = TopView("h:1", reply, 80, 20);
  EXPECT_EQ(Lines(view), 20u);
  EXPECT_LE(Longest(view), 80u);
  EXPECT_THAT(view, HasSubstr("more lines\n"));
}

TEST(ViewsTest, TheLinkHasAHostThatTheCallerKnows) {
  proto::DashboardReply reply;
  reply.set_address("10.0.0.1:4002");
  reply.set_token("abc");
  EXPECT_EQ(DashboardLink("head:4001", reply),
            "http://10.0.0.1:4002/login?token=abc");
  reply.set_address("0.0.0.0:4002");
  reply.set_tls(true);
  EXPECT_EQ(DashboardLink("head:4001", reply),
            "https://head:4002/login?token=abc");
  reply.set_address("[::]:4002");
  EXPECT_EQ(DashboardLink("[fd::1]:4001", reply),
            "https://[fd::1]:4002/login?token=abc");
}

TEST(ViewsTest, ATimelineSaysWhereItsFileIs) {
  proto::TimelineStatus timeline;
  timeline.set_state("on");
  timeline.set_rank(2);
  timeline.set_host("h1");
  timeline.set_path("t.json");
  EXPECT_EQ(TimelineLine("train", timeline),
            "job train: rank 2 (host h1) writes the timeline t.json in its "
            "directory");
}

TEST(ViewsTest, NothingThere) {
  proto::StatusReply reply;
  reply.set_version("0.1.0");
  EXPECT_EQ(StatusView("h:1", reply, {}, 80),
            "coordinator h:1  version 0.1.0  protocol 0  up 0.0s\n"
            "0 jobs, 0 nodes, 0 running ranks\n");
  EXPECT_EQ(JobsView(reply, 80), "no jobs\n");
  EXPECT_EQ(RanksView(reply, false, 80), "no jobs\n");
}

TEST(ViewsTest, JobsSayWhereTheirRanksAre) {
  proto::StatusReply reply;
  *reply.add_jobs() = Job("train-a", 2, 2);
  *reply.add_jobs() = Job("b", 1, 2);
  reply.mutable_jobs(0)->mutable_nodes()->SwapElements(0, 1);
  EXPECT_EQ(
      JobsView(reply, 80),
      "JOB      STATE      FOR  EPOCH  RANKS  OPERATIONS  WHERE\n"
      "train-a  running  1m05s      1      4          12  node0:0-1 node1:2-3\n"
      "b        running  1m05s      1      2           -  node0:0-1\n");
}

TEST(ViewsTest, RanksThatAreAlikeStandTogether) {
  proto::StatusReply reply;
  *reply.add_jobs() = Job("train-a", 2, 3);
  MakeLate(reply.mutable_jobs(0), 1, 1, "allreduce 'x'");
  EXPECT_EQ(RanksView(reply, false, 80),
            "job train-a  epoch 1  running for 1m05s  6 ranks on 2 nodes\n"
            "RANK  NODE   STATE    PID        LATE FOR\n"
            "0-2   node0  running  4000-4002  -\n"
            "3,5   node1  running  4003,4005  -\n"
            "4     node1  late     4004       allreduce 'x'\n");
  const std::string each = RanksView(reply, true, 80);
  EXPECT_EQ(Lines(each), 8u);
  EXPECT_THAT(each, HasSubstr("\n5     node1  running  4005  -\n"));
  reply.mutable_jobs(0)->mutable_nodes(0)->set_connected(false);
  EXPECT_THAT(RanksView(reply, false, 80), HasSubstr("node0  running?"));
}

TEST(ViewsTest, GpusOfRanks) {
  proto::StatusReply reply;
  *reply.add_jobs() = Job("train-a", 2, 2);
  for (int local = 0; local < 2; ++local) {
    proto::GpuUse* gpu = reply.mutable_jobs(0)
                             ->mutable_nodes(0)
                             ->mutable_rank_status(local)
                             ->add_gpus();
    gpu->set_uuid("GPU-4f1b83d" + std::to_string(local) + "-0000");
    gpu->set_bytes(uint64_t{64} << 20);
  }
  EXPECT_EQ(RanksView(reply, false, 80),
            "job train-a  epoch 1  running for 1m05s  4 ranks on 2 nodes\n"
            "RANK  NODE   STATE    PID        GPU             LATE FOR\n"
            "0-1   node0  running  4000-4001  2 GPUs 128 MiB  -\n"
            "2-3   node1  running  4002-4003  -               -\n");
  EXPECT_THAT(
      RanksView(reply, true, 80),
      HasSubstr("\n1     node0  running  4001  GPU-4f1b83d1 64 MiB  -\n"));
}

TEST(ViewsTest, RanksThatWaitWithoutANumber) {
  proto::StatusReply reply;
  *reply.add_jobs() = Job("e", 1, 2);
  reply.mutable_jobs(0)->set_elastic(true);
  for (const int pid : {77, 78}) {
    auto* r = reply.mutable_jobs(0)->mutable_nodes(0)->add_rank_status();
    r->set_unnumbered(true);
    r->set_state("waiting");
    r->set_pid(pid);
  }
  const std::string text = RanksView(reply, false, 80);
  EXPECT_THAT(text, HasSubstr("2 new  node0  waiting  77-78"));
  EXPECT_THAT(text, HasSubstr("2 new ranks will be numbered"));
  EXPECT_THAT(JobsView(reply, 80), HasSubstr("2 elastic"));
}

TEST(ViewsTest, AThousandRanksAreAFewLinesOfEightyColumns) {
  proto::StatusReply reply;
  *reply.add_jobs() = Job(std::string(63, 'j'), 125, 8);
  proto::JobStatus* job = reply.mutable_jobs(0);
  MakeLate(job, 52, 2, "allreduce 'layer.weight.gradient.number.1'");
  job->mutable_nodes(3)->set_connected(false);
  job->set_pending_operations(1);
  for (const std::string& text :
       {RanksView(reply, false, 80), JobsView(reply, 80)}) {
    EXPECT_LE(Lines(text), 6u) << text;
  }
  EXPECT_THAT(RanksView(reply, false, 80),
              HasSubstr("0-23,32-417,419-999  124 nodes  running"));
  EXPECT_THAT(RanksView(reply, false, 80),
              HasSubstr("418                  node52     late"));
  const std::string status = StatusView("head:4001", reply, {}, 80);
  EXPECT_LE(Lines(status), 14u) << status;
  EXPECT_THAT(status, HasSubstr("node3"));
  EXPECT_THAT(status, HasSubstr("124 nodes"));
  EXPECT_LE(Longest(JobsView(reply, 80)), 80u) << JobsView(reply, 80);
  EXPECT_EQ(Lines(RanksView(reply, true, 80)), 1002u);
  std::istringstream lines(RanksView(reply, false, 80));
  std::string line;
  std::getline(lines, line);  // the heading may be longer
  while (std::getline(lines, line)) EXPECT_LE(line.size(), 80u) << line;
}

TEST(ViewsTest, WhatIsAwaitedFromNodes) {
  proto::StatusReply reply;
  *reply.add_jobs() = Job("a", 2, 1);
  proto::JobStatus* job = reply.mutable_jobs(0);
  job->set_pending_operations(1);
  proto::PendingOperation* op = job->add_pending();
  op->set_name("grad\x1b[2J");
  op->set_missing(3);
  op->add_missing_nodes("node1");
  EXPECT_THAT(StatusView("h:1", reply, {}, 80),
              HasSubstr("a: allreduce 'grad?[2J' waits for node node1 "
                        "and 2 more\n"));
}

TEST(ViewsTest, EventsSayTheirJobOnce) {
  setenv("TZ", "UTC", 1);
  tzset();
  proto::Event event;
  event.set_unix_seconds(1700000000.25);
  event.set_level("warning");
  event.set_job("a");
  event.set_kind("rank_lost");
  event.set_text("event=rank_lost job=a epoch=1 reason=\"x job=ab\"");
  EXPECT_EQ(EventLine(event),
            "11-14 22:13:20.250 warning a rank_lost epoch=1 reason=\"x "
            "job=ab\"");
  event.set_job("");
  event.set_text("event=rank_lost node=n");
  EXPECT_EQ(EventLine(event), "11-14 22:13:20.250 warning - rank_lost node=n");
}

TEST(StatusView, ShowsWhoLeads) {
  proto::StatusReply reply;
  reply.set_version("0.1.0");
  reply.set_role("leader");
  reply.set_leader("a:1");
  reply.set_term(7);
  const std::vector<OtherCoordinator> others = {
      {"b:1", kStandby}, {"c:1", "no answer from coordinator c:1"}};
  EXPECT_EQ(StatusView("a:1", reply, others, 0),
            "coordinator a:1  version 0.1.0  protocol 0  up 0.0s\n"
            "0 jobs, 0 nodes, 0 running ranks\n"
            "it leads (term 7); standbys: b:1\n"
            "\n"
            "no answer from coordinator c:1\n");
  reply.set_role(kStandby);
  EXPECT_THAT(StatusView("b:1", reply, {}, 0),
              HasSubstr("\nit is a standby; a:1 leads (term 7)\n"));
  reply.clear_leader();
  EXPECT_THAT(StatusView("b:1", reply, {}, 0),
              HasSubstr("\nit is a standby, and no coordinator leads now\n"));
}

}  // namespace
}  // namespace maypole::ctl
