// EagerPool: tracks which of a rank's pool buffers are free.
//
// A buffer is taken when an eager operation is submitted, and is free again
// when no rank reads it any longer. If it holds the result, or if all ranks
// read it, it is free when all local ranks have delivered the result; otherwise
// it is free as soon as the operation's outcome is decided.
//
// The executor may have copies of an operation that a run then executes
// (ContributeCopy()). It stops reading them when the run is issued.
//
// Thread contract: used only by the rank that owns the pool, one thread at a
// time.
#ifndef MAYPOLE_CLIENT_ENGINE_EAGER_POOL_H_
#define MAYPOLE_CLIENT_ENGINE_EAGER_POOL_H_

#include <cstdint>
#include <deque>
#include <vector>

#include "common/board/board.h"

namespace maypole {

class EagerPool {
 public:
  EagerPool(const Board* board, uint32_t me);

  // Returns a buffer for this generation of the slot, or kNoBuffer if all are
  // in use. all_read: all ranks read the buffer (allgather, alltoall).
  int Take(uint32_t slot, uint32_t generation, bool all_read = false);
  // An operation of several nodes has ended for this rank. It may have ended by
  // a run, so the slot's outcome does not show it.
  void Ended(uint32_t slot, uint32_t generation);

 private:
  struct Use {
    uint32_t buffer;
    uint32_t slot;
    uint32_t generation;
    bool all_read;
    bool ended = false;
  };
  bool Unused(const Use& use) const;

  const Board* const board_;
  const uint32_t me_;
  std::vector<uint32_t> free_;
  std::deque<Use> uses_;  // oldest first
};

}  // namespace maypole

#endif  // MAYPOLE_CLIENT_ENGINE_EAGER_POOL_H_
