// Urgency: somebody waits for an operation that needs other nodes.
//
// Purpose: the coordinator holds operations back to run them together
// (fusion); a wait is a flush. Who waits for an operation, or polls it, raises
// the urgency of its generation in the slot, and it stays raised; the executor
// reads it with the slot's news and tells the coordinator.
//
//   if (RaiseUrgency(board, slot, generation, Urgency::kAwaited) &&
//       board.AllArrived(slot, generation)) ...  // news: it was reported
//                                                // without
//
// Nothing is lost: the raise and all arrivals are seq_cst, so either the raiser
// sees that all have arrived (and makes news), or the last to arrive makes news
// after the raise.
//
// Thread contract: any thread of any rank; the executor only reads, and what it
// reads may be anything.
#ifndef MAYPOLE_COMMON_BOARD_URGENT_H_
#define MAYPOLE_COMMON_BOARD_URGENT_H_

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "common/board/board.h"

namespace maypole {

enum class Urgency : uint32_t {
  kNone = 0,
  kAwaited = 1,   // waited for, or polled, after it was submitted
  kImmediate = 2  // submitted to be waited for: a synchronous call
};

// True if this call has raised it.
inline bool RaiseUrgency(const Board& board, uint32_t slot, uint32_t generation,
                         Urgency to) {
  std::atomic<uint64_t>& word = board.slot(slot).urgency;
  const uint64_t wanted = Tagged(generation, static_cast<uint32_t>(to));
  uint64_t seen = word.load(std::memory_order_relaxed);
  while (seen < wanted) {
    if (word.compare_exchange_weak(seen, wanted, std::memory_order_seq_cst)) {
      return true;
    }
  }
  return false;
}

inline Urgency UrgencyOf(const Board& board, uint32_t slot,
                         uint32_t generation) {
  const uint64_t word =
      board.slot(slot).urgency.load(std::memory_order_seq_cst);
  if (TagOf(word) != generation) return Urgency::kNone;
  return static_cast<Urgency>(std::min(ValueOf(word), 2u));
}

}  // namespace maypole

#endif  // MAYPOLE_COMMON_BOARD_URGENT_H_
