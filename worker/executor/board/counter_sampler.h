// CounterSampler: adds the ranks' counters on the board to the statistics page.
//
// Purpose: a board's counters start at 0 in each epoch, while the page's
// counters live as long as the executor. Each sample adds the growth since the
// previous one.
//
//   CounterSampler sampler(board);
//   sampler.Sample(&page);      // periodically, and once after the epoch
//
// Trust: a rank may write anything to its counters. Values are only added; a
// counter that goes backwards adds nothing until it exceeds its old maximum.
//
// Thread contract: one thread.
#ifndef MAYPOLE_WORKER_EXECUTOR_BOARD_COUNTER_SAMPLER_H_
#define MAYPOLE_WORKER_EXECUTOR_BOARD_COUNTER_SAMPLER_H_

#include <cstdint>
#include <vector>

#include "common/board/board.h"
#include "worker/executor/board/stats_page.h"

namespace maypole::worker {

class CounterSampler {
 public:
  // `board` must outlive this object.
  explicit CounterSampler(const Board* board);

  // stats->board_bytes must be up to date.
  void Sample(StatsPage* stats);

 private:
  // A rank's counters as of the last sample.
  struct Seen {
    uint64_t operations[kKinds] = {};
    uint64_t operation_bytes[kKinds] = {};
    uint64_t mismatches = 0;
    uint64_t waits[kWaitFors] = {};
    uint64_t wait_ns[kWaitFors] = {};
    uint64_t waited_for_ns[kMaxLocalRanks] = {};
  };
  void SampleRank(uint32_t local, StatsPage* stats);

  const Board* const board_;
  std::vector<Seen> seen_;  // by local rank
};

}  // namespace maypole::worker

#endif  // MAYPOLE_WORKER_EXECUTOR_BOARD_COUNTER_SAMPLER_H_
