#include "worker/executor/board/counter_sampler.h"

#include <sys/stat.h>

#include <algorithm>
#include <utility>

namespace maypole::worker {
namespace {

// Adds the growth of the board's counter, and returns it.
uint64_t AddGrowth(const RankCounters::Counter& counter, uint64_t* seen,
                   StatsPage::Counter& to) {
  const uint64_t now = counter.load(std::memory_order_relaxed);
  const uint64_t before = std::exchange(*seen, std::max(*seen, now));
  if (now <= before) return 0;
  StatsPage::Add(to, now - before);
  return now - before;
}

// Returns the memory of the arenas, which lie in the board's file: what the
// file occupies beyond the board's `reserved` bytes. Pages count once they are
// used.
uint64_t ArenaBytes(const Board& board, uint64_t reserved) {
  struct stat st;
  if (fstat(board.fd(), &st) != 0) return 0;
  const uint64_t all = static_cast<uint64_t>(st.st_blocks) * 512;
  return all - std::min(all, reserved);
}

}  // namespace

CounterSampler::CounterSampler(const Board* board)
    : board_(board), seen_(board->config().local_size) {}

void CounterSampler::Sample(StatsPage* stats) {
  for (uint32_t i = 0; i < seen_.size(); ++i) SampleRank(i, stats);
  stats->arena_bytes.store(ArenaBytes(*board_, stats->board_bytes.load()),
                           std::memory_order_relaxed);
}

void CounterSampler::SampleRank(uint32_t local, StatsPage* stats) {
  const RankCounters& counters = board_->rank(local).counters;
  Seen& seen = seen_[local];
  for (int k = 0; k < kKinds; ++k) {
    AddGrowth(counters.operations[k], &seen.operations[k],
              stats->operations[k]);
    AddGrowth(counters.operation_bytes[k], &seen.operation_bytes[k],
              stats->operation_bytes[k]);
  }
  AddGrowth(counters.mismatches, &seen.mismatches,
            stats->errors[static_cast<int>(ErrorKind::kMismatch)]);
  for (int i = 0; i < kWaitFors; ++i) {
    AddGrowth(counters.waits[i], &seen.waits[i], stats->waits[i]);
    const uint64_t waited =
        AddGrowth(counters.wait_ns[i], &seen.wait_ns[i], stats->wait_ns[i]);
    StatsPage::Add(stats->waited_ns[local], waited);
  }
  for (uint32_t i = 0; i < seen_.size(); ++i) {
    AddGrowth(counters.waited_for_ns[i], &seen.waited_for_ns[i],
              stats->late_ns[i]);
  }
}

}  // namespace maypole::worker
