#include "coordinator/core/admin/timeline.h"

#include "coordinator/core/testing/epoch_testing.h"
#include "gtest/gtest.h"

namespace maypole::coordinator {
namespace {

using Messages = EpochBed::Messages;

// A relay of epoch 5 with four nodes, the last of which is not connected; node
// i has ranks 2 i and 2 i + 1.
struct Relay {
  Relay() { bed.nodes.Disconnect(3); }
  Messages Handle(size_t node, const proto::ExecutorMessage& m,
                  bool ok = true) {
    EXPECT_EQ(Dispatch(node, m).ok(), ok);
    return bed.Take();
  }
  absl::Status Dispatch(size_t node, const proto::ExecutorMessage& m) {
    if (m.has_timeline_request()) {
      return relay.OnRequest(node, m.timeline_request());
    }
    if (m.has_timeline_records()) {
      return relay.OnRecords(node, m.timeline_records());
    }
    if (m.has_timeline_taken()) return relay.OnTaken(m.timeline_taken());
    if (m.has_timeline_closed()) {
      return relay.OnClosed(node, m.timeline_closed());
    }
    EXPECT_TRUE(m.has_clock_query());
    return relay.OnClockQuery(Time(777), node, m.clock_query());
  }
  // What an operator's request sends.
  Messages Record(bool stop, absl::Status* status) {
    *status = relay.Record(stop);
    return bed.Take();
  }
  proto::TimelineStatus Status() const {
    proto::JobStatus status;
    relay.FillStatus(&status);
    return status.timeline();
  }
  Messages Start(size_t node, uint32_t rank, std::string path = "/t") {
    proto::ExecutorMessage m;
    m.mutable_timeline_request()->set_rank(rank);
    m.mutable_timeline_request()->set_path(std::move(path));
    return Handle(node, m);
  }
  Messages Stop(size_t node, uint32_t number) {
    proto::ExecutorMessage m;
    m.mutable_timeline_request()->set_rank(static_cast<uint32_t>(2 * node));
    m.mutable_timeline_request()->set_stop(true);
    m.mutable_timeline_request()->set_number(number);
    return Handle(node, m);
  }
  Messages Closed(size_t node, uint32_t number) {
    proto::ExecutorMessage m;
    m.mutable_timeline_closed()->set_number(number);
    return Handle(node, m);
  }
  Messages Records(size_t node, uint32_t number, bool ok = true) {
    proto::ExecutorMessage m;
    m.mutable_timeline_records()->set_number(number);
    m.mutable_timeline_records()->set_node(99);  // it cannot choose
    m.mutable_timeline_records()->set_records("abc");
    return Handle(node, m, ok);
  }

