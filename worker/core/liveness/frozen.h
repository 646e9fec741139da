// FrozenRanks: ranks that stand still in the middle of an operation.
//
// Purpose: a rank that has not submitted something is late, and may be so for
// ever. One that has, and whose part nobody else can do, holds up the others
// although nothing of its program is missing: its process is stopped, or
// something in it has gone wrong. After a bound it counts as lost.
//
// Thread contract: not synchronized; no I/O, no clock.
#ifndef MAYPOLE_WORKER_CORE_LIVENESS_FROZEN_H_
#define MAYPOLE_WORKER_CORE_LIVENESS_FROZEN_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "worker/core/liveness/board_snapshot.h"

namespace maypole::worker {

class FrozenRanks {
 public:
  // timeout_ms 0: nobody is ever frozen.
  FrozenRanks(uint32_t ranks, int64_t timeout_ms)
      : timeout_ms_(timeout_ms), ranks_(ranks) {}

  int64_t timeout_ms() const { return timeout_ms_; }
  // The local rank that has not moved for too long, if there is one.
  std::optional<uint32_t> Look(int64_t now_ms, const BoardSnapshot& look);
  // Local ranks that soon may be.
  uint64_t suspects() const;

 private:
  struct Rank {
    bool holds = false;
    uint64_t beat = 0;
    int64_t still_ms = 0;
  };
  const int64_t timeout_ms_;
  int64_t last_ms_ = 0;
  std::vector<Rank> ranks_;
};

}  // namespace maypole::worker

#endif  // MAYPOLE_WORKER_CORE_LIVENESS_FROZEN_H_
