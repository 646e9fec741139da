// ExecutorEpoch: the frozen tier. While a schedule is executed, operations that
// are present here go to it instead of to the coordinator.
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/wire/signature_message.h"
#include "worker/core/limits.h"
#include "worker/core/operations/executor_epoch.h"

namespace maypole::worker {
namespace {

absl::Status BadSchedule(const proto::Schedule& message,
                         const std::string& what) {
  return absl::InternalError(absl::StrCat(
      "schedule ", message.number(), " does not match this node: ", what,
      "; this is a bug in Maypole, please report it"));
}

}  // namespace

absl::Status ExecutorEpoch::OnSchedule(const proto::Schedule& message) {
  if (schedule_.active() || message.number() <= schedule_.number()) {
    return BadSchedule(message, absl::StrCat("schedule ", schedule_.number(),
                                             " was the last one"));
  }
  absl::StatusOr<std::vector<ScheduledRun>> runs = ReadSchedule(message);
  if (!runs.ok()) return runs.status();
  for (const ScheduledRun& run : *runs) {
    if (!run.small) continue;
    for (const uint32_t slot : run.slots) WantCopiesOf(slot, true);
  }
  schedule_.Begin(message.number(), message.length(), message.fan_out(),
                  *std::move(runs), now_ms_);
  if (message.refuse()) {
    return LeaveSchedule(proto::SCHEDULE_COORDINATOR,
                         "the coordinator was replaced");
  }
  if (!left_.empty()) {  // while the message was on its way
    return LeaveSchedule(proto::SCHEDULE_RANK_LEFT,
                         absl::StrCat("rank ", first_left_, " has left"));
  }
  // The coordinator drops what it was told and has not answered.
  presence_.Clear();
  for (uint32_t slot = 0; slot < slots_.allotted(); ++slot) {
    const SlotEntry* entry = slots_.Get(slot);
    if (entry == nullptr || !IsPending(*entry)) continue;
    if (absl::Status s = AddToSchedule(slot, *entry); !s.ok()) return s;
  }
  return FollowSchedule();
}

absl::StatusOr<std::vector<ScheduledRun>> ExecutorEpoch::ReadSchedule(
    const proto::Schedule& message) {
  scheduled_.clear();
  std::vector<ScheduledRun> runs;
  for (const proto::ScheduledRun& m : message.runs()) {
    ScheduledRun run{m.index(), {}, {}};
    const bool ascends = runs.empty() || runs.back().index < run.index;
    if (!ascends || run.index >= message.length()) {
      return BadSchedule(message, absl::StrCat("run ", run.index));
    }
    for (const proto::ScheduledOperation& o : m.operations()) {
      uint32_t slot = 0;
      const SlotEntry* entry = slots_.Resolve(o.id(), nullptr, &slot);
      const bool is_new =
          entry != nullptr &&
          scheduled_.emplace(slot, ReadSignature(o.signature(), entry->set->id))
              .second;
      if (!is_new || !entry->set->negotiated()) {
        return BadSchedule(message, absl::StrCat("operation ", o.id()));
      }
      run.slots.push_back(slot);
      run.nodes = entry->set->nodes;
    }
    if (run.slots.empty() || run.slots.size() > kMaxRunOperations) {
      return BadSchedule(
          message, absl::StrCat(run.slots.size(), " operations in a run"));
    }
    if (message.fan_out() != 0 && run.nodes.size() != info_.nodes.size()) {
      return BadSchedule(message,
                         absl::StrCat("run ", run.index, " of a tree has ",
                                      run.nodes.size(), " nodes"));
    }
    std::vector<const Signature*> signatures;
    for (const uint32_t slot : run.slots) {
      signatures.push_back(&scheduled_.at(slot));
    }
    run.small =
        message.fan_out() == 0 && AreSmall(signatures, run.nodes.size());
    runs.push_back(std::move(run));
  }
  return runs;
}

bool ExecutorEpoch::IsPending(const SlotEntry& entry) const {
  return entry.set->negotiated() && entry.reported != entry.answered;
}

absl::Status ExecutorEpoch::AddToSchedule(uint32_t slot,
                                          const SlotEntry& entry) {
  const auto it = scheduled_.find(slot);
  const std::string what =
      absl::StrCat(std::string(Name(entry.kind)), " '", entry.name, "'");
  if (it == scheduled_.end()) {
    return LeaveSchedule(proto::SCHEDULE_OTHER_OPERATION, what);
  }
  bool same = entry.gpu_tensors.empty();
  for (const Signature& s : entry.signatures) {
    same = same && s.aside == 0 && Agree(s, it->second);
  }
  if (!same) return LeaveSchedule(proto::SCHEDULE_OPERATION_CHANGED, what);
  schedule_.Add(slot, entry.urgency != Urgency::kNone, entry.copied);
  return FollowSchedule();
}

absl::Status ExecutorEpoch::OnPeerMessage(uint32_t node,
                                          const proto::PeerMessage& message) {
  if (node >= info_.nodes.size() || node == info_.node_index) {
    return absl::InternalError(absl::StrCat("a message of node ", node));
  }
  if (message.has_inputs_of()) return OnInputs(node, message);
  schedule_.OnPeer(node, message);
  return FollowSchedule();
}

absl::Status ExecutorEpoch::LeaveSchedule(proto::ScheduleEnd why,
                                          const std::string& text) {
  schedule_.Refuse(
      why,
      absl::StrCat(text, " (node ", info_.nodes[info_.node_index].node(), ")"));
  return FollowSchedule();
}

absl::Status ExecutorEpoch::FollowSchedule() {
  for (Schedule::Message& m : schedule_.TakeMessages()) {
    SendToPeers send{std::move(m.nodes), std::move(m.message)};
    for (const uint32_t slot : m.inputs_of) {
      send.operations.push_back(SmallOperationOf(slot));
    }
    actions_->push_back(std::move(send));
  }
  for (Schedule::Execution& run : schedule_.TakeRuns()) {
    scheduled_operations_ += run.slots.size();
    const absl::Status s = run.inputs.empty() ? ExecuteScheduled(run.slots)
                                              : Finish(std::move(run));
    if (!s.ok()) return s;
  }
  IssueRuns();
  if (schedule_.over()) EndSchedule();
  return absl::OkStatus();
}

absl::Status ExecutorEpoch::ExecuteScheduled(
    const std::vector<uint32_t>& slots) {
  proto::Run run;
  for (const uint32_t slot : slots) {
    const SlotEntry& entry = *slots_.Get(slot);
    proto::RunOperation* operation = run.add_operations();
    operation->set_id(entry.id);
    operation->set_generation(entry.CountOf(entry.reported));
  }
  return runs_.AddScheduled(run, &slots_);
}

void ExecutorEpoch::EndSchedule() {
  schedule_.End();
  proto::ExecutorMessage message;
  proto::ScheduleEnded* ended = message.mutable_schedule_ended();
  ended->set_number(schedule_.number());
  ended->set_runs(schedule_.executed());
  ended->set_operations(std::exchange(scheduled_operations_, 0));
  ended->set_why(schedule_.why());
  ended->set_text(schedule_.text());
  if (quiet_) {  // what follows is done when it may speak again
    unsent_end_ = std::move(message);
    return;
  }
  Send(std::move(message));
  if (std::exchange(forget_ids_at_end_, false)) ForgetIds();
  ReportPending();
}

}  // namespace maypole::worker
