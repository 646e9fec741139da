// BoardKeeper::TakeSnapshot(). Reads words one by one while ranks continue, so
// the snapshot is not of one instant. Therefore its users require the same
// observation twice, or for a long time.
#include <algorithm>
#include <bit>

#include "worker/executor/board/board_keeper.h"
#include "worker/executor/board/process_state.h"

namespace maypole::worker {
namespace {

uint64_t Bit(uint32_t local) { return uint64_t{1} << local; }

}  // namespace

BoardSnapshot BoardKeeper::TakeSnapshot(uint64_t asked) {
  BoardSnapshot snapshot;
  snapshot.ranks.resize(present_.size());
  for (uint32_t i = 0; i < present_.size(); ++i) {
    RankSnapshot& rank = snapshot.ranks[i];
    const RankBlock& block = board_->rank(i);
    rank.here = present_[i].here;
    rank.aside = block.aside.load(std::memory_order_acquire) != 0;
    rank.beat = block.heartbeat.load(std::memory_order_relaxed);
    ScanBlocked(i, &rank);
    if ((asked & Bit(i)) != 0 && rank.here && IsStopped(present_[i].pid)) {
      snapshot.stopped |= Bit(i);
    }
  }
  snapshot.generations.resize(allotted_, 0);
  for (uint32_t slot = 0; slot < allotted_; ++slot) ScanSlot(slot, &snapshot);
  for (uint32_t n = 0; n < issued_.size(); ++n) ScanRun(n, &snapshot);
  return snapshot;
}

bool BoardKeeper::AllSayBlocked() const {
  bool some = false;
  for (uint32_t i = 0; i < present_.size(); ++i) {
    if (!present_[i].here) continue;
    some = true;
    const uint64_t count =
        board_->rank(i).blocked_count.load(std::memory_order_acquire);
    if (count % 2 == 0) return false;
  }
  return some;
}

void BoardKeeper::ScanBlocked(uint32_t local, RankSnapshot* rank) const {
  const RankBlock& block = board_->rank(local);
  rank->blocked_count = block.blocked_count.load(std::memory_order_acquire);
  rank->blocked_on = block.blocked_on.load(std::memory_order_relaxed);
  const uint32_t slot = ValueOf(rank->blocked_on);
  const uint32_t generation = TagOf(rank->blocked_on);
  if (rank->blocked_count % 2 == 0 || slot >= allotted_ || generation == 0) {
    return;
  }
  const SharedSet& set = slots_[slot].set;
  if (set == nullptr || set->PlaceOf(local) < 0) return;
  for (const uint32_t i : set->locals) {
    const uint32_t reached =
        board_->arrival(slot, i).generation.load(std::memory_order_acquire);
    if (i == local && reached != generation) return;
    if (reached < generation) rank->missing |= Bit(i);
  }
  rank->undecided = board_->OutcomeOf(slot, generation) == Outcome::kRunning;
}

void BoardKeeper::ScanSlot(uint32_t slot, BoardSnapshot* snapshot) const {
  if (slots_[slot].set == nullptr) return;
  const NodeSet& set = *slots_[slot].set;
  WaitingSlot waiting{slot, 0, 0, 0};
  uint32_t reached[kMaxLocalRanks] = {};
  for (const uint32_t i : set.locals) {
    reached[i] =
        board_->arrival(slot, i).generation.load(std::memory_order_acquire);
    waiting.generation = std::max(waiting.generation, reached[i]);
  }
  for (const uint32_t i : set.locals) {
    const bool arrived = reached[i] == waiting.generation;
    (arrived ? waiting.arrived : waiting.missing) |= Bit(i);
  }
  snapshot->generations[slot] = waiting.generation;
  if (waiting.generation == 0) return;
  const Outcome outcome = board_->OutcomeOf(slot, waiting.generation);
  if (waiting.missing != 0) {
    if (outcome == Outcome::kRunning) snapshot->waiting.push_back(waiting);
    return;
  }
  const bool under_way = outcome == Outcome::kRunning ||
                         outcome == Outcome::kReducing ||
                         outcome == Outcome::kCommitted;
  if (set.negotiated() || !under_way) return;
  for (const uint32_t i : set.locals) {
    Holds(slot, waiting.generation, i, slot, snapshot);
  }
}

void BoardKeeper::ScanRun(uint32_t record, BoardSnapshot* snapshot) {
  Issued& run = issued_[record];
  uint64_t members = 0;
  for (uint64_t rest = run.members; rest != 0; rest &= rest - 1) {
    const auto i = static_cast<uint32_t>(std::countr_zero(rest));
    const RunRef ref = board_->NegotiatedRef(record);
    if (Holds(ref, run.generation, i, run.slot, snapshot)) members |= Bit(i);
  }
  run.members = members;
}

bool BoardKeeper::Holds(RunRef ref, uint32_t generation, uint32_t local,
                        uint32_t slot, BoardSnapshot* snapshot) const {
  const Progress& p = board_->progress(ref, local);
  const uint64_t consumed = p.consumed.load(std::memory_order_acquire);
  if (CountAt(consumed, generation) == UINT32_MAX) return false;
  RankSnapshot& rank = snapshot->ranks[local];
  // A rank without outstanding operations holds nothing.
  if (!rank.here || board_->rank(local).tickets_read.load(
                        std::memory_order_acquire) == kAllRead) {
    return rank.here;
  }
  rank.holds = slot;
  rank.beat += ValueOf(consumed) +
               ValueOf(p.staged.load(std::memory_order_relaxed)) +
               ValueOf(p.reduced.load(std::memory_order_relaxed)) +
               uint64_t{generation} * 1000003 * (ref + 1);
  return true;
}

}  // namespace maypole::worker
