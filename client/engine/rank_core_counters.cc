// RankCore's counters on the board, for the metrics (RankCounters).
#include <bit>

#include "client/engine/rank_core.h"

namespace maypole {

// Called under the mutex. Costs two plain additions in a cache line of this
// rank.
void RankCore::CountEnded(const Name& name, const Operation& op) const {
  if (name.negotiated) return;  // the executor counts it
  const bool first = op.set->locals.front() == local_rank_;
  // In an alltoall each rank has its own result.
  if (!first && name.kind != Kind::kAlltoall) return;
  const int kind = static_cast<int>(name.kind);
  if (first) Grow(me_.counters.operations[kind], 1);
  Grow(me_.counters.operation_bytes[kind], op.result_bytes());
}

uint64_t RankCore::RanksNotJoined() const {
  uint64_t ranks = 0;
  for (uint32_t i = 0; i < board_->config().local_size; ++i) {
    const RankBlock& rank = board_->rank(i);
    const bool left = rank.state.load(std::memory_order_relaxed) ==
                      static_cast<uint32_t>(RankState::kLeft);
    const bool aside = rank.aside.load(std::memory_order_relaxed) != 0;
    if (i != local_rank_ && !left && !aside) ranks |= uint64_t{1} << i;
  }
  return ranks;
}

WaitFor RankCore::WaitsFor(const Operation& op, uint64_t* late) const {
  *late = 0;
  const bool alone = board_->config().nodes == 1;
  if (op.control == Control::kJoin) {
    *late = RanksNotJoined();
    if (*late != 0) return WaitFor::kRanks;
    return alone ? WaitFor::kAgent : WaitFor::kNodes;
  }
  if (op.control != Control::kNone) return WaitFor::kAgent;
  std::lock_guard lock(mutex_);
  if (!op.input_ready) return WaitFor::kInput;
  // If it queues behind another operation of its name, the wait is for that
  // one.
  const auto it = names_.find(
      IdentityKey(op.signature.process_set, op.signature.kind, op.name));
  if (it == names_.end() || !it->second->known) return WaitFor::kAgent;
  const Name& name = *it->second;
  if (!name.waiting) return WaitFor::kData;
  for (const uint32_t i : op.set->locals) {
    const uint32_t reached = board_->arrival(name.slot, i)
                                 .generation.load(std::memory_order_relaxed);
    if (reached < name.generation) *late |= uint64_t{1} << i;
  }
  if (*late != 0) return WaitFor::kRanks;
  const uint64_t on_gpus =
      board_->slot(name.slot).on_gpus.load(std::memory_order_relaxed);
  const bool runs = !name.negotiated || TagOf(on_gpus) == name.generation;
  return runs ? WaitFor::kData : WaitFor::kNodes;
}

// Atomic additions, because several threads of the rank may wait.
void RankCore::CountSleep(WaitFor what, uint64_t late, uint64_t nanoseconds,
                          bool first) const {
  RankCounters& counters = me_.counters;
  const auto i = static_cast<size_t>(what);
  if (first) counters.waits[i].fetch_add(1, std::memory_order_relaxed);
  counters.wait_ns[i].fetch_add(nanoseconds, std::memory_order_relaxed);
  for (; late != 0; late &= late - 1) {
    counters.waited_for_ns[std::countr_zero(late)].fetch_add(
        nanoseconds, std::memory_order_relaxed);
  }
}

}  // namespace maypole
