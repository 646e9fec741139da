// FrozenRanks: finds ranks that make no progress within an operation.
//
// Purpose: a rank that has not submitted an operation is a straggler and may
// remain one forever. A rank that has submitted it and makes no progress is
// frozen: its process is stopped or broken, and other ranks wait for it. After
// a timeout it counts as lost.
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
  // With timeout_ms 0 no rank ever counts as frozen.
  FrozenRanks(uint32_t ranks, int64_t timeout_ms)
      : timeout_ms_(timeout_ms), ranks_(ranks) {}

  int64_t timeout_ms() const { return timeout_ms_; }
  // Returns the local rank that has been frozen for longest, if any has reached
  // the timeout.
  std::optional<uint32_t> Check(int64_t now_ms, const BoardSnapshot& snapshot);
  // A mask of the local ranks that will soon reach the timeout.
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
