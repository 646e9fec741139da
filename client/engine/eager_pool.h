// EagerPool: which of a rank's pool buffers are free.
//
// A buffer is taken when a small tensor is submitted and may be used again when
// nobody reads it any more: as soon as its operation's outcome is decided, but
// if it holds the result, or all read it, when all local ranks have delivered.
//
// Thread contract: one thread at a time; only the rank that owns the pool.
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

  // A buffer for generation g of the slot, or kNoBuffer if all are in use.
  // all_read: every rank reads it, result or not (an allgather's).
  int Take(uint32_t slot, uint32_t generation, bool all_read = false);

 private:
  struct Use {
    uint32_t buffer;
    uint32_t slot;
    uint32_t generation;
    bool all_read;
  };
  bool Unused(const Use& use) const;

  const Board* const board_;
  const uint32_t me_;
  std::vector<uint32_t> free_;
  std::deque<Use> uses_;  // oldest first
};

}  // namespace maypole

#endif  // MAYPOLE_CLIENT_ENGINE_EAGER_POOL_H_
