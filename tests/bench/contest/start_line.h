// StartLine: the barrier of a contestant's ranks before each round.
//
// Purpose: the same barrier for all contestants, so that their own barriers do
// not affect the results. It is a page of shared memory: rank r counts its
// arrivals in cell r (64 bytes apart) and waits until all others have counted
// as far. The page lies in a memory file of the conductor. rank_loop.py has the
// Python twin.
//
// Thread contract: one thread per rank.
#ifndef MAYPOLE_TESTS_BENCH_CONTEST_START_LINE_H_
#define MAYPOLE_TESTS_BENCH_CONTEST_START_LINE_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "common/status.h"
#include "common/system/fd.h"

namespace maypole::bench {

class StartLine {
 public:
  static constexpr int kMaxRanks = 64;

  static Status Map(const std::string& path, int rank, int ranks,
                    std::unique_ptr<StartLine>* out);

  // Returns when all ranks have called it equally often. Spins, and yields the
  // core if there are fewer cores than ranks.
  void Meet();

 private:
  struct alignas(64) Cell {
    std::atomic<uint64_t> arrivals;
  };

  StartLine(Mapping page, int rank, int ranks);

  const Mapping page_;
  Cell* const cells_;
  const int rank_;
  const int ranks_;
  const bool crowded_;
  uint64_t arrivals_ = 0;
};

}  // namespace maypole::bench

#endif  // MAYPOLE_TESTS_BENCH_CONTEST_START_LINE_H_
