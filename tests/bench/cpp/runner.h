// Runner: measures one case after the other and checks every result.
//
// A round, on every rank: fill the tensors with new values; barrier; start the
// clock; allreduce; stop the clock; check each element. Only the allreduce
// (submit and wait) is timed. A round's time is the slowest rank's own, so the
// ranks' clocks need not agree; it includes waiting for a rank that left the
// barrier late.
//
// Thread contract: one thread.
#ifndef MAYPOLE_TESTS_BENCH_CPP_RUNNER_H_
#define MAYPOLE_TESTS_BENCH_CPP_RUNNER_H_

#include <cstdint>
#include <vector>

#include "common/status.h"
#include "tests/bench/cpp/cases.h"
#include "tests/bench/cpp/library.h"
#include "tests/bench/cpp/pattern.h"
#include "tests/bench/cpp/report.h"

namespace maypole::bench {

class Runner {
 public:
  // `library` must outlive the runner.
  explicit Runner(Library* library)
      : library_(library), pattern_(library->size()) {}

  // Called by all ranks; *row is the same on all. A wrong result is kDataLoss
  // with case, tensor, round, index and both values.
  Status Run(const Case& c, Row* row);

 private:
  Status Round(const Case& c, int round, const std::vector<Buffer>& buffers,
               double* microseconds);
  Status Check(const Case& c, int round,
               const std::vector<Buffer>& buffers) const;

  Library* const library_;
  const Pattern pattern_;
  // Not reset between cases, so stale data of an earlier case is detected.
  int64_t pattern_round_ = 0;
};

}  // namespace maypole::bench

#endif  // MAYPOLE_TESTS_BENCH_CPP_RUNNER_H_
