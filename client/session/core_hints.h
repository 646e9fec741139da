// CoreHints: the cores on which the ranks of a node wait.
//
// Purpose: two ranks share a core when a third process uses the other one. A
// rank that spins there holds up the rank that it waits for. So each rank
// publishes on the board (RankBlock.core) the core on which it waits, or began
// its last wait, and a waiter yields to a rank that it finds on its own core.
//
//   CoreHints hints(board, local_rank);
//   const uint32_t core = hints.Publish(sched_getcpu());
//   if (hints.PeerOn(core, operation.set->locals)) sched_yield();
//
// The words are hints: the kernel moves threads at any time, and a rank that
// computes has published the core of its last wait. No protocol relies on them.
//
// Thread contract: any thread. The board must outlive this object.
#ifndef MAYPOLE_CLIENT_SESSION_CORE_HINTS_H_
#define MAYPOLE_CLIENT_SESSION_CORE_HINTS_H_

#include <cstdint>
#include <span>

#include "common/board/board.h"

namespace maypole {

class CoreHints {
 public:
  CoreHints(const Board* board, uint32_t local_rank);

  // `processor` as sched_getcpu() returns it: -1 if it is unknown. Returns the
  // published word. Writes the word only if it changes, so that peers can keep
  // it in their caches.
  uint32_t Publish(int processor);
  // This rank's thread is about to sleep: it needs no core.
  void Withdraw() { Write(kNoCore); }

  // True if one of the other local ranks was last seen on this core.
  bool PeerOn(uint32_t core, std::span<const uint32_t> locals) const;

 private:
  void Write(uint32_t word);

  const Board* const board_;
  const uint32_t local_rank_;
  std::atomic<uint32_t>& mine_;
};

}  // namespace maypole

#endif  // MAYPOLE_CLIENT_SESSION_CORE_HINTS_H_
