#include "client/engine/eager_pool.h"

namespace maypole {

EagerPool::EagerPool(const Board* board, uint32_t me) : board_(board), me_(me) {
  for (uint32_t i = board->config().pool_buffers; i > 0; --i) {
    free_.push_back(i - 1);
  }
}

bool EagerPool::Unused(const Use& use) const {
  const Outcome outcome = board_->OutcomeOf(use.slot, use.generation);
  if (use.ended && outcome == Outcome::kRunning) return true;
  // If it was aborted, the rank that claimed it may still write the sum there.
  // The buffer is no longer needed, because the epoch is over.
  if (outcome == Outcome::kRunning || outcome == Outcome::kReducing ||
      outcome == Outcome::kAborted) {
    return false;
  }
  EagerResult result;
  if (!board_->ResultOf(use.slot, use.generation, &result)) return true;
  const bool mine = result.local == me_ && result.buffer == use.buffer;
  if (!mine && !use.all_read) return true;
  const uint64_t members = board_->Members(use.slot);
  for (uint32_t i = 0; i < board_->config().local_size; ++i) {
    if ((members >> i & 1) == 0) continue;
    const uint64_t word =
        board_->progress(use.slot, i).consumed.load(std::memory_order_acquire);
    if (CountAt(word, use.generation) != UINT32_MAX) return false;
  }
  return true;
}

void EagerPool::Ended(uint32_t slot, uint32_t generation) {
  for (Use& use : uses_) {
    if (use.slot == slot && use.generation == generation) use.ended = true;
  }
}

int EagerPool::Take(uint32_t slot, uint32_t generation, bool all_read) {
  // Checks the oldest uses first, and all of them only if no buffer is free.
  while (!uses_.empty() && Unused(uses_.front())) {
    free_.push_back(uses_.front().buffer);
    uses_.pop_front();
  }
  if (free_.empty()) {
    std::erase_if(uses_, [this](const Use& use) {
      if (!Unused(use)) return false;
      free_.push_back(use.buffer);
      return true;
    });
  }
  if (free_.empty()) return kNoBuffer;
  const uint32_t buffer = free_.back();
  free_.pop_back();
  uses_.push_back({buffer, slot, generation, all_read});
  return static_cast<int>(buffer);
}

}  // namespace maypole
