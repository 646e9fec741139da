// Urgency: tells the coordinator that a rank waits for a negotiated operation.
//
// Purpose: the coordinator holds operations back to run them together (fusion);
// a wait flushes them. A rank that waits for an operation, or polls it, raises
// the urgency of its generation in the slot; urgency never falls. The executor
// reads it when it takes the ready slot, and reports it to the coordinator.
//
//   if (RaiseUrgency(board, slot, generation, Urgency::kAwaited) &&
//       board.AllArrived(slot, generation)) {
//     ...  // The slot may have been reported without the urgency:
//          // set its ready bit again.
//   }
//
// No urgency is lost: the raise and all arrivals are seq_cst, so either the
// raising rank sees that all have arrived (and sets the ready bit), or the last
// rank to arrive sets the ready bit after the raise.
//
// Thread contract: any thread of any rank; the executor only reads. A rank may
// have written any number, so UrgencyOf() limits what it returns.
#ifndef MAYPOLE_COMMON_BOARD_URGENT_H_
#define MAYPOLE_COMMON_BOARD_URGENT_H_

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "common/board/board.h"

namespace maypole {

enum class Urgency : uint32_t {
  kNone = 0,
  kAwaited = 1,   // a rank waits for it, or polls it, after it was submitted
  kImmediate = 2  // a rank submitted it in order to wait: a synchronous call
};

// True if this call has raised the urgency.
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
