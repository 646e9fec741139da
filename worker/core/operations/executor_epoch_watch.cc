// ExecutorEpoch: finds stragglers, frozen and blocked ranks in a snapshot of
// the board.
#include <algorithm>
#include <bit>
#include <utility>

#include "absl/strings/str_cat.h"
#include "worker/core/limits.h"
#include "worker/core/operations/executor_epoch.h"

namespace maypole::worker {

void ExecutorEpoch::SetIdentity(const SlotEntry& entry,
                                proto::Identity* out) const {
  out->set_process_set(entry.set->id);
  out->set_kind(static_cast<uint32_t>(entry.kind));
  out->set_name(entry.name);
}

template <typename Field>
void ExecutorEpoch::AddRanks(uint64_t locals, Field* out) const {
  for (uint64_t rest = locals; rest != 0; rest &= rest - 1) {
    const int local = std::countr_zero(rest);
    const proto::NodeInfo& node = info_.nodes[info_.node_index];
    if (local < node.ranks_size()) out->Add(node.ranks(local));
  }
}

std::optional<ExecutorEpoch::Frozen> ExecutorEpoch::OnSnapshot(
    int64_t now_ms, const BoardSnapshot& snapshot) {
  CheckForStragglers(now_ms, snapshot);
  CheckForBlocked(snapshot);
  in_run_ = std::any_of(
      snapshot.ranks.begin(), snapshot.ranks.end(), [&](const auto& rank) {
        const SlotEntry* entry = rank.holds ? slots_.Get(*rank.holds) : nullptr;
        return entry != nullptr && entry->set->negotiated();
      });
  const std::optional<uint32_t> local = frozen_.Check(now_ms, snapshot);
  if (!local) return std::nullopt;
  const SlotEntry* entry = slots_.Get(*snapshot.ranks[*local].holds);
  const bool stopped = (snapshot.stopped >> *local & 1) != 0;
  return Frozen{
      *local,
      absl::StrCat(
          "has not moved for ", frozen_.timeout_ms() / 1000, " s while ",
          entry == nullptr ? "an operation"
                           : absl::StrCat(std::string(Name(entry->kind)), " '",
                                          entry->name, "'"),
          " was under way", stopped ? " (its process is stopped)" : "")};
}

// --- Stragglers --------------------------------------------------------------

void ExecutorEpoch::CheckForStragglers(int64_t now_ms,
                                       const BoardSnapshot& snapshot) {
  local_stragglers_.Check(now_ms, snapshot.waiting);
  proto::ExecutorMessage message;
  proto::LateOperations* out = message.mutable_late();
  std::string told;
  for (const LocalStragglers::Late& late : local_stragglers_.late()) {
    const SlotEntry* entry = slots_.Get(late.slot.slot);
    if (entry == nullptr) continue;
    const uint64_t stopped = late.slot.missing & snapshot.stopped;
    absl::StrAppend(&told, late.slot.slot, "/", late.slot.generation, "/",
                    late.slot.missing, "/", stopped, " ");
    if (static_cast<size_t>(out->operations_size()) >= kMaxLateOperations) {
      out->set_more(out->more() + 1);
      continue;
    }
    proto::LateOperation* op = out->add_operations();
    SetIdentity(*entry, op->mutable_identity());
    op->set_generation(entry->CountOf(late.slot.generation));
    op->set_waiting_ms(late.waited_ms);
    AddRanks(late.slot.arrived, op->mutable_arrived());
    AddRanks(late.slot.missing, op->mutable_missing());
    AddRanks(stopped, op->mutable_stopped());
  }
  if (told == late_told_) return;
  late_told_ = std::move(told);
  Send(std::move(message));
}

uint64_t ExecutorEpoch::Waiting() const {
  uint64_t ranks = 0;
  for (const LocalStragglers::Late& late : local_stragglers_.late())
    ranks |= late.slot.arrived;
  for (uint32_t slot = 0; slot < slots_.allotted(); ++slot) {
    const SlotEntry* entry = slots_.Get(slot);
    if (entry == nullptr || !entry->set->negotiated() ||
        entry->reported <= entry->answered) {
      continue;
    }
    for (const uint32_t local : entry->set->locals) {
      ranks |= uint64_t{1} << local;
    }
  }
  const int locals = info_.nodes[info_.node_index].ranks_size();
  for (int local = 0; local < locals; ++local) {
    if (WaitsForSet(static_cast<uint32_t>(local))) {
      ranks |= uint64_t{1} << local;
    }
  }
  return ranks;
}

uint32_t ExecutorEpoch::RankToTell(uint64_t locals) const {
  uint64_t late = 0;
  for (const LocalStragglers::Late& l : local_stragglers_.late())
    late |= l.slot.missing;
  for (const uint64_t choice : {Waiting() & ~late, ~late}) {
    if ((choice & locals) == 0) continue;
    return static_cast<uint32_t>(std::countr_zero(choice & locals));
  }
  return static_cast<uint32_t>(std::countr_zero(locals));
}

// --- Blocked -----------------------------------------------------------------

bool ExecutorEpoch::WaitsInJoin(uint32_t local) const {
  // A joined rank is about to submit what it was asked to stand in for.
  for (const auto& [slot, generation] : wanted_) {
    const SlotEntry& entry = *slots_.Get(slot);
    if (entry.reported < generation && entry.answered < generation) {
      return false;
    }
  }
  return joins_.Waits(static_cast<int>(local));
}

bool ExecutorEpoch::WaitsForSet(uint32_t local) const {
  return set_requests_.Waits(static_cast<int>(local)) ||
         member_requests_.Waits(static_cast<int>(local));
}

bool ExecutorEpoch::WaitsForOthers(uint32_t slot, uint32_t generation) const {
  const SlotEntry* entry = slots_.Get(slot);
  return entry != nullptr && entry->set->negotiated() &&
         entry->reported == generation && entry->answered < generation &&
         presence_.sent() && !schedule_.active();
}

proto::Blocked ExecutorEpoch::BlockedMessage(bool blocked) const {
  proto::Blocked out;
  if (!blocked) return out;
  const proto::NodeInfo& node = info_.nodes[info_.node_index];
  for (const BlockedWait& wait : blocked_.waits()) {
    proto::BlockedRank* rank = out.add_ranks();
    rank->set_rank(node.ranks(static_cast<int>(wait.local)));
    rank->set_count(wait.count);
    rank->set_joining(wait.on == kBlockedInJoin);
    rank->set_asks_for_set(wait.on == kBlockedForSet);
    if (rank->joining() || rank->asks_for_set()) continue;
    const SlotEntry& entry = *slots_.Get(ValueOf(wait.on));
    SetIdentity(entry, rank->mutable_identity());
    rank->set_generation(entry.CountOf(TagOf(wait.on)));
    AddRanks(wait.missing, rank->mutable_missing());
  }
  return out;
}

void ExecutorEpoch::CheckForBlocked(const BoardSnapshot& snapshot) {
  const bool twice = blocked_.Check(snapshot, *this);
  const uint64_t round = std::exchange(confirm_round_, 0);
  // To confirm what was reported before, one snapshot is enough.
  const bool blocked = twice || (round != 0 && !blocked_.waits().empty());
  proto::ExecutorMessage message;
  proto::Blocked* out = message.mutable_blocked();
  *out = BlockedMessage(blocked);
  out->set_handled(handled_);
  std::string told = blocked ? out->SerializeAsString() : std::string();
  if (told == blocked_told_ && round == 0) return;
  blocked_told_ = std::move(told);
  out->set_round(round);
  Send(std::move(message));
}

}  // namespace maypole::worker
