// LocalStragglers: operations that some local members wait with for others.
//
// Purpose: remembers since when, and says which have waited too long.
//
// Thread contract: not synchronized; no I/O, no clock.
#ifndef MAYPOLE_WORKER_CORE_LIVENESS_LOCAL_STRAGGLERS_H_
#define MAYPOLE_WORKER_CORE_LIVENESS_LOCAL_STRAGGLERS_H_

#include <cstdint>
#include <map>
#include <vector>

#include "worker/core/liveness/board_snapshot.h"

namespace maypole::worker {

class LocalStragglers {
 public:
  struct Late {
    WaitingSlot slot;
    int64_t waited_ms = 0;
  };

  // check_ms 0: nothing is ever late.
  explicit LocalStragglers(int64_t check_ms) : check_ms_(check_ms) {}

  // What waits now; all that does.
  void Look(int64_t now_ms, const std::vector<WaitingSlot>& waiting);
  // As of the last look, the oldest first.
  std::vector<Late> late() const;
  // Local ranks that others wait for, or soon do, for too long.
  uint64_t suspects() const;

 private:
  struct Since {
    WaitingSlot slot;
    int64_t since_ms = 0;
  };
  const int64_t check_ms_;
  int64_t now_ms_ = 0;
  std::map<uint32_t, Since> slots_;
};

}  // namespace maypole::worker

#endif  // MAYPOLE_WORKER_CORE_LIVENESS_LOCAL_STRAGGLERS_H_
