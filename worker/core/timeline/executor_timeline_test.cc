#include "worker/core/timeline/executor_timeline.h"

#include <gtest/gtest.h>

#include <deque>
#include <string>
#include <vector>

namespace maypole::worker {
namespace {

constexpr int64_t kMs = 1'000'000;

struct FakeShell : ExecutorTimeline::Shell {
  void ToCoordinator(proto::ExecutorMessage message) override {
    sent.push_back(std::move(message));
  }
  void Reply(ClientId client, const session::TimelineReply& reply) override {
    replies.emplace_back(client, reply);
  }
  void SetTimeline(uint32_t w) override { word = w; }
  void WriteFile(std::string text) override { file += text; }
  void CloseFile() override { ++closes; }
  void MakeFile(ClientId client, const std::string& name) override {
    made.emplace_back(client, name);
  }

  std::deque<proto::ExecutorMessage> sent;
  std::vector<std::pair<ClientId, session::TimelineReply>> replies;
  std::vector<std::pair<ClientId, std::string>> made;
  std::string file;
  uint32_t word = 0;
  int closes = 0;
};

// An executor with the ranks 0 and 1 (clients 10, 11) on node 0 or 1.
struct Node {
  explicit Node(uint32_t node, uint32_t nodes = 2) : timeline(&shell) {
    timeline.OnTime(now);
    Start(node, nodes);
  }
  void Start(uint32_t node, uint32_t nodes) {
    ExecutorTimeline::Epoch epoch;
    epoch.number = 3;
    epoch.node = node;
    for (uint32_t i = 0; i < nodes; ++i) {
      epoch.nodes.push_back("n" + std::to_string(i));
    }
    const int first = static_cast<int>(2 * node);
    epoch.ranks = {{10, first}, {11, first + 1}};
    timeline.OnEpochStarted(std::move(epoch));
  }

  void State(uint32_t number, bool on, uint32_t rank, bool closing = false,
             bool by_operator = false) {
    proto::CoordinatorMessage m;
    m.set_epoch(3);
    m.mutable_timeline()->set_number(number);
    m.mutable_timeline()->set_on(on);
    m.mutable_timeline()->set_closing(closing);
    m.mutable_timeline()->set_rank(rank);
    m.mutable_timeline()->set_node(rank / 2);
    m.mutable_timeline()->set_path("/t.json");
    m.mutable_timeline()->set_by_operator(by_operator);
    EXPECT_TRUE(timeline.OnCoordinator(m));
  }
  void Closed(uint32_t number, Code code = Code::kOk, std::string text = "") {
    proto::CoordinatorMessage m;
    m.set_epoch(3);
    m.mutable_timeline()->set_number(number);
    m.mutable_timeline()->set_code(static_cast<int>(code));
    m.mutable_timeline()->set_error(text);
    EXPECT_TRUE(timeline.OnCoordinator(m));
  }
  void Request(ClientId client, bool stop, uint32_t number = 0) {
    auto m = session::Make<session::TimelineRequest>();
    m.stop = stop ? 1 : 0;
    m.number = number;
    session::SetText(m.path, "/t.json");
    timeline.OnRequest(client, m);
  }
  void Records(ClientId client, int rank, bool last, const std::string& name,
               uint32_t members = 2, int64_t at = 50 * kMs) {
    auto m = session::Make<session::TimelineRecords>();
    m.number = 1;
    m.last = last ? 1 : 0;
    std::string packed;
    if (!name.empty()) {
      TimelineRecord r;
      r.kind = Kind::kAllreduce;
      r.rank = rank;
      r.members = members;
      r.number = 1;
      r.submitted = r.arrived = at;
      r.begun = r.ended = at + kMs;
      r.name = name;
      Append(r, &packed);
    }
    std::memcpy(m.data, packed.data(), packed.size());
    m.bytes = static_cast<uint32_t>(packed.size());
    timeline.OnRecords(client, m);
  }
  // Answers all questions for the time; the coordinator is ahead by `offset`.
  void AnswerClock(int64_t offset) {
    for (size_t i = 0; i < shell.sent.size(); ++i) {
      if (!shell.sent[i].has_clock_query()) continue;
      proto::CoordinatorMessage m;
      m.mutable_clock_reply()->set_sent_ns(
          shell.sent[i].clock_query().sent_ns());
      m.mutable_clock_reply()->set_coordinator_ns(now + offset);
      shell.sent.erase(shell.sent.begin() + static_cast<int64_t>(i));
      --i;
      timeline.OnCoordinator(m);
    }
  }
  void Taken() {
    proto::CoordinatorMessage m;
    m.mutable_timeline_taken()->set_number(1);
    timeline.OnCoordinator(m);
  }
  void Wait(int64_t ms) { timeline.OnTime(now += ms * kMs); }

