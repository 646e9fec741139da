// BlockedRanks: decides whether all ranks of this node wait forever, as far as
// the node can tell.
//
// Purpose: the node's part in detecting a deadlock for certain. A rank says on
// the board that its only thread waits and has nothing to do. The board must
// confirm that only a call of another rank, or another node, can end the wait.
// Two snapshots in a row must show the same.
//
// Thread contract: not synchronized; no I/O, no clock.
#ifndef MAYPOLE_WORKER_CORE_LIVENESS_BLOCKED_H_
#define MAYPOLE_WORKER_CORE_LIVENESS_BLOCKED_H_

#include <cstdint>
#include <vector>

#include "worker/core/liveness/board_snapshot.h"

namespace maypole::worker {

// What BlockedRanks must ask the epoch about a rank's wait.
class WaitJudge {
 public:
  virtual ~WaitJudge() = default;
  // The rank has joined, or requested a process set, and has no answer yet.
  virtual bool WaitsInJoin(uint32_t local) const = 0;
  virtual bool WaitsForSet(uint32_t local) const = 0;
  // All local members have submitted the operation, and the coordinator has
  // received the report but has not answered.
  virtual bool WaitsForOthers(uint32_t slot, uint32_t generation) const = 0;
  // The slot belongs to a name.
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
  // Returns true if all live ranks are blocked, and the previous snapshot
  // showed the same.
  bool Check(const BoardSnapshot& snapshot, const WaitJudge& judge);
  // The waits of all live ranks if the last snapshot shows all of them blocked;
  // empty otherwise.
  const std::vector<BlockedWait>& waits() const { return waits_; }

 private:
  std::vector<BlockedWait> waits_;
};

}  // namespace maypole::worker

#endif  // MAYPOLE_WORKER_CORE_LIVENESS_BLOCKED_H_
