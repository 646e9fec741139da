#include "worker/core/executor_epoch.h"

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"

namespace maypole::worker {

ExecutorEpoch::ExecutorEpoch(EpochInfo info, const ExecutorCoreOptions& options,
                             CoordinatorLink* link,
                             std::vector<Action>* actions)
    : info_(std::move(info)),
      output_(info_.epoch, link, actions),
      left_(info_),
      sets_(info_.NodeOfRank(), info_.LocalRanks()),
      slots_(options.slots),
      runs_(static_cast<uint32_t>(info_.size), info_.node_index,
            options.records),
      small_runs_(info_.node_index, info_.sends_inputs, &slots_, &runs_,
                  &output_),
      schedule_(info_, left_, &slots_, &presence_, &runs_, &small_runs_,
                &output_),
      names_(info_, schedule_.schedule(), &sets_, &slots_, &output_),
      requests_(info_, &sets_, &output_),
      memories_(nccl_, &output_),
      communicators_(info_, nccl_, memories_, sets_, &output_),
      gpu_runs_(info_, nccl_, left_, memories_, &communicators_, &slots_,
                &runs_, &output_),
      results_(info_.checksums != 0, &slots_, &output_),
      watch_(info_, options.frozen_timeout_ms, slots_, *this, &output_),
      relays_(info_, &output_) {}

// --- Operations --------------------------------------------------------------

absl::Status ExecutorEpoch::OnReadySlot(const ReadySlot& ready) {
  SlotEntry* entry = slots_.Get(ready.slot);
  if (entry == nullptr) return absl::OkStatus();
  // Operations within the node need no report.
  if (!entry->set->negotiated()) return gpu_runs_.OnReady(ready, entry);
  // A ready bit may have been set again for an old generation.
  if (ready.generation < entry->reported) {
    return absl::OkStatus();
  }
  if (ready.generation == entry->reported) {
    OnUrgent(ready, entry);
    return absl::OkStatus();
  }
  const std::string node = info_.OwnNodeText();
  if (absl::Status s = CheckReadySlot(ready, *entry, node); !s.ok()) return s;
  // Ranks submit a name again only after the last operation of that name has
  // ended, unless it fails because a rank has left. The coordinator does not
  // accept two at once.
  const bool pending = entry->reported > entry->answered || entry->on_gpu != 0;
  if (pending && left_.MemberOf(*entry->set) < 0) {
    return SubmittedTooEarly(ready, *entry, node);
  }
  entry->reported = ready.generation;
  entry->retiring = false;
  entry->signatures = ready.signatures;
  entry->splits = ready.splits;
  if (absl::Status s = gpu_runs_.TakeTensors(ready, entry); !s.ok()) return s;
  entry->urgency = ready.urgency;
  entry->copied = ready.copied;
  entry->inputs_sent = false;
  if (schedule_.active()) return schedule_.Add(ready.slot, *entry);
  std::optional<SendToPeers> inputs;
  // After a rank has left, its sets run nothing, and other sets seldom matter.
  if (left_.empty()) inputs = small_runs_.InputsOf(ready.slot, *entry);
  entry->inputs_sent = inputs.has_value();
  presence_.Add(*entry);
  // Sent first, because the path through the coordinator is longer.
  presence_.Send(&output_);
  if (inputs) output_.Add(*std::move(inputs));
  return absl::OkStatus();
}

void ExecutorEpoch::OnUrgent(const ReadySlot& ready, SlotEntry* entry) {
  const bool told = entry->urgency != Urgency::kNone;
  if (told || ready.urgency == Urgency::kNone ||
      entry->answered == entry->reported) {
    return;
  }
  entry->urgency = ready.urgency;
  if (schedule_.active()) return schedule_.AddUrgent(ready.slot);
  presence_.AddUrgent(*entry);
  presence_.Send(&output_);
}

void ExecutorEpoch::OnPresenceAcknowledged() {
  presence_.OnAcknowledged();
  presence_.Send(&output_);
}

absl::Status ExecutorEpoch::OnExecute(const proto::Execute& execute) {
  for (const proto::Run& run : execute.runs()) {
    absl::Status s = run.inputs_sent()         ? small_runs_.Begin(run)
                     : run.communicator() == 0 ? runs_.Add(run, &slots_)
                                               : gpu_runs_.Run(run);
    if (s.ok()) s = results_.Expect(run);
    if (!s.ok()) return s;
    small_runs_.LearnFrom(run);
  }
  runs_.Issue(&output_);
  return small_runs_.FinishReady();
}

void ExecutorEpoch::OnRunFree(uint32_t record) {
  runs_.Free(record);
  runs_.Issue(&output_);
}

absl::Status ExecutorEpoch::OnOperationFailed(
    const proto::OperationFailed& failed) {
  uint32_t slot = 0;
  const absl::StatusOr<SlotEntry*> entry = names_.ResolveOrAllot(
      failed.id(), failed.has_identity() ? &failed.identity() : nullptr, &slot);
  // If the slot table is full, ranks that use the name get that error instead.
  if (absl::IsResourceExhausted(entry.status())) return absl::OkStatus();
  if (!entry.ok()) return entry.status();
  if (*entry == nullptr) return absl::OkStatus();
  const uint32_t generation = (*entry)->GenerationOf(failed.generation());
  // A coordinator that has replaced another sends it to all nodes of the set.
  if (output_.quiet() && generation > (*entry)->reported) {
    return absl::OkStatus();
  }
  (*entry)->answered = generation;
  // The coordinator has no id for it and will count generations from here.
  if (failed.id() == 0) slots_.ForgetId(*entry);
  const bool known = failed.code() > 0 && failed.code() <= 16;
  output_.Add(FailSlot{
      slot, generation,
      known ? static_cast<Code>(failed.code()) : Code::kFailedPrecondition,
      failed.message()});
  return absl::OkStatus();
}

absl::Status ExecutorEpoch::OnNamesRetired(const proto::NamesRetired& retired) {
  for (const uint32_t id : retired.ids()) {
    SlotEntry* const entry = slots_.FindId(id);
    if (entry == nullptr) continue;
    slots_.ForgetId(entry);
    // A report of the name has crossed this message, so report it again.
    // At the end of a schedule, all that is pending is reported.
    if (entry->reported != entry->answered && !schedule_.active()) {
      presence_.Add(*entry);
    }
  }
  presence_.Send(&output_);
  names_.RecallNow();
  return absl::OkStatus();
}

absl::Status ExecutorEpoch::OnPeerMessage(uint32_t node,
                                          const proto::PeerMessage& message) {
  if (node >= info_.nodes.size() || node == info_.node_index) {
    return absl::InternalError(absl::StrCat("a message of node ", node));
  }
  return message.has_inputs_of() ? small_runs_.OnInputs(node, message)
                                 : schedule_.OnPeer(node, message);
}

absl::Status ExecutorEpoch::OnTime(int64_t now_ms) {
  results_.OnTime(now_ms);
  if (absl::Status s = schedule_.OnTime(now_ms); !s.ok()) return s;
  return names_.OnTime(now_ms);
}

// --- Ranks -------------------------------------------------------------------

absl::Status ExecutorEpoch::OnSetRequest(const LocalMember& member,
                                         const session::SetRequest& request) {
  if (absl::Status s = requests_.OnSetRequest(member, request); !s.ok()) {
    return s;
  }
  return schedule_.Leave(proto::SCHEDULE_REQUEST,
                         "a request for a process set");
}

absl::Status ExecutorEpoch::OnJoinRequest(const LocalMember& member,
                                          const session::JoinRequest& request) {
  if (absl::Status s = requests_.OnJoinRequest(member, request); !s.ok()) {
    return s;
  }
  return schedule_.Leave(proto::SCHEDULE_REQUEST,
                         absl::StrCat("rank ", member.rank, " has joined"));
}

absl::Status ExecutorEpoch::OnRankLeft(int rank, int local_rank,
                                       const std::string& text) {
  if (!left_.Add(rank)) return absl::OkStatus();
  if (local_rank >= 0) {
    requests_.Forget(rank, local_rank);
    names_.Forget(static_cast<uint32_t>(local_rank));
    memories_.Forget(static_cast<uint32_t>(local_rank));
  }
  output_.Add(MarkLeft{rank, local_rank, text});
  return schedule_.Leave(proto::SCHEDULE_RANK_LEFT,
                         absl::StrCat("rank ", rank, " has left"));
}

bool ExecutorEpoch::WaitsInJoin(uint32_t local) const {
  // A joined rank is about to submit the operation that it stands in for.
  return !names_.WaitsForStandIn() &&
         requests_.WaitsInJoin(static_cast<int>(local));
}

bool ExecutorEpoch::WaitsForSet(uint32_t local) const {
  return requests_.WaitsForSet(static_cast<int>(local));
}

bool ExecutorEpoch::WaitsForOthers(uint32_t slot, uint32_t generation) const {
  const SlotEntry* entry = slots_.Get(slot);
  return entry != nullptr && entry->set->negotiated() &&
         entry->reported == generation && entry->answered < generation &&
         presence_.sent() && !schedule_.active();
}

// --- A coordinator that replaces another -------------------------------------

void ExecutorEpoch::OnCoordinatorReplaced() {
  communicators_.OnCoordinatorReplaced();
  watch_.OnCoordinatorReplaced();
  schedule_.OnCoordinatorReplaced();
  names_.OnCoordinatorReplaced();
}

void ExecutorEpoch::FillState(proto::NodeState* state) const {
  requests_.FillState(state);
  for (const int rank : left_.ranks()) {
    state->add_left(static_cast<uint32_t>(rank));
  }
  schedule_.FillState(state);
  state->set_last_run(runs_.last_run());
  state->set_nccl_version(nccl_.version);
  communicators_.FillState(state);
}

void ExecutorEpoch::OnRecovered(const proto::Recovered& recovered) {
  small_runs_.set_sends_inputs(recovered.sends_inputs());
  relays_.OnRecovered();
  presence_.Reset();
  requests_.OnRecovered();
  memories_.OnRecovered();
  communicators_.OnRecovered();
  results_.OnRecovered();
  watch_.OnRecovered();
  if (schedule_.OnRecovered()) names_.RecallNow();
}

bool ExecutorEpoch::WaitsForCoordinator() const {
  if (requests_.AnyWaits()) return true;
  if (schedule_.active()) return false;
  bool pending = names_.waits();
  slots_.ForEach([&pending](uint32_t, const SlotEntry& entry) {
    pending = pending || entry.IsPending();
  });
  return pending;
}

}  // namespace maypole::worker
