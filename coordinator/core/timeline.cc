#include "coordinator/core/timeline.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "common/limits.h"
#include "coordinator/core/limits.h"
#include "coordinator/core/text.h"

namespace maypole::coordinator {

bool TimelineRelay::Handles(const proto::ExecutorMessage& m) {
  switch (m.payload_case()) {
    case proto::ExecutorMessage::kTimelineRequest:
    case proto::ExecutorMessage::kTimelineRecords:
    case proto::ExecutorMessage::kTimelineTaken:
    case proto::ExecutorMessage::kTimelineClosed:
    case proto::ExecutorMessage::kClockQuery:
      return true;
    default:
      return false;
  }
}

absl::Status TimelineRelay::Handle(Time now, size_t node,
                                   const proto::ExecutorMessage& m,
                                   Messages* out) {
  switch (m.payload_case()) {
    case proto::ExecutorMessage::kTimelineRequest:
      OnRequest(node, m.timeline_request(), out);
      return absl::OkStatus();
    case proto::ExecutorMessage::kTimelineRecords:
      return OnRecords(node, m.timeline_records(), out);
    case proto::ExecutorMessage::kTimelineTaken:
      return OnTaken(m.timeline_taken(), out);
    case proto::ExecutorMessage::kTimelineClosed:
      OnClosed(node, m.timeline_closed(), out);
      return absl::OkStatus();
    default: {
      proto::CoordinatorMessage reply;
      reply.mutable_clock_reply()->set_epoch(epoch_);
      reply.mutable_clock_reply()->set_sent_ns(m.clock_query().sent_ns());
      reply.mutable_clock_reply()->set_coordinator_ns(now.count());
      out->emplace_back(node, std::move(reply));
      return absl::OkStatus();
    }
  }
}

void TimelineRelay::Restore(
    const std::vector<const proto::NodeState*>& states) {
  // It is first on, then closing, then neither.
  const auto phase = [](const proto::Timeline& t) {
    return t.on() ? 0 : t.closing() ? 1 : 2;
  };
  for (const proto::NodeState* state : states) {
    if (state == nullptr || !state->has_timeline()) continue;
    const proto::Timeline& t = state->timeline();
    if (t.epoch() != epoch_ || t.node() >= nodes_) continue;
    if (t.number() > timeline_.number() ||
        (t.number() == timeline_.number() && phase(t) > phase(timeline_))) {
      timeline_ = t;
    }
  }
}

void TimelineRelay::TellAll(Messages* out) const {
  if (timeline_.number() > 0) ToAll(State(), out);
}

proto::CoordinatorMessage TimelineRelay::State() const {
  proto::CoordinatorMessage message;
  *message.mutable_timeline() = timeline_;
  return message;
}

void TimelineRelay::ToAll(const proto::CoordinatorMessage& message,
                          Messages* out) const {
  for (size_t i = 0; i < nodes_; ++i) out->emplace_back(i, message);
}

void TimelineRelay::OnRequest(size_t node,
                              const proto::TimelineRequest& request,
                              Messages* out) {
  const bool current = request.number() == timeline_.number();
  if (request.stop() && timeline_.on() && current) {
    Close();
    return ToAll(State(), out);
  }
  if (request.stop() || timeline_.on() || timeline_.closing()) {
    out->emplace_back(node, State());
    return;
  }
  Begin(node, request.rank(), request.path());
  timeline_.set_mark_cycles(request.mark_cycles());
  ToAll(State(), out);
}

void TimelineRelay::Begin(size_t node, uint32_t rank, absl::string_view path) {
  const uint32_t number = timeline_.number() + 1;
  timeline_.Clear();
  timeline_.set_epoch(epoch_);
  timeline_.set_number(number);
  timeline_.set_on(true);
  timeline_.set_rank(rank);
  timeline_.set_node(static_cast<uint32_t>(node));
  timeline_.set_path(Cut(path, kMaxShownPathBytes));
  error_.clear();
}

void TimelineRelay::Close() {
  timeline_.set_on(false);
  timeline_.set_closing(true);
}

absl::Status TimelineRelay::Start(size_t node, uint32_t rank,
                                  absl::string_view name, Messages* out) {
  if (timeline_.on() || timeline_.closing()) {
    return absl::FailedPreconditionError(
        absl::StrCat("the job's timeline is ",
                     timeline_.on() ? "on" : "being closed", " already: rank ",
                     timeline_.rank(), " writes '", timeline_.path(), "'"));
  }
  Begin(node, rank, name);
  timeline_.set_by_operator(true);
  ToAll(State(), out);
  return absl::OkStatus();
}

absl::Status TimelineRelay::Stop(Messages* out) {
  if (!timeline_.on()) {
    return absl::FailedPreconditionError("the job's timeline is not on");
  }
  Close();
  ToAll(State(), out);
  return absl::OkStatus();
}

// Records of a timeline that is over are not taken by anybody.
absl::Status TimelineRelay::OnRecords(size_t node,
                                      const proto::TimelineRecords& records,
                                      Messages* out) {
  if (records.number() > timeline_.number()) {
    return absl::InvalidArgumentError(
        absl::StrCat("records of timeline ", records.number(),
                     ", the last one is ", timeline_.number()));
  }
  if (records.records().size() > kMaxRecordBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("timeline records of ", records.records().size(),
                     " bytes; ", kMaxRecordBytes, " are allowed"));
  }
  if (records.number() != timeline_.number() ||
      !(timeline_.on() || timeline_.closing())) {
    return absl::OkStatus();
  }
  proto::CoordinatorMessage message;
  *message.mutable_timeline_records() = records;
  message.mutable_timeline_records()->set_node(static_cast<uint32_t>(node));
  out->emplace_back(timeline_.node(), std::move(message));
  return absl::OkStatus();
}

absl::Status TimelineRelay::OnTaken(const proto::TimelineTaken& taken,
                                    Messages* out) const {
  if (taken.node() >= nodes_) {
    return absl::InvalidArgumentError(
        absl::StrCat("took records of node ", taken.node(), " of ", nodes_));
  }
  proto::CoordinatorMessage message;
  *message.mutable_timeline_taken() = taken;
  out->emplace_back(taken.node(), std::move(message));
  return absl::OkStatus();
}

// The writing node may close a timeline that is on: its file has failed.
void TimelineRelay::OnClosed(size_t node, const proto::TimelineClosed& closed,
                             Messages* out) {
  if (node != timeline_.node() || closed.number() != timeline_.number() ||
      !(timeline_.on() || timeline_.closing())) {
    return;
  }
  if (timeline_.on()) {
    Close();
    ToAll(State(), out);
  }
  timeline_.set_closing(false);
  error_ = Cut(closed.message(), kMaxForeignText);
  proto::CoordinatorMessage message;
  *message.mutable_timeline_closed() = closed;
  message.mutable_timeline_closed()->set_message(error_);
  ToAll(message, out);
}

}  // namespace maypole::coordinator
