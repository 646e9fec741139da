// Pattern: inputs whose exact sum over the ranks is known.
//
// Purpose: fills a rank's tensors and checks the results, both at memory speed.
// Every input is a window into one table of small integers:
//
//   input(rank, round, tensor)[i] = table[(i + shift(rank, round, tensor)) % P]
//
// so every sum is a window too, into a table of sums. P is a prime, hence a
// chunk that lands in another place differs, and so does one of another round,
// another tensor, or without some rank.
//
// Invariants: table values are integers in [-1024, 1023], so float32 sums over
// kMaxRanks ranks are exact in any order. Shifts of different rounds differ
// for P rounds.
//
// Thread contract: const functions, any thread.
#ifndef MAYPOLE_TESTS_BENCH_CPP_PATTERN_H_
#define MAYPOLE_TESTS_BENCH_CPP_PATTERN_H_

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace maypole::bench {

class Pattern {
 public:
  static constexpr int64_t kPeriod = 65521;

  // The first wrong element.
  struct Wrong {
    int64_t index = 0;
    float got = 0;
    float expected = 0;
  };

  explicit Pattern(int ranks);

  void Fill(int rank, int64_t round, int64_t tensor,
            std::span<float> out) const;

  // Compares with the sum over all ranks, times `factor`; empty if right. A
  // result that was reduced n times more is ranks^n of it, exactly so while
  // ranks is a power of two and the float's exponent suffices.
  std::optional<Wrong> Check(int64_t round, int64_t tensor,
                             std::span<const float> result,
                             float factor = 1) const;

 private:
  // Both twice in a row: every window of kPeriod elements is contiguous.
  std::vector<float> table_;
  std::vector<float> sums_;
};

}  // namespace maypole::bench

#endif  // MAYPOLE_TESTS_BENCH_CPP_PATTERN_H_
