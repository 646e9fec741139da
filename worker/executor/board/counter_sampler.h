// CounterSampler: what ranks count on the board goes into the statistics page.
//
// Purpose: a board's counters begin at 0 with the epoch and only grow, the
// page's live as long as the executor: this adds the difference since the last
// look.
//
//   CounterSampler sampler(board);
//   sampler.Sample(&page);      // now and then, and once when the epoch is
//   over
//
// Hostility: a rank may write anything to its counters. They are numbers and
// nothing else; one that goes backwards counts nothing from there on.
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
  // `board` outlives it.
  explicit CounterSampler(const Board* board);

  // board_bytes of the page is up to date.
  void Sample(StatsPage* stats);

 private:
  // What has been seen of a rank's counters.
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
