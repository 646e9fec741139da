// CoordinatorEpoch: the frozen tier. While the nodes execute a schedule, they
// report nothing; what they reported before and was not issued is dropped.
#include <algorithm>
#include <bit>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/limits.h"
#include "common/log_value.h"
#include "common/wire/signature_message.h"
#include "coordinator/core/coordinator_epoch.h"
#include "coordinator/core/limits.h"
#include "coordinator/core/text.h"

namespace maypole::coordinator {
namespace {

// A job may begin and leave schedules many times.
bool IsLogged(uint64_t number) {
  return number <= 8 || std::has_single_bit(number);
}

}  // namespace

bool CoordinatorEpoch::MayBeginSchedule() const {
  // Results of scheduled operations cannot be compared by the coordinator.
  if (members_.size() < 2 || frozen_nodes_ == 0 ||
      checksums_ != ChecksumMode::kOff || !left_.empty() || joins_.AnyAside() ||
      frozen() || buckets_.Deadline()) {
    return false;
  }
  for (const NegotiatedOperation* op : table_.Pending()) {
    if (!steps_.Has(op->id)) return false;
  }
  return true;
}

void CoordinatorEpoch::BeginSchedule(JobOutput* out) {
  if (!MayBeginSchedule()) return;
  const auto runs =
      steps_.Runs([this](uint32_t id) { return buckets_.PlaceInBucket(id); });
  for (const auto& run : runs) {
    if (table_.Find(run.front().id)->set->removed) return steps_.Clear();
  }
  const bool is_tree = members_.size() > frozen_nodes_;
  if (is_tree && !FitsTree(runs)) return steps_.Clear();
  ++schedule_;
  schedule_fan_out_ = is_tree ? fan_out_ : 0;
  schedule_runs_ = runs.size();
  for (const auto& run : runs) {
    for (const ReadyOperation& o : run) {
      table_.Find(o.id)->scheduled = true;
      scheduled_.push_back(o.id);
    }
  }
  for (NegotiatedOperation* op : table_.Pending()) table_.Drop(op);
  follows_ = connected_;
  schedule_ended_.Clear();
  Outgoing of_all;  // in a tree: the same runs for all nodes
  for (size_t i = 0; i < members_.size(); ++i) {
    if (i == 0 || !is_tree) {
      proto::CoordinatorMessage message;
      *message.mutable_schedule() = ScheduleFor(i, runs);
      of_all = message;
    }
    ToNode(i, of_all, out);
  }
  out->facts.emplace_back(ScheduleBegun{});
  if (!IsLogged(schedule_)) return;
  out->Info(absl::StrCat(LogPrefix("schedule_begun"), " schedule=", schedule_,
                         " runs=", runs.size(),
                         " operations=", scheduled_.size()));
}

// In a tree, nobody learns which nodes are ready, only whether all are.
bool CoordinatorEpoch::FitsTree(
    const std::vector<std::vector<ReadyOperation>>& runs) {
  const auto knows_it = [](const NodeMember& m) {
    return m.version >= kScheduleTree;
  };
  const auto has_all_nodes = [this](const std::vector<ReadyOperation>& run) {
    const auto& by_node = table_.Find(run.front().id)->set->by_node;
    return std::none_of(by_node.begin(), by_node.end(),
                        [](const auto& ranks) { return ranks.empty(); });
  };
  return std::all_of(members_.begin(), members_.end(), knows_it) &&
         std::all_of(runs.begin(), runs.end(), has_all_nodes);
}

proto::Schedule CoordinatorEpoch::ScheduleFor(
    size_t node, const std::vector<std::vector<ReadyOperation>>& runs) {
  proto::Schedule schedule;
  schedule.set_epoch(number_);
  schedule.set_number(schedule_);
  schedule.set_length(static_cast<uint32_t>(runs.size()));
  schedule.set_fan_out(schedule_fan_out_);
  for (uint32_t index = 0; index < runs.size(); ++index) {
    const RankSet& set = *table_.Find(runs[index].front().id)->set;
    if (set.by_node[node].empty()) continue;
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

absl::Status CoordinatorEpoch::OnScheduleEnded(
    size_t node, const proto::ScheduleEnded& message, JobOutput* out) {
  if (!follows_[node] || message.number() != schedule_) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the end of schedule ", message.number(), ", which is not followed"));
  }
  if (!proto::ScheduleEnd_IsValid(message.why()) ||
      message.runs() > kMaxNumber || message.operations() > kMaxNumber) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the end of schedule ", message.number(), " after ", message.runs(),
        " runs of ", message.operations(), " operations, for reason ",
        static_cast<int>(message.why())));
  }
  follows_[node] = false;
  const uint64_t runs = std::max(schedule_ended_.runs(), message.runs());
  const uint64_t operations =
      std::max(schedule_ended_.operations(), message.operations());
  // The first one is nearest to the cause.
  if (schedule_ended_.text().empty()) {
    schedule_ended_ = message;
    schedule_ended_.set_text(Cut(message.text(), kMaxForeignText));
  }
  schedule_ended_.set_runs(runs);
  schedule_ended_.set_operations(operations);
  if (frozen()) return absl::OkStatus();
  for (const uint32_t id : std::exchange(scheduled_, {})) {
    table_.Find(id)->scheduled = false;
  }
  steps_.OnScheduleOver(runs / schedule_runs_);
  runs_ += runs;
  operations_ += operations;
  out->facts.emplace_back(
      ScheduleOver{schedule_ended_.why(), runs, operations});
  if (!IsLogged(schedule_)) return absl::OkStatus();
  out->Info(absl::StrCat(LogPrefix("schedule_over"), " schedule=", schedule_,
                         " runs=", runs,
                         " reason=", LogValue(schedule_ended_.text())));
  return absl::OkStatus();
}

}  // namespace maypole::coordinator
