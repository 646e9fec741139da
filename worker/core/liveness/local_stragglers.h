// LocalStragglers: finds operations whose local members wait for other local
// members.
//
// Purpose: remembers since when each operation waits, and returns those that
// have waited too long.
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

  // With check_ms 0 no operation is ever late.
  explicit LocalStragglers(int64_t check_ms) : check_ms_(check_ms) {}

  // `waiting` lists all operations that wait now.
  void Check(int64_t now_ms, const std::vector<WaitingSlot>& waiting);
  // The late operations as of the last Check(), the oldest first.
  std::vector<Late> late() const;
  // A mask of the local ranks for which operations wait that are late, or will
  // be within two scans.
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
