// BoardSnapshot: what the shell has seen on the board at one moment, for what
// needs to be looked for: ranks that are late, stand still, or wait for ever.
//
// Everything in it was written by ranks, and is only judged, never followed.
//
// Thread contract: values.
#ifndef MAYPOLE_WORKER_CORE_LIVENESS_BOARD_SNAPSHOT_H_
#define MAYPOLE_WORKER_CORE_LIVENESS_BOARD_SNAPSHOT_H_

#include <cstdint>
#include <optional>
#include <vector>

namespace maypole::worker {

// An operation that some local members have submitted and others have not, and
// that nobody has decided.
struct WaitingSlot {
  uint32_t slot = 0;
  uint32_t generation = 0;
  uint64_t arrived = 0;  // local ranks, as masks
  uint64_t missing = 0;
};

struct RankSnapshot {
  bool here = false;  // has come and not left
  bool aside = false;
  // The slot of an operation that is under way and that the rank has not left.
  std::optional<uint32_t> holds;
  uint64_t beat = 0;           // changes while the rank moves
  uint64_t blocked_count = 0;  // odd: it says that it waits without a bound,
  uint64_t blocked_on = 0;     // for this (common/board/board.h)
  // If that is an operation: it is what the rank has submitted last, nobody has
  // decided it, and these local members have not submitted it.
  bool undecided = false;
  uint64_t missing = 0;
};

struct BoardSnapshot {
  std::vector<RankSnapshot> ranks;  // by local rank
  std::vector<WaitingSlot> waiting;
  // Local ranks whose process is stopped (a signal, a debugger), of those that
  // were asked about.
  uint64_t stopped = 0;
};

}  // namespace maypole::worker

#endif  // MAYPOLE_WORKER_CORE_LIVENESS_BOARD_SNAPSHOT_H_