  int64_t now = 1000 * kMs;
  FakeShell shell;
  ExecutorTimeline timeline;
};

// An operator starts and stops it while the nodes prepare the epoch.
TEST(ExecutorTimeline, OneThatIsOnAndOffBeforeItsEpochRunsIsClosed) {
  Node node(0, 1);
  node.timeline.OnEpochOver();
  for (const bool on : {true, false}) {
    node.State(1, on, 0, /*closing=*/!on, /*by_operator=*/true);
  }
  EXPECT_TRUE(node.shell.made.empty());
  node.Start(0, 1);
  EXPECT_EQ(node.shell.made.size(), 1u);
  EXPECT_EQ(node.shell.word, 2u);
  EXPECT_FALSE(node.timeline.recording());
  node.Records(10, 0, true, "");
  node.Records(11, 1, true, "");
  EXPECT_EQ(node.shell.closes, 1);
  node.timeline.OnFileClosed(Status());
  EXPECT_TRUE(node.shell.sent.back().has_timeline_closed());
}

TEST(ExecutorTimeline, OfSeveralBeforeItsEpochRunsTheLastCounts) {
  Node node(0, 1);
  node.timeline.OnEpochOver();
  for (const bool on : {true, false}) {
    node.State(1, on, 0, /*closing=*/!on, /*by_operator=*/true);
  }
  node.State(2, true, 0, /*closing=*/false, /*by_operator=*/true);
  node.Start(0, 1);
  EXPECT_EQ(node.shell.made.size(), 1u);
  EXPECT_EQ(node.shell.word, 5u);
  EXPECT_TRUE(node.timeline.recording());
}

TEST(ExecutorTimeline, OneNodeFromStartToFile) {
  Node node(0, 1);
  node.Request(10, /*stop=*/false);
  ASSERT_EQ(node.shell.sent.size(), 1u);
  EXPECT_EQ(node.shell.sent[0].timeline_request().rank(), 0u);
  EXPECT_EQ(node.shell.sent[0].epoch(), 3u);
  EXPECT_EQ(node.shell.sent[0].timeline_request().path(), "/t.json");
  EXPECT_EQ(node.timeline.SleepMs(), -1);
  node.State(1, true, 0);
  EXPECT_EQ(node.shell.word, 3u);
  EXPECT_TRUE(node.timeline.recording());
  ASSERT_EQ(node.shell.replies.size(), 1u);
  EXPECT_EQ(node.shell.replies[0].first, 10u);
  EXPECT_EQ(node.shell.replies[0].second.writer, 1u);
  EXPECT_EQ(node.shell.replies[0].second.number, 1u);
  // A second start joins; only the first rank writes, and only once.
  node.Request(11, false);
  node.Request(10, false);
  node.State(1, true, 0);
  ASSERT_EQ(node.shell.replies.size(), 3u);
  EXPECT_EQ(node.shell.replies[1].second.writer, 0u);
  EXPECT_EQ(node.shell.replies[2].second.writer, 0u);

  node.Records(10, 0, false, "early");  // before the file is there
  EXPECT_EQ(node.shell.file, "");
  node.timeline.OnFile(10, 1, true);
  node.Records(11, 1, false, "early");
  EXPECT_NE(node.shell.file.find("allreduce early"), std::string::npos);

  node.Request(10, true, 1);
  node.State(1, false, 0, /*closing=*/true);
  EXPECT_EQ(node.shell.word, 2u);
  EXPECT_FALSE(node.timeline.recording());
  node.Records(10, 0, true, "");
  EXPECT_EQ(node.shell.closes, 0);
  node.Records(11, 1, true, "");
  EXPECT_EQ(node.shell.closes, 1);
  EXPECT_EQ(node.shell.file.substr(node.shell.file.size() - 3), "\n]\n");
  EXPECT_EQ(node.shell.replies.size(), 3u);
  node.timeline.OnFileClosed(Status());
  EXPECT_TRUE(node.shell.sent.back().has_timeline_closed());
  node.Closed(1);
  ASSERT_EQ(node.shell.replies.size(), 4u);
  EXPECT_EQ(node.shell.replies[3].second.stop, 1u);
  EXPECT_EQ(node.shell.replies[3].second.code, 0u);
  EXPECT_EQ(node.timeline.SleepMs(), -1);
}

TEST(ExecutorTimeline, AnOperatorsFileIsMadeHere) {
  Node node(0, 1);
  node.State(1, true, 1, /*closing=*/false, /*by_operator=*/true);
  using Made = std::vector<std::pair<ClientId, std::string>>;
  EXPECT_EQ(node.shell.made, (Made{{11, "/t.json"}}));
  EXPECT_TRUE(node.timeline.recording());
  EXPECT_FALSE(node.timeline.AwaitsFile(11, 1));
  // Ranks may join it, even the one whose file it is.
  node.Request(11, false);
  node.State(1, true, 1, false, true);
  ASSERT_EQ(node.shell.replies.size(), 1u);
  EXPECT_EQ(node.shell.replies[0].second.writer, 0u);
  EXPECT_EQ(node.shell.made.size(), 1u);
  node.Records(10, 0, false, "early");
  node.Records(11, 1, false, "early");
  EXPECT_NE(node.shell.file.find("allreduce early"), std::string::npos);
  node.State(1, false, 1, /*closing=*/true, true);
  node.Records(10, 0, true, "");
  node.Records(11, 1, true, "");
  EXPECT_EQ(node.shell.closes, 1);
  node.timeline.OnFileClosed(Status());
  EXPECT_EQ(node.shell.sent.back().timeline_closed().code(), 0);
}

TEST(ExecutorTimeline, AnOperatorsFileThatCannotBeMadeEndsIt) {
  Node node(0, 1);
  node.State(1, true, 1, false, true);
  node.timeline.OnFileClosed(Status(Code::kInvalidArgument, "no place"));
  EXPECT_EQ(node.shell.sent.back().timeline_closed().message(), "no place");
  node.State(1, false, 1, true, true);
  node.Closed(1, Code::kInvalidArgument, "no place");
  EXPECT_FALSE(node.timeline.recording());
  EXPECT_EQ(node.shell.word, 2u);
  EXPECT_EQ(node.shell.closes, 0);
}

TEST(ExecutorTimeline, AnOperatorsFileNeedsItsRank) {
  Node node(0, 1);
  node.timeline.OnClientGone(11);
  node.State(1, true, 1, false, true);
  EXPECT_TRUE(node.shell.made.empty());
  EXPECT_EQ(node.shell.sent.back().timeline_closed().message(),
            "the rank in whose directory it was to be has left");
}

TEST(ExecutorTimeline, OnlyTheWritingNodeMakesAnOperatorsFile) {
  Node node(1);
  node.State(1, true, 0, false, true);
  EXPECT_TRUE(node.shell.made.empty());
  EXPECT_TRUE(node.timeline.recording());
}

TEST(ExecutorTimeline, ARankThatDoesNotAnswerIsNotWaitedForForEver) {
  Node node(0, 1);
  node.Request(10, false);
  node.State(1, true, 0);
  node.timeline.OnFile(10, 1, true);
  node.State(1, false, 0, true);
  node.Records(10, 0, true, "");
  node.Wait(ExecutorTimeline::kRanksNs / kMs);
  EXPECT_EQ(node.shell.closes, 0);
  node.Wait(1);
  EXPECT_EQ(node.shell.closes, 1);
}

// The coordinator was replaced after the file's end, before it reported that
// end.
TEST(ExecutorTimeline, WhyThereIsNoFileIsToldByTheNextCoordinator) {
  Node node(1);
  node.State(1, true, 0);
  node.Request(10, /*stop=*/true, 1);
  node.Request(11, /*stop=*/false);
  node.State(1, false, 0, /*closing=*/true);
  EXPECT_TRUE(node.shell.replies.empty());
  node.timeline.OnCoordinatorReplaced();
  node.shell.sent.clear();
  node.Closed(1, Code::kInternal, "disk full");
  ASSERT_EQ(node.shell.replies.size(), 1u);
  EXPECT_EQ(node.shell.replies[0].first, 10u);
  EXPECT_EQ(node.shell.replies[0].second.code,
            static_cast<uint32_t>(Code::kInternal));
  EXPECT_STREQ(node.shell.replies[0].second.text, "disk full");
  EXPECT_EQ(node.timeline.SleepMs(), -1);
  // The start is requested again, once; the next coordinator learns the rest.
  ASSERT_EQ(node.shell.sent.size(), 1u);
  EXPECT_FALSE(node.shell.sent[0].timeline_request().stop());
  node.Closed(1, Code::kInternal, "disk full");
  EXPECT_EQ(node.shell.sent.size(), 1u);
  proto::NodeState state;
  state.mutable_start()->set_epoch(3);
  node.timeline.WriteState(&state);
  EXPECT_EQ(state.timeline().error(), "disk full");
}

TEST(ExecutorTimeline, OneThatFailedBeforeItsEpochRunsIsClosed) {
  Node node(1);
  node.timeline.OnEpochOver();
  node.State(1, true, 0, /*closing=*/false, /*by_operator=*/true);
  node.State(1, false, 0, /*closing=*/true, /*by_operator=*/true);
  node.Closed(1, Code::kInternal, "disk full");
  node.Start(1, 2);
  EXPECT_EQ(node.shell.word, 2u);
  EXPECT_FALSE(node.timeline.recording());
  EXPECT_EQ(node.timeline.SleepMs(), -1);
}

// Otherwise the coordinator would get records of a timeline that it does not
// know.
TEST(ExecutorTimeline, TheNextCoordinatorLearnsOfOneBeforeItsEpochRuns) {
  Node node(0, 1);
  node.timeline.OnEpochOver();
  proto::NodeState state;
  state.mutable_start()->set_epoch(3);
  node.timeline.WriteState(&state);
  EXPECT_FALSE(state.has_timeline());
  node.State(1, true, 0, /*closing=*/false, /*by_operator=*/true);
  node.timeline.OnCoordinatorReplaced();
  node.timeline.WriteState(&state);
  EXPECT_TRUE(state.timeline().on());
  EXPECT_EQ(state.timeline().number(), 1u);
  proto::NodeState of_another;
  of_another.mutable_start()->set_epoch(2);
  node.timeline.WriteState(&of_another);
  EXPECT_FALSE(of_another.has_timeline());
}

TEST(ExecutorTimeline, AStartDuringTheCloseIsAskedAgain) {
  Node node(0, 1);
  node.State(1, true, 1);
  node.timeline.OnFile(11, 1, true);
  node.State(1, false, 1, true);
  node.Request(10, false);
  node.State(1, false, 1, true);  // the coordinator's answer
  EXPECT_TRUE(node.shell.replies.empty());
  node.shell.sent.clear();
  node.Closed(1);
  ASSERT_EQ(node.shell.sent.size(), 1u);
  EXPECT_FALSE(node.shell.sent[0].timeline_request().stop());
  node.State(2, true, 0);
  ASSERT_EQ(node.shell.replies.size(), 1u);
  EXPECT_EQ(node.shell.replies[0].second.writer, 1u);
  EXPECT_EQ(node.shell.word, 5u);
}

TEST(ExecutorTimeline, AStopOfAnOldTimelineDoesNothing) {
  Node node(0, 1);
  node.State(2, true, 1);
  node.Request(10, true, 1);
  node.State(2, true, 1);
  ASSERT_EQ(node.shell.replies.size(), 1u);
  EXPECT_EQ(node.shell.replies[0].second.code, 0u);
  EXPECT_EQ(node.shell.word, 5u);
}

TEST(ExecutorTimeline, AFileThatCannotBeOpenedEndsIt) {
  Node node(0, 1);
  node.Request(10, false);
  node.State(1, true, 0);
  node.shell.sent.clear();
  node.timeline.OnFile(10, 1, /*opened=*/false);
  ASSERT_EQ(node.shell.sent.size(), 1u);
  EXPECT_EQ(node.shell.sent[0].timeline_closed().code(),
            static_cast<int>(Code::kInvalidArgument));
  EXPECT_EQ(node.shell.closes, 0);
}

TEST(ExecutorTimeline, TimesOfAnotherNodeAreShifted) {
  Node writer(0);
  Node other(1);
  for (Node* node : {&writer, &other}) node->State(1, true, 0);
  writer.timeline.OnFile(10, 1, true);
  // The other node's clock is 1000 s ahead of the writer's.
  writer.AnswerClock(5 * kMs);
  other.now += 1'000'000 * kMs;
  other.timeline.OnTime(other.now);
  other.AnswerClock(-1'000'000 * kMs + 5 * kMs);
  writer.Records(10, 0, false, "x", 2, 100 * kMs);
  other.Records(10, 2, false, "x", 2, 1'000'300 * kMs);
  other.Wait(1);
  ASSERT_FALSE(other.shell.sent.empty());
  proto::CoordinatorMessage m;
  for (const auto& sent : other.shell.sent) {
    if (!sent.has_timeline_records()) continue;
    *m.mutable_timeline_records() = sent.timeline_records();
  }
  m.mutable_timeline_records()->set_node(1);
  writer.shell.sent.clear();
  writer.timeline.OnCoordinator(m);
  EXPECT_NE(writer.shell.file.find("late by 200.0 ms for allreduce x"),
            std::string::npos)
      << writer.shell.file;
  ASSERT_FALSE(writer.shell.sent.empty());
  EXPECT_EQ(writer.shell.sent[0].timeline_taken().node(), 1u);
}

// The other node may know its clock earlier.
TEST(ExecutorTimeline, RecordsWaitUntilTheClockIsKnown) {
  Node writer(0);
  writer.State(1, true, 0);
  writer.timeline.OnFile(10, 1, true);
  proto::CoordinatorMessage m;
  m.mutable_timeline_records()->set_number(1);
  m.mutable_timeline_records()->set_node(1);
  m.mutable_timeline_records()->set_clock_offset_ns(7 * kMs);
  std::string packed;
  TimelineRecord r;
  r.kind = Kind::kAllreduce;
  r.rank = 2;
  r.members = 1;
  r.submitted = r.arrived = 100 * kMs;
  r.begun = r.ended = 101 * kMs;
  r.name = "x";
  Append(r, &packed);
  m.mutable_timeline_records()->set_records(packed);
  writer.timeline.OnCoordinator(m);
  EXPECT_EQ(writer.shell.file.find("allreduce x"), std::string::npos);
  for (const auto& sent : writer.shell.sent) {
    EXPECT_FALSE(sent.has_timeline_taken());
  }
  writer.AnswerClock(5 * kMs);
  // 100 ms by its clock, which is 2 ms behind the writer's.
  EXPECT_NE(writer.shell.file.find("\"ts\":102000.000"), std::string::npos)
      << writer.shell.file;
  EXPECT_TRUE(writer.shell.sent.back().has_timeline_taken());
}

TEST(ExecutorTimeline, OneMessageOfRecordsIsOnItsWay) {
  Node node(1);
  node.State(1, true, 0);
  node.Records(10, 2, false, "before the clock is known");
  node.Wait(1);
  EXPECT_FALSE(node.shell.sent.back().has_timeline_records());
  node.AnswerClock(0);
  ASSERT_TRUE(node.shell.sent.back().has_timeline_records());
  node.shell.sent.clear();
  node.Records(10, 2, false, "second");
  node.Records(10, 2, false, "third");
  node.Wait(1);
  EXPECT_TRUE(node.shell.sent.empty());
  node.Taken();
  ASSERT_EQ(node.shell.sent.size(), 1u);
  int records = 0;
  ForRecords(node.shell.sent[0].timeline_records().records(),
             [&](const TimelineRecord&) { ++records; });
  EXPECT_EQ(records, 2);
  // The last rank's end sends the rest at once.
  node.shell.sent.clear();
  node.Records(11, 3, false, "fourth");
  node.timeline.OnClientGone(10);
  EXPECT_TRUE(node.shell.sent.empty());
  node.timeline.OnClientGone(11);
  ASSERT_EQ(node.shell.sent.size(), 2u);
  EXPECT_FALSE(node.shell.sent[0].timeline_records().records().empty());
  EXPECT_TRUE(node.shell.sent[1].timeline_records().last());
}

TEST(ExecutorTimeline, WhatDoesNotFitIsCounted) {
  Node node(1);
  node.State(1, true, 0);
  size_t bytes = 0;
  uint64_t added = 0;
  const std::string name(400, 'x');
  while (bytes <= ExecutorTimeline::kMaxWaitingBytes) {
    node.Records(10, 2, false, name);
    bytes += 72 + 400;
    ++added;
  }
  uint64_t received = 0;
  uint64_t dropped = 0;
  node.Wait(1);
  node.AnswerClock(0);
  for (int i = 0; i < 1000 && !node.shell.sent.empty(); ++i) {
    for (const auto& m : std::exchange(node.shell.sent, {})) {
      ForRecords(m.timeline_records().records(),
                 [&](const TimelineRecord&) { ++received; });
      dropped += m.timeline_records().dropped();
    }
    node.Taken();
  }
  EXPECT_GT(dropped, 0u);
  EXPECT_EQ(received + dropped, added);
}

// A rank that is stopped before it sends its file.
TEST(ExecutorTimeline, WhatWaitsForTheFileIsBounded) {
  Node node(0, 1);
  node.Request(10, false);
  node.State(1, true, 0);
  const std::string name(400, 'x');
  uint64_t added = 0;
  for (size_t bytes = 0; bytes < 2 * ExecutorTimeline::kMaxWaitingBytes;
       bytes += name.size()) {
    node.Records(10, 0, false, name, /*members=*/1);
    ++added;
  }
  EXPECT_EQ(node.shell.file, "");
  node.timeline.OnFile(10, 1, true);
  EXPECT_LT(node.shell.file.size(), ExecutorTimeline::kMaxWaitingBytes + 4096);
  const std::string lost = "records lost: ";
  const size_t at = node.shell.file.find(lost);
  ASSERT_NE(at, std::string::npos);
  const uint64_t number = std::stoull(node.shell.file.substr(at + lost.size()));
  EXPECT_GT(number, 0u);
  EXPECT_LT(number, added);
}

TEST(ExecutorTimeline, TheEndOfTheEpochCompletesTheFile) {
  Node node(0);
  node.State(1, true, 0);
  node.timeline.OnFile(10, 1, true);
  node.Records(10, 0, false, "alone");
  node.timeline.OnEpochOver();
  EXPECT_NE(node.shell.file.find("allreduce alone"), std::string::npos);
  EXPECT_EQ(node.shell.file.substr(node.shell.file.size() - 3), "\n]\n");
  EXPECT_EQ(node.shell.closes, 1);
}

TEST(ExecutorTimeline, AStartBeforeTheBoardIsThereCountsLater) {
  Node node(1);
  proto::CoordinatorMessage m;
  m.set_epoch(4);
  m.mutable_timeline()->set_number(1);
  m.mutable_timeline()->set_on(true);
  node.timeline.OnCoordinator(m);
  EXPECT_EQ(node.shell.word, 0u);
  ExecutorTimeline::Epoch epoch;
  epoch.number = 4;
  epoch.node = 1;
  epoch.nodes = {"n0", "n1"};
  epoch.ranks = {{12, 2}};
  node.timeline.OnEpochStarted(std::move(epoch));
  EXPECT_EQ(node.shell.word, 3u);
}

}  // namespace
}  // namespace maypole::worker
