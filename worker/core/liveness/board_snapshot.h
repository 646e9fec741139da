// BoardSnapshot: a copy of the board's state at one moment, from which the core
// finds stragglers and frozen or blocked ranks.
//
// Ranks have written everything in it, so the core does not trust it: it only
// draws conclusions from it.
//
// Thread contract: values.
#ifndef MAYPOLE_WORKER_CORE_LIVENESS_BOARD_SNAPSHOT_H_
#define MAYPOLE_WORKER_CORE_LIVENESS_BOARD_SNAPSHOT_H_

#include <cstdint>
#include <optional>
#include <vector>

namespace maypole::worker {

// An undecided operation that some local members have submitted and others have
// not.
struct WaitingSlot {
  uint32_t slot = 0;
  uint32_t generation = 0;
  uint64_t arrived = 0;  // local ranks, as masks
  uint64_t missing = 0;
};

struct RankSnapshot {
  bool here = false;  // the rank has joined the epoch and not left it
  bool aside = false;
  // The slot of a running operation that the rank has not left.
  std::optional<uint32_t> holds;
  uint64_t beat = 0;  // changes while the rank moves
  // An odd count: the rank says that it waits for blocked_on without a time
  // limit (common/board/board.h).
  uint64_t blocked_count = 0;
  uint64_t blocked_on = 0;
  // If blocked_on is an operation. `undecided`: it is undecided, and the rank's
  // last generation of its slot. `missing`: the local members that have not
  // submitted it.
  bool undecided = false;
  uint64_t missing = 0;
};

struct BoardSnapshot {
  std::vector<RankSnapshot> ranks;  // by local rank
  std::vector<WaitingSlot> waiting;
  // By slot: the newest generation that a local rank has submitted; 0: none.
  std::vector<uint32_t> generations;
  // A mask of the local ranks, among those that were checked, whose process is
  // stopped by a signal or a debugger.
  uint64_t stopped = 0;
};

}  // namespace maypole::worker

#endif  // MAYPOLE_WORKER_CORE_LIVENESS_BOARD_SNAPSHOT_H_
