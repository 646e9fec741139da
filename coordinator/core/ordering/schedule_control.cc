#include "coordinator/core/ordering/schedule_control.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/limits.h"
#include "common/wire/signature_message.h"
#include "common/wire/utf8.h"
#include "coordinator/core/limits.h"
#include "coordinator/core/text.h"

namespace maypole::coordinator {

// The results of scheduled operations cannot be compared by the coordinator.
ScheduleControl::ScheduleControl(EpochNodes* nodes,
                                 const Departures* departures,
                                 const Joins* joins, OperationTable* table,
                                 Buckets* buckets, Steps* steps,
                                 const Config& config)
    : nodes_(*nodes),
      departures_(*departures),
      joins_(*joins),
      table_(*table),
      buckets_(*buckets),
      steps_(*steps),
      most_nodes_(config.checksums == ChecksumMode::kOff ? config.frozen_nodes
                                                         : 0),
      tree_fan_out_(config.fan_out),
      follows_(nodes->size(), false) {}

bool ScheduleControl::frozen() const {
  return std::ranges::find(follows_, true) != follows_.end();
}

bool ScheduleControl::MayBegin() const {
  if (!steps_.repeats() || nodes_.size() < 2 || most_nodes_ == 0 ||
      !departures_.ranks().empty() || joins_.AnyAside() || frozen() ||
      buckets_.Deadline()) {
    return false;
  }
  const auto pending = table_.Pending();
  return std::ranges::all_of(pending, [this](const NegotiatedOperation* op) {
    return steps_.Has(op->id);
  });
}

void ScheduleControl::BeginIfRepeated() {
  if (!MayBegin()) return;
  const Runs runs =
      steps_.Runs([this](uint32_t id) { return buckets_.PlaceInBucket(id); });
  for (const auto& run : runs) {
    if (SetOf(run).removed) return steps_.Clear();
  }
  const bool is_tree = nodes_.size() > most_nodes_;
  if (is_tree && !FitsTree(runs)) return steps_.Clear();
  ++number_;
  fan_out_ = is_tree ? tree_fan_out_ : 0;
  length_ = runs.size();
  for (const auto& run : runs) {
    for (const ReadyOperation& o : run) {
      table_.Find(o.id)->scheduled = true;
      scheduled_.push_back(o.id);
    }
  }
  for (NegotiatedOperation* op : table_.Pending()) table_.Drop(op);
  ended_.Clear();
  Outgoing of_all;  // in a tree: the same runs for all nodes
  for (size_t i = 0; i < nodes_.size(); ++i) {
    follows_[i] = nodes_.IsConnected(i);
    if (i == 0 || !is_tree) {
      proto::CoordinatorMessage message;
      *message.mutable_schedule() = ScheduleFor(i, runs);
      of_all = message;
    }
    nodes_.Send(i, of_all);
  }
  nodes_.Report(ScheduleBegun{});
  LogIfRare("schedule_begun",
            absl::StrCat(" runs=", length_, " operations=", scheduled_.size()));
}

// In a tree, nodes learn only whether all are ready, not which ones.
bool ScheduleControl::FitsTree(const Runs& runs) const {
  const auto has_all_nodes = [this](const std::vector<ReadyOperation>& run) {
    return SetOf(run).nodes.size() == nodes_.size();
  };
  return std::ranges::all_of(runs, has_all_nodes);
}

proto::Schedule ScheduleControl::Header() const {
  proto::Schedule schedule;
  schedule.set_number(number_);
  schedule.set_length(static_cast<uint32_t>(length_));
  schedule.set_fan_out(fan_out_);
  return schedule;
}

proto::Schedule ScheduleControl::ScheduleFor(size_t node,
                                             const Runs& runs) const {
  proto::Schedule schedule = Header();
  for (uint32_t index = 0; index < runs.size(); ++index) {
    if (SetOf(runs[index]).by_node[node].empty()) continue;
    proto::ScheduledRun* run = schedule.add_runs();
    run->set_index(index);
    for (const ReadyOperation& o : runs[index]) {
      proto::ScheduledOperation* operation = run->add_operations();
      operation->set_id(o.id);
      WriteSignature(o.signature, operation->mutable_signature());
    }
  }
  return schedule;
}

absl::Status ScheduleControl::OnEnded(size_t node,
                                      const proto::ScheduleEnded& message) {
  if (!follows_[node] || message.number() != number_) {
    return InvalidArgument("the end of schedule ", message.number(),
                           ", which is not followed");
  }
  if (!proto::ScheduleEnd_IsValid(message.why()) ||
      message.runs() > kMaxNumber || message.operations() > kMaxNumber) {
    return InvalidArgument("the end of schedule ", message.number(), " after ",
                           message.runs(), " runs of ", message.operations(),
                           " operations, for reason ",
                           static_cast<int>(message.why()));
  }
  follows_[node] = false;
  const uint64_t runs = std::max(ended_.runs(), message.runs());
  const uint64_t operations =
      std::max(ended_.operations(), message.operations());
  // The first one is nearest to the cause.
  if (ended_.text().empty()) {
    ended_ = message;
    ended_.set_text(Cut(message.text(), kMaxForeignText));
  }
  ended_.set_runs(runs);
  ended_.set_operations(operations);
  if (frozen()) return absl::OkStatus();
  for (const uint32_t id : std::exchange(scheduled_, {})) {
    table_.Find(id)->scheduled = false;
  }
  steps_.OnScheduleOver(runs / length_);
  runs_ += runs;
  operations_ += operations;
  nodes_.Report(ScheduleOver{ended_.why(), runs, operations});
  LogIfRare("schedule_over",
            absl::StrCat(" runs=", runs, " reason=", LogValue(ended_.text())));
  return absl::OkStatus();
}

// A job may begin and leave schedules many times.
void ScheduleControl::LogIfRare(absl::string_view event,
                                const std::string& fields) {
  if (number_ > 8 && !std::has_single_bit(number_)) return;
  nodes_.Info(event, " schedule=", number_, fields);
}

// A node that has not received the schedule takes no part in it, and the nodes
// that have received it must learn that from the node itself.
void ScheduleControl::Restore(
    const std::vector<const proto::NodeState*>& states) {
  for (const proto::NodeState* state : states) {
    if (state == nullptr || state->schedule() <= number_) continue;
    number_ = state->schedule();
    length_ = state->schedule_length();
    fan_out_ = state->schedule_fan_out();
  }
  const auto follows = [this](const proto::NodeState* state) {
    return state != nullptr && state->follows() && state->schedule() == number_;
  };
  if (std::ranges::none_of(states, follows)) return;
  for (size_t i = 0; i < states.size(); ++i) {
    follows_[i] = follows(states[i]) ||
                  (states[i] != nullptr && states[i]->schedule() < number_);
  }
}

void ScheduleControl::RefuseIfUnknown(size_t node,
                                      const proto::NodeState& state) {
  if (!follows_[node] || state.schedule() >= number_) return;
  proto::CoordinatorMessage message;
  *message.mutable_schedule() = Header();
  message.mutable_schedule()->set_refuse(true);
  nodes_.Send(node, message);
}

void ScheduleControl::FillStatus(proto::JobStatus* status) const {
  status->set_runs(status->runs() + runs_);
  status->set_operations(status->operations() + operations_);
  if (nodes_.size() == 1) return;
  status->set_tier(frozen() ? "frozen" : "negotiated");
  status->set_schedules(number_);
  if (!frozen()) status->set_schedule_ended(ToUtf8(ended_.text()));
}

}  // namespace maypole::coordinator
