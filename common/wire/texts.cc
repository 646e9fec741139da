#include "common/wire/texts.h"

#include <string>

#include "common/wire/utf8.h"

namespace maypole {
namespace {

bool Make(std::string* text) {
  if (IsUtf8(*text)) return false;
  *text = ToUtf8(*text);
  return true;
}

bool MakeOfDecision(proto::Decision* d) {
  switch (d->what_case()) {
    case proto::Decision::kOperationFailed:
      return Make(d->mutable_operation_failed()->mutable_message());
    case proto::Decision::kSetReply:
      return Make(d->mutable_set_reply()->mutable_message());
    case proto::Decision::kJoinReply:
      return Make(d->mutable_join_reply()->mutable_message());
    default:
      return false;
  }
}

bool MakeOfState(proto::NodeState* state) {
  bool changed = false;
  if (state->has_end()) changed |= Make(state->mutable_end()->mutable_message());
  if (state->has_timeline()) {
    changed |= Make(state->mutable_timeline()->mutable_path());
  }
  for (proto::Decision& d : *state->mutable_decisions()) {
    changed |= MakeOfDecision(&d);
  }
  return changed;
}

}  // namespace

bool MakeTextsUtf8(proto::ExecutorMessage* m) {
  switch (m->payload_case()) {
    case proto::ExecutorMessage::kRankGone:
      return Make(m->mutable_rank_gone()->mutable_how());
    case proto::ExecutorMessage::kFailed:
      return Make(m->mutable_failed()->mutable_message());
    case proto::ExecutorMessage::kTimelineRequest:
      return Make(m->mutable_timeline_request()->mutable_path());
    case proto::ExecutorMessage::kTimelineClosed:
      return Make(m->mutable_timeline_closed()->mutable_message());
    case proto::ExecutorMessage::kScheduleEnded:
      return Make(m->mutable_schedule_ended()->mutable_text());
    case proto::ExecutorMessage::kNodeState:
      return MakeOfState(m->mutable_node_state());
    default:
      return false;
  }
}

bool MakeTextsUtf8(proto::CoordinatorMessage* m) {
  switch (m->payload_case()) {
    case proto::CoordinatorMessage::kRefused:
      return Make(m->mutable_refused()->mutable_message());
    case proto::CoordinatorMessage::kOperationFailed:
      return Make(m->mutable_operation_failed()->mutable_message());
    case proto::CoordinatorMessage::kRankLeft:
      return Make(m->mutable_rank_left()->mutable_message());
    case proto::CoordinatorMessage::kEpochEnd:
      return Make(m->mutable_epoch_end()->mutable_message());
    case proto::CoordinatorMessage::kSetReply:
      return Make(m->mutable_set_reply()->mutable_message());
    case proto::CoordinatorMessage::kJoinReply:
      return Make(m->mutable_join_reply()->mutable_message());
    case proto::CoordinatorMessage::kNotice:
      return Make(m->mutable_notice()->mutable_text());
    case proto::CoordinatorMessage::kTimeline:
      return Make(m->mutable_timeline()->mutable_path());
    case proto::CoordinatorMessage::kTimelineClosed:
      return Make(m->mutable_timeline_closed()->mutable_message());
    default:
      return false;
  }
}

}  // namespace maypole
