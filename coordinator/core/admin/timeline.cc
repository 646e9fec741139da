#include "coordinator/core/admin/timeline.h"

#include <optional>

#include "absl/strings/str_cat.h"
#include "common/limits.h"
#include "common/wire/utf8.h"
#include "coordinator/core/limits.h"
#include "coordinator/core/text.h"

namespace maypole::coordinator {

absl::Status TimelineRelay::OnClockQuery(Time now, size_t node,
                                         const proto::ClockQuery& query) {
  proto::CoordinatorMessage reply;
  reply.mutable_clock_reply()->set_sent_ns(query.sent_ns());
  reply.mutable_clock_reply()->set_coordinator_ns(now.count());
  nodes_.SendUncounted(node, reply);
  return absl::OkStatus();
}

void TimelineRelay::Restore(
    const std::vector<const proto::NodeState*>& states) {
  // A timeline is first on, then closing, then neither.
  const auto phase = [](const proto::Timeline& t) {
    return t.on() ? 0 : t.closing() ? 1 : 2;
  };
  for (const proto::NodeState* state : states) {
    if (state == nullptr || !state->has_timeline()) continue;
    const proto::Timeline& t = state->timeline();
    if (t.number() > timeline_.number() ||
        (t.number() == timeline_.number() && phase(t) > phase(timeline_))) {
      timeline_ = t;
    }
  }
  timeline_.set_error(Cut(timeline_.error(), kMaxForeignText));
}

void TimelineRelay::SendState() {
  if (timeline_.number() > 0) nodes_.SendAllUncounted(State());
}

proto::CoordinatorMessage TimelineRelay::State() const {
  proto::CoordinatorMessage message;
  *message.mutable_timeline() = timeline_;
  return message;
}

absl::Status TimelineRelay::OnRequest(size_t node,
                                      const proto::TimelineRequest& request) {
  if (!nodes_[node].HasRank(request.rank())) {
    return InvalidArgument("a timeline request of rank ", request.rank(),
                           ", which is not a rank of the node");
  }
  const bool current = request.number() == timeline_.number();
  if (request.stop() && timeline_.on() && current) {
    Close();
  } else if (request.stop() || open()) {
    nodes_.SendUncounted(node, State());
    return absl::OkStatus();
  } else {
    Begin(node, request.rank(), request.path());
    timeline_.set_mark_cycles(request.mark_cycles());
  }
  SendState();
  return absl::OkStatus();
}

void TimelineRelay::Begin(size_t node, uint32_t rank, absl::string_view path) {
  const uint32_t number = timeline_.number() + 1;
  timeline_.Clear();
  timeline_.set_number(number);
  timeline_.set_on(true);
  timeline_.set_rank(rank);
  timeline_.set_node(static_cast<uint32_t>(node));
  timeline_.set_path(Cut(path, kMaxShownPathBytes));
}

void TimelineRelay::Close() {
  timeline_.set_on(false);
  timeline_.set_closing(true);
}

absl::Status TimelineRelay::Record(bool stop) {
  if (!stop) return Start();
  if (!timeline_.on()) {
    return absl::FailedPreconditionError("the job's timeline is not on");
  }
  Close();
  SendState();
  return absl::OkStatus();
}

// The process id and the numbers of epoch and timeline make a name that the
// rank's directory does not have yet.
absl::Status TimelineRelay::Start() {
  std::optional<uint32_t> first;
  size_t node = 0;
  int64_t pid = 0;
  for (size_t i = 0; i < nodes_.size(); ++i) {
    if (!nodes_.IsConnected(i)) continue;
    for (size_t k = 0; k < nodes_[i].ranks.size(); ++k) {
      const uint32_t rank = nodes_[i].ranks[k];
      if (departures_.Has(rank) || (first && *first < rank)) continue;
      first = rank;
      node = i;
      pid = nodes_[i].PidOf(k);
    }
  }
  if (!first) {
    return absl::FailedPreconditionError(
        "no rank is left that could write the timeline's file");
  }
  if (open()) {
    return absl::FailedPreconditionError(
        absl::StrCat("the job's timeline is ",
                     timeline_.on() ? "on" : "being closed", " already: rank ",
                     timeline_.rank(), " writes '", timeline_.path(), "'"));
  }
  Begin(node, *first,
        absl::StrCat("maypole-timeline-", nodes_.job(), "-", pid, "-",
                     nodes_.epoch(), "-", timeline_.number() + 1, ".json"));
  timeline_.set_by_operator(true);
  SendState();
  return absl::OkStatus();
}

void TimelineRelay::FillStatus(proto::JobStatus* status) const {
  if (timeline_.number() == 0) return;
  proto::TimelineStatus* const t = status->mutable_timeline();
  t->set_state(timeline_.on() ? "on" : timeline_.closing() ? "closing" : "off");
  t->set_path(ToUtf8(timeline_.path()));
  t->set_rank(timeline_.rank());
  t->set_host(nodes_[timeline_.node()].host);
  t->set_error(ToUtf8(timeline_.error()));
}

// Records of a timeline that is over are dropped.
absl::Status TimelineRelay::OnRecords(size_t node,
                                      const proto::TimelineRecords& records) {
  if (records.number() > timeline_.number()) {
    return InvalidArgument("records of timeline ", records.number(),
                           ", the last one is ", timeline_.number());
  }
  if (records.records().size() > kMaxRecordBytes) {
    return InvalidArgument("timeline records of ", records.records().size(),
                           " bytes; ", kMaxRecordBytes, " are allowed");
  }
  if (records.number() != timeline_.number() || !open()) {
    return absl::OkStatus();
  }
  proto::CoordinatorMessage message;
  *message.mutable_timeline_records() = records;
  message.mutable_timeline_records()->set_node(static_cast<uint32_t>(node));
  nodes_.SendUncounted(timeline_.node(), message);
  return absl::OkStatus();
}

absl::Status TimelineRelay::OnTaken(const proto::TimelineTaken& taken) {
  if (taken.node() >= nodes_.size()) {
    return InvalidArgument("took records of node ", taken.node(), " of ",
                           nodes_.size());
  }
  proto::CoordinatorMessage message;
  *message.mutable_timeline_taken() = taken;
  nodes_.SendUncounted(taken.node(), message);
  return absl::OkStatus();
}

// The writing node may close a timeline that is on: its file has failed.
absl::Status TimelineRelay::OnClosed(size_t node,
                                     const proto::TimelineClosed& closed) {
  if (node != timeline_.node() || closed.number() != timeline_.number() ||
      !open()) {
    return absl::OkStatus();
  }
  if (timeline_.on()) {
    Close();
    SendState();
  }
  timeline_.set_closing(false);
  timeline_.set_code(closed.code());
  timeline_.set_error(Cut(closed.message(), kMaxForeignText));
  SendState();
  return absl::OkStatus();
}

}  // namespace maypole::coordinator
