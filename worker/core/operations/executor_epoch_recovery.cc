// ExecutorEpoch: a coordinator that knows nothing has replaced the one before
// (docs/recovery.md).
#include "worker/core/operations/executor_epoch.h"

namespace maypole::worker {

void ExecutorEpoch::OnCoordinatorReplaced() {
  quiet_ = true;
  ids_told_ = communicator_ids_.size();
  handled_ = 0;
  confirm_round_ = 0;
  unsent_end_.reset();  // it learns from the state that the schedule has ended
  // The coordinator asks again for what is still wanted.
  waiting_stand_ins_.clear();
}

void ExecutorEpoch::FillState(proto::NodeState* state) const {
  sets_.ForEach([state](const NodeSet& set, bool removed) {
    if (set.id == 0) return;
    proto::KnownSet* known = state->add_sets();
    known->set_process_set(set.id);
    for (const int rank : set.ranks) {
      known->add_ranks(static_cast<uint32_t>(rank));
    }
    known->set_removed(removed);
  });
  state->set_sets_answered(sets_answered_);
  state->set_joins_answered(joins_answered_);
  for (const int rank : left_) state->add_left(static_cast<uint32_t>(rank));
  state->set_schedule(schedule_.number());
  state->set_schedule_length(schedule_.length());
  state->set_schedule_fan_out(schedule_.fan_out());
  state->set_follows(schedule_.active());
  state->set_last_run(runs_.last_run());
  state->set_nccl_version(nccl_version_);
  for (const proto::Communicator& c : told_communicators_) {
    *state->add_communicators() = c;
  }
  for (const auto& [number, id] : communicator_ids_) {
    *state->add_communicator_ids() = id;
  }
  for (const uint32_t number : ids_received_) state->add_ids_received(number);
}

// All ids are forgotten, so all nodes count a name's generations from the same
// one: every node has now received every decision about it, or has not followed
// a schedule that others follow. Those forget the ids when it ends: then the
// same runs have been executed everywhere.
absl::Status ExecutorEpoch::OnRecovered(const proto::Recovered& recovered) {
  sends_inputs_ = recovered.sends_inputs();
  quiet_ = false;
  presence_.Reset();
  ReportRequests();
  ReportGpus();
  results_.ForgetNumbered();
  late_told_.clear();
  blocked_told_.clear();
  if (schedule_.active()) {
    forget_ids_at_end_ = true;
    return absl::OkStatus();
  }
  forget_ids_at_end_ = false;
  if (unsent_end_) Send(*std::exchange(unsent_end_, std::nullopt));
  ForgetIds();
  ReportPending();
  recall_ms_ = now_ms_;
  RecallSlots();
  return absl::OkStatus();
}

void ExecutorEpoch::ForgetIds() {
  for (uint32_t slot = 0; slot < slots_.allotted(); ++slot) {
    SlotEntry* entry = slots_.Get(slot);
    if (entry != nullptr && entry->set->negotiated()) slots_.ForgetId(entry);
  }
}

void ExecutorEpoch::ReportPending() {
  for (uint32_t slot = 0; slot < slots_.allotted(); ++slot) {
    const SlotEntry* entry = slots_.Get(slot);
    if (entry != nullptr && IsPending(*entry)) presence_.Add(*entry);
  }
  SendPresence();
}

void ExecutorEpoch::ReportGpus() {
  for (const auto& [id, memory] : gpu_memories_) {
    if (memory.open) ReportGpu(id.local, memory);
  }
  // Those that the state did not have yet.
  if (communicator_ids_.size() == ids_told_) return;
  for (const auto& [number, id] : communicator_ids_) {
    if (ids_received_.contains(number)) continue;
    proto::ExecutorMessage message;
    *message.mutable_communicator_id() = id;
    Send(std::move(message));
  }
}

void ExecutorEpoch::ReportRequests() {
  for (const auto& [key, request] : asked_sets_) {
    proto::ExecutorMessage message;
    *message.mutable_set_request() = request;
    Send(std::move(message));
  }
  member_requests_.ForEach([this](const proto::SetRequest& request) {
    proto::ExecutorMessage message;
    *message.mutable_set_request() = request;
    Send(std::move(message));
  });
  const auto& ranks = info_.nodes[info_.node_index].ranks();
  for (int local = 0; local < ranks.size(); ++local) {
    if (!joins_.Waits(local)) continue;
    SendJoinState(ranks[local], joins_.last(local), /*settled=*/false);
    if (!settled_.contains(local)) continue;
    SendJoinState(ranks[local], joins_.last(local), /*settled=*/true);
  }
}

bool ExecutorEpoch::WaitsForCoordinator() const {
  const int locals = info_.nodes[info_.node_index].ranks_size();
  for (int local = 0; local < locals; ++local) {
    if (WaitsForSet(static_cast<uint32_t>(local)) || joins_.Waits(local)) {
      return true;
    }
  }
  if (schedule_.active()) return false;
  if (waits_for_slots()) return true;
  for (uint32_t slot = 0; slot < slots_.allotted(); ++slot) {
    const SlotEntry* entry = slots_.Get(slot);
    if (entry != nullptr && IsPending(*entry)) return true;
  }
  return false;
}

}  // namespace maypole::worker
