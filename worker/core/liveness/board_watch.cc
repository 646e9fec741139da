#include "worker/core/liveness/board_watch.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "absl/strings/str_cat.h"
#include "worker/core/limits.h"

namespace maypole::worker {

template <typename Field>
void BoardWatch::AddRanks(uint64_t locals, Field* out) const {
  for (uint64_t rest = locals; rest != 0; rest &= rest - 1) {
    const int local = std::countr_zero(rest);
    const proto::NodeInfo& node = info_.own_node();
    if (local < node.ranks_size()) out->Add(node.ranks(local));
  }
}

std::optional<BoardWatch::Frozen> BoardWatch::OnSnapshot(
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
  return Frozen{*local,
                absl::StrCat("has not moved for ", frozen_.timeout_ms() / 1000,
                             " s while ",
                             entry == nullptr ? "an operation" : entry->Text(),
                             " was under way",
                             stopped ? " (its process is stopped)" : "")};
}

// --- Stragglers --------------------------------------------------------------

void BoardWatch::CheckForStragglers(int64_t now_ms,
                                    const BoardSnapshot& snapshot) {
  local_stragglers_.Check(now_ms, snapshot.waiting);
  proto::ExecutorMessage message;
  proto::LateOperations* out = message.mutable_late();
  std::string digest;
  for (const LocalStragglers::Late& late : local_stragglers_.late()) {
    const SlotEntry* entry = slots_.Get(late.slot.slot);
    if (entry == nullptr) continue;
    const uint64_t stopped = late.slot.missing & snapshot.stopped;
    absl::StrAppend(&digest, late.slot.slot, "/", late.slot.generation, "/",
                    late.slot.missing, "/", stopped, " ");
    if (static_cast<size_t>(out->operations_size()) >= kMaxLateOperations) {
      out->set_more(out->more() + 1);
      continue;
    }
    proto::LateOperation* op = out->add_operations();
    entry->FillIdentity(op->mutable_identity());
    op->set_generation(entry->CountOf(late.slot.generation));
    op->set_waiting_ms(late.waited_ms);
    AddRanks(late.slot.arrived, op->mutable_arrived());
    AddRanks(late.slot.missing, op->mutable_missing());
    AddRanks(stopped, op->mutable_stopped());
  }
  if (digest == late_reported_) return;
  late_reported_ = std::move(digest);
  output_.Send(std::move(message));
}

uint64_t BoardWatch::Waiting() const {
  uint64_t ranks = 0;
  for (const LocalStragglers::Late& late : local_stragglers_.late())
    ranks |= late.slot.arrived;
  slots_.ForEach([&ranks](uint32_t, const SlotEntry& entry) {
    if (!entry.set->negotiated() || entry.reported <= entry.answered) return;
    for (const uint32_t local : entry.set->locals) {
      ranks |= uint64_t{1} << local;
    }
  });
  const auto locals = static_cast<uint32_t>(info_.own_node().ranks_size());
  for (uint32_t local = 0; local < locals; ++local) {
    if (judge_.WaitsForSet(local)) ranks |= uint64_t{1} << local;
  }
  return ranks;
}

uint32_t BoardWatch::RankToTell(uint64_t locals) const {
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

proto::Blocked BoardWatch::BlockedMessage(bool blocked) const {
  proto::Blocked out;
  if (!blocked) return out;
  const proto::NodeInfo& node = info_.own_node();
  for (const BlockedWait& wait : blocked_.waits()) {
    proto::BlockedRank* rank = out.add_ranks();
    rank->set_rank(node.ranks(static_cast<int>(wait.local)));
    rank->set_count(wait.count);
    rank->set_joining(wait.on == kBlockedInJoin);
    rank->set_asks_for_set(wait.on == kBlockedForSet);
    if (rank->joining() || rank->asks_for_set()) continue;
    const SlotEntry& entry = *slots_.Get(ValueOf(wait.on));
    entry.FillIdentity(rank->mutable_identity());
    rank->set_generation(entry.CountOf(TagOf(wait.on)));
    AddRanks(wait.missing, rank->mutable_missing());
  }
  return out;
}

void BoardWatch::CheckForBlocked(const BoardSnapshot& snapshot) {
  const bool twice = blocked_.Check(snapshot, judge_);
  const uint64_t round = std::exchange(confirm_round_, 0);
  // To confirm what was reported before, one snapshot is enough.
  const bool blocked = twice || (round != 0 && !blocked_.waits().empty());
  proto::ExecutorMessage message;
  proto::Blocked* out = message.mutable_blocked();
  *out = BlockedMessage(blocked);
  out->set_handled(handled_);
  std::string digest = blocked ? out->SerializeAsString() : std::string();
  if (digest == blocked_reported_ && round == 0) return;
  blocked_reported_ = std::move(digest);
  out->set_round(round);
  output_.Send(std::move(message));
}

// --- A coordinator that has replaced another ---------------------------------

void BoardWatch::OnCoordinatorReplaced() {
  handled_ = 0;
  confirm_round_ = 0;
}

void BoardWatch::OnRecovered() {
  late_reported_.clear();
  blocked_reported_.clear();
}

}  // namespace maypole::worker
