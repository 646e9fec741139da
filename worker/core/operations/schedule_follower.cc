#include "worker/core/operations/schedule_follower.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/wire/signature_message.h"
#include "worker/core/limits.h"

namespace maypole::worker {
namespace {

absl::Status BadSchedule(const proto::Schedule& message,
                         const std::string& what) {
  return absl::InternalError(absl::StrCat(
      "schedule ", message.number(), " does not match this node: ", what,
      "; this is a bug in Maypole, please report it"));
}

}  // namespace

absl::Status ScheduleFollower::OnSchedule(const proto::Schedule& message) {
  if (schedule_.active() || message.number() <= schedule_.number()) {
    return BadSchedule(message, absl::StrCat("schedule ", schedule_.number(),
                                             " was the last one"));
  }
  absl::StatusOr<std::vector<ScheduledRun>> runs = Read(message);
  if (!runs.ok()) return runs.status();
  for (const ScheduledRun& run : *runs) {
    if (!run.small) continue;
    for (const uint32_t slot : run.slots) small_runs_.WantCopiesOf(slot, true);
  }
  schedule_.Begin(message.number(), message.length(), message.fan_out(),
                  *std::move(runs), now_ms_);
  if (message.refuse()) {
    return Leave(proto::SCHEDULE_COORDINATOR, "the coordinator was replaced");
  }
  if (!left_.empty()) {  // while the message was on its way
    return Leave(proto::SCHEDULE_RANK_LEFT,
                 absl::StrCat("rank ", left_.first(), " has left"));
  }
  // The coordinator drops the reports that it has not answered.
  presence_.Clear();
  absl::Status status;
  slots_.ForEach([&](uint32_t slot, const SlotEntry& entry) {
    if (status.ok() && entry.IsPending()) status = Add(slot, entry);
  });
  return status.ok() ? Follow() : status;
}

absl::StatusOr<std::vector<ScheduledRun>> ScheduleFollower::Read(
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
    run.small = message.fan_out() == 0 &&
                SmallRuns::AreSmall(signatures, run.nodes.size());
    runs.push_back(std::move(run));
  }
  return runs;
}

absl::Status ScheduleFollower::Add(uint32_t slot, const SlotEntry& entry) {
  const auto it = scheduled_.find(slot);
  if (it == scheduled_.end()) {
    return Leave(proto::SCHEDULE_OTHER_OPERATION, entry.Text());
  }
  bool same = entry.gpu_tensors.empty();
  for (const Signature& s : entry.signatures) {
    same = same && s.aside == 0 && Agree(s, it->second);
  }
  if (!same) return Leave(proto::SCHEDULE_OPERATION_CHANGED, entry.Text());
  schedule_.Add(slot, entry.urgency != Urgency::kNone, entry.copied);
  return Follow();
}

absl::Status ScheduleFollower::OnPeer(uint32_t node,
                                      const proto::PeerMessage& message) {
  schedule_.OnPeer(node, message);
  return Follow();
}

absl::Status ScheduleFollower::OnTime(int64_t now_ms) {
  now_ms_ = now_ms;
  const std::optional<uint32_t> late = schedule_.OnTime(now_ms);
  if (!late) return absl::OkStatus();
  return Leave(proto::SCHEDULE_LATE,
               absl::StrCat("a rank has waited ", kScheduleLateMs, " ms for ",
                            slots_.Get(*late)->Text()));
}

absl::Status ScheduleFollower::Leave(proto::ScheduleEnd why,
                                     const std::string& text) {
  schedule_.Refuse(why,
                   absl::StrCat(text, " (node ", info_.own_node().node(), ")"));
  return Follow();
}

absl::Status ScheduleFollower::Follow() {
  for (Schedule::Message& m : schedule_.TakeMessages()) {
    SendToPeers send{std::move(m.nodes), std::move(m.message)};
    for (const uint32_t slot : m.inputs_of) {
      send.operations.push_back(small_runs_.OperationOf(slot));
    }
    output_.Add(std::move(send));
  }
  for (Schedule::Execution& run : schedule_.TakeRuns()) {
    operations_ += run.slots.size();
    const absl::Status s = run.inputs.empty()
                               ? Execute(run.slots)
                               : small_runs_.Finish(std::move(run));
    if (!s.ok()) return s;
  }
  runs_.Issue(&output_);
  if (schedule_.over()) End();
  return absl::OkStatus();
}

absl::Status ScheduleFollower::Execute(const std::vector<uint32_t>& slots) {
  proto::Run run;
  for (const uint32_t slot : slots) {
    const SlotEntry& entry = *slots_.Get(slot);
    proto::RunOperation* operation = run.add_operations();
    operation->set_id(entry.id);
    operation->set_generation(entry.CountOf(entry.reported));
  }
  return runs_.AddScheduled(run, &slots_);
}

void ScheduleFollower::End() {
  schedule_.End();
  proto::ExecutorMessage message;
  proto::ScheduleEnded* ended = message.mutable_schedule_ended();
  ended->set_number(schedule_.number());
  ended->set_runs(schedule_.executed());
  ended->set_operations(std::exchange(operations_, 0));
  ended->set_why(schedule_.why());
  ended->set_text(schedule_.text());
  if (output_.quiet()) {  // OnRecovered() does the rest
    unsent_end_ = std::move(message);
    return;
  }
  output_.Send(std::move(message));
  if (std::exchange(forget_ids_at_end_, false)) slots_.ForgetIds();
  ReportPending();
}

void ScheduleFollower::ReportPending() {
  presence_.AddPending(slots_);
  presence_.Send(&output_);
}

void ScheduleFollower::FillState(proto::NodeState* state) const {
  state->set_schedule(schedule_.number());
  state->set_schedule_length(schedule_.length());
  state->set_schedule_fan_out(schedule_.fan_out());
  state->set_follows(schedule_.active());
}

// Forgets all ids, so that all nodes count a name's generations from the same
// one. A node without an active schedule has now received every decision about
// the name. Nodes that follow a schedule forget the ids when it ends: by then
// all nodes have executed the same runs.
bool ScheduleFollower::OnRecovered() {
  forget_ids_at_end_ = schedule_.active();
  if (schedule_.active()) return false;
  if (unsent_end_) output_.Send(*std::exchange(unsent_end_, std::nullopt));
  slots_.ForgetIds();
  ReportPending();
  return true;
}

}  // namespace maypole::worker
