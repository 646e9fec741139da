#include "client/session/core_hints.h"

namespace maypole {

CoreHints::CoreHints(const Board* board, uint32_t local_rank)
    : board_(board),
      local_rank_(local_rank),
      mine_(board->rank(local_rank).core) {}

uint32_t CoreHints::Publish(int processor) {
  const uint32_t word =
      processor < 0 ? kNoCore : static_cast<uint32_t>(processor) + 1;
  Write(word);
  return word;
}

void CoreHints::Write(uint32_t word) {
  if (mine_.load(std::memory_order_relaxed) != word) {
    mine_.store(word, std::memory_order_relaxed);
  }
}

bool CoreHints::PeerOn(uint32_t core, std::span<const uint32_t> locals) const {
  if (core == kNoCore) return false;
  for (const uint32_t local : locals) {
    if (local != local_rank_ &&
        board_->rank(local).core.load(std::memory_order_relaxed) == core) {
      return true;
    }
  }
  return false;
}

}  // namespace maypole