  EpochBed bed{4};
  TimelineRelay relay{&bed.nodes, &bed.departures};
};

TEST(TimelineRelay, TheFirstStartCounts) {
  Relay r;
  const Messages on = r.Start(1, 3);
  ASSERT_EQ(on.size(), 3u);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(on[i].first, i);
    const proto::Timeline& t = on[i].second.timeline();
    EXPECT_EQ(on[i].second.epoch(), 5u);
    EXPECT_EQ(t.number(), 1u);
    EXPECT_TRUE(t.on());
    EXPECT_EQ(t.rank(), 3u);
    EXPECT_EQ(t.node(), 1u);
    EXPECT_EQ(t.path(), "/t");
  }
  const Messages joined = r.Start(2, 5, "/other");
  ASSERT_EQ(joined.size(), 1u);
  EXPECT_EQ(joined[0].first, 2u);
  EXPECT_EQ(joined[0].second.timeline().path(), "/t");
}

TEST(TimelineRelay, StopsOnceAndCloses) {
  Relay r;
  r.Start(1, 3);
  EXPECT_EQ(r.Stop(0, 7).size(), 1u);  // another number: nothing changes
  const Messages off = r.Stop(2, 1);
  ASSERT_EQ(off.size(), 3u);
  EXPECT_FALSE(off[0].second.timeline().on());
  EXPECT_TRUE(off[0].second.timeline().closing());
  EXPECT_EQ(r.Stop(0, 1).size(), 1u);
  // The file is not complete yet: no other timeline.
  const Messages wait = r.Start(0, 0);
  ASSERT_EQ(wait.size(), 1u);
  EXPECT_TRUE(wait[0].second.timeline().closing());
  EXPECT_TRUE(r.Closed(0, 1).empty());  // not the node that writes
  const Messages closed = r.Closed(1, 1);
  ASSERT_EQ(closed.size(), 3u);
  EXPECT_EQ(closed[2].second.timeline().number(), 1u);
  EXPECT_FALSE(closed[2].second.timeline().closing());
  EXPECT_TRUE(r.Closed(1, 1).empty());
  EXPECT_EQ(r.Start(0, 0)[0].second.timeline().number(), 2u);
}

TEST(TimelineRelay, AFileThatFailsEndsIt) {
  Relay r;
  r.Start(1, 3);
  const Messages out = r.Closed(1, 1);
  ASSERT_EQ(out.size(), 6u);
  EXPECT_FALSE(out[0].second.timeline().on());
  EXPECT_TRUE(out[0].second.timeline().closing());
  EXPECT_FALSE(out[3].second.timeline().closing());
}

TEST(TimelineRelay, RecordsGoToTheNodeThatWrites) {
  Relay r;
  EXPECT_TRUE(r.Records(0, 0).empty());
  r.Records(0, 1, /*ok=*/false);  // there was none
  r.Start(1, 3);
  const Messages out = r.Records(2, 1);
  ASSERT_EQ(out.size(), 1u);
  EXPECT_EQ(out[0].first, 1u);
  EXPECT_EQ(out[0].second.timeline_records().node(), 2u);
  EXPECT_EQ(out[0].second.timeline_records().records(), "abc");
  proto::ExecutorMessage taken;
  taken.mutable_timeline_taken()->set_node(2);
  const Messages back = r.Handle(1, taken);
  ASSERT_EQ(back.size(), 1u);
  EXPECT_EQ(back[0].first, 2u);
  taken.mutable_timeline_taken()->set_node(4);
  r.Handle(1, taken, /*ok=*/false);
  // Also while it is closing, but not later.
  r.Stop(0, 1);
  EXPECT_EQ(r.Records(2, 1).size(), 1u);
  r.Closed(1, 1);
  EXPECT_TRUE(r.Records(2, 1).empty());
}

TEST(TimelineRelay, OnlyOfARankOfTheNode) {
  Relay r;
  proto::ExecutorMessage m;
  m.mutable_timeline_request()->set_rank(2);
  EXPECT_TRUE(r.Handle(0, m, /*ok=*/false).empty());
}

TEST(TimelineRelay, AnOperatorStartsAndStopsIt) {
  Relay r;
  absl::Status status;
  EXPECT_TRUE(r.Record(/*stop=*/true, &status).empty());
  EXPECT_FALSE(status.ok());
  for (const uint32_t rank : {0, 1, 2}) r.bed.departures.OnLeft(rank);
  r.bed.Take();
  const Messages on = r.Record(/*stop=*/false, &status);
  ASSERT_TRUE(status.ok());
  ASSERT_EQ(on.size(), 3u);
  const proto::Timeline& t = on[2].second.timeline();
  EXPECT_TRUE(t.on() && t.by_operator());
  EXPECT_EQ(t.number(), 1u);
  EXPECT_EQ(t.node(), 1u);
  EXPECT_EQ(t.rank(), 3u);
  EXPECT_EQ(t.path(), "maypole-timeline-j-1003-5-1.json");
  EXPECT_TRUE(r.Record(/*stop=*/false, &status).empty());
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(status.message(),
            "the job's timeline is on already: rank 3 writes "
            "'maypole-timeline-j-1003-5-1.json'");
  // A rank joins it.
  EXPECT_EQ(r.Start(2, 5, "/other")[0].second.timeline().path(), t.path());
  const Messages off = r.Record(/*stop=*/true, &status);
  ASSERT_TRUE(status.ok());
  ASSERT_EQ(off.size(), 3u);
  EXPECT_TRUE(off[0].second.timeline().closing());
  EXPECT_TRUE(r.Record(/*stop=*/true, &status).empty());
  EXPECT_FALSE(status.ok());
  EXPECT_TRUE(r.Record(/*stop=*/false, &status).empty());
  EXPECT_FALSE(status.ok());
  r.Closed(1, 1);
  EXPECT_EQ(r.Status().error(), "");
  r.Record(/*stop=*/false, &status);
  ASSERT_TRUE(status.ok());
  EXPECT_EQ(r.Status().path(), "maypole-timeline-j-1003-5-2.json");
  // A rank's is stopped as well.
  r.Closed(1, 2);
  EXPECT_FALSE(r.Start(2, 5, "/rank")[0].second.timeline().by_operator());
  EXPECT_EQ(r.Record(/*stop=*/true, &status).size(), 3u);
  EXPECT_TRUE(status.ok());
}

TEST(TimelineRelay, WhyThereIsNoFileIsKeptUntilTheNext) {
  Relay r;
  absl::Status status;
  r.Record(/*stop=*/false, &status);
  ASSERT_TRUE(status.ok());
  proto::ExecutorMessage m;
  m.mutable_timeline_closed()->set_number(1);
  m.mutable_timeline_closed()->set_message("no place");
  r.Handle(0, m);
  EXPECT_EQ(r.Status().state(), "off");
  EXPECT_EQ(r.Status().error(), "no place");
  r.Record(/*stop=*/false, &status);
  ASSERT_TRUE(status.ok());
  EXPECT_EQ(r.Status().error(), "");
}

// Another coordinator learns it from any node that knows it.
TEST(TimelineRelay, WhyThereIsNoFileIsTakenOver) {
  Relay r;
  r.Start(1, 3);
  proto::NodeState late;
  proto::NodeState state;
  *late.mutable_timeline() = r.Stop(0, 1)[0].second.timeline();
  proto::ExecutorMessage m;
  m.mutable_timeline_closed()->set_number(1);
  m.mutable_timeline_closed()->set_code(3);
  m.mutable_timeline_closed()->set_message("no place");
  *state.mutable_timeline() = r.Handle(1, m)[2].second.timeline();
  EXPECT_EQ(state.timeline().code(), 3);
  Relay next;
  next.relay.Restore({&late, &state, nullptr, &late});
  EXPECT_EQ(next.Status().state(), "off");
  EXPECT_EQ(next.Status().error(), "no place");
  next.relay.SendState();
  const Messages out = next.bed.Take();
  ASSERT_EQ(out.size(), 3u);
  EXPECT_EQ(out[0].second.timeline().error(), "no place");
}

TEST(TimelineRelay, RecordsAreBounded) {
  Relay r;
  r.Start(1, 3);
  proto::ExecutorMessage m;
  m.mutable_timeline_records()->set_number(1);
  m.mutable_timeline_records()->set_records(
      std::string(TimelineRelay::kMaxRecordBytes + 1, 'x'));
  r.Handle(2, m, /*ok=*/false);
}

TEST(TimelineRelay, TellsTheTime) {
  Relay r;
  proto::ExecutorMessage m;
  m.mutable_clock_query()->set_sent_ns(123);
  const Messages out = r.Handle(2, m);
  ASSERT_EQ(out.size(), 1u);
  EXPECT_EQ(out[0].first, 2u);
  EXPECT_EQ(out[0].second.clock_reply().sent_ns(), 123);
  EXPECT_EQ(out[0].second.clock_reply().coordinator_ns(), 777);
}

}  // namespace
}  // namespace maypole::coordinator
