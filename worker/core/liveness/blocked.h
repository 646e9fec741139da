// BlockedRanks: whether all ranks of this node wait for ever, as far as the
// node can tell.
//
// Purpose: the part of finding a certain deadlock that is the node's. A rank
// says on the board that its only thread waits and that it has found nothing to
// do; here the board must agree: what it waits for cannot end without another
// rank's call, or another node. The same must be seen twice.
//
// Thread contract: not synchronized; no I/O, no clock.
#ifndef MAYPOLE_WORKER_CORE_LIVENESS_BLOCKED_H_
#define MAYPOLE_WORKER_CORE_LIVENESS_BLOCKED_H_

#include <cstdint>
#include <vector>

#include "worker/core/liveness/board_snapshot.h"

namespace maypole::worker {

// What only the epoch knows about what a rank waits for.
class WaitJudge {
 public:
  virtual ~WaitJudge() = default;
  // The rank has joined, or has asked for a process set, and has no answer.
  virtual bool WaitsInJoin(uint32_t local) const = 0;
  virtual bool WaitsForSet(uint32_t local) const = 0;
  // All local members have submitted it, the coordinator has been told so, and
  // has not answered.
  virtual bool WaitsForOthers(uint32_t slot, uint32_t generation) const = 0;
  // The slot is some name's.
  virtual bool IsSlot(uint32_t slot) const = 0;
};

struct BlockedWait {
  uint32_t local = 0;
  uint64_t on = 0;       // as RankBlock.blocked_on
  uint64_t missing = 0;  // local members that have not submitted it
  uint64_t count = 0;

  bool operator==(const BlockedWait&) const = default;
};

class BlockedRanks {
 public:
  // True: all live ranks are blocked for certain, now and at the look before.
  bool Look(const BoardSnapshot& look, const WaitJudge& judge);
  // All live ranks, if they all are blocked as of the last look; else none.
  const std::vector<BlockedWait>& waits() const { return waits_; }

 private:
  std::vector<BlockedWait> waits_;
};

}  // namespace maypole::worker

#endif  // MAYPOLE_WORKER_CORE_LIVENESS_BLOCKED_H_
