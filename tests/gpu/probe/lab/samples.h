// Samples: inputs of reductions whose every element is known, and the check of
// sums against float64 on the host.
//
// Purpose: element i of a pattern is a function of its seed and of i modulo
// kPeriod, so a gigabyte is filled by copying one period again and again, and
// checked without keeping it. kPeriod has a great prime factor: whatever is
// read from a wrong place, by a stride of any block or page, shows as a wrong
// sum.
//
//   const Pattern pattern = {DType::kFloat16, 3};
//   auto bytes = Encode(pattern, {0, 1000});
//   SumCheck check;
//   CheckSums(DType::kFloat16, {3, 4}, {0, 1000}, result, &check);
//   if (check.wrong) ... *check.wrong ...
//
// The bound of a sum s of k values x: they are added in float32, k - 1 times
// rounded (each time by at most 2^-24 of the sum of |x|), and for 16-bit types
// rounded once more (2^-11 of |s| for float16, 2^-8 for bfloat16; for float16
// at least 2^-25, half of its least step).
//
// Thread contract: pure functions.
#ifndef MAYPOLE_TESTS_GPU_PROBE_LAB_SAMPLES_H_
#define MAYPOLE_TESTS_GPU_PROBE_LAB_SAMPLES_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/types.h"

namespace maypole::probe {

// A multiple of 8 elements, so that copies of whole periods are aligned.
inline constexpr uint64_t kPeriod = 8 * 131071;
// The number of elements that a check examines; all if there are fewer.
inline constexpr uint64_t kSampled = 1 << 20;

struct Pattern {
  DType dtype = DType::kFloat32;  // kFloat32, kFloat16, kBfloat16
  uint64_t seed = 0;
};

struct Range {
  uint64_t begin = 0, count = 0;
};

// Element `index`: its bits mean exactly this. Between -4 and 4.
double ValueAt(const Pattern& pattern, uint64_t index);
std::vector<std::byte> Encode(const Pattern& pattern, Range range);

// The ranges to check in a result of this many elements: its beginning, middle
// and end, and many in between that begin at odd elements.
std::vector<Range> SampleRanges(uint64_t elements);

double ErrorBound(DType dtype, size_t inputs, double sum, double magnitudes);

struct SumCheck {
  uint64_t checked = 0;
  double worst = 0;         // the greatest error, in error bounds
  uint64_t other_bits = 0;  // elements that differ from the CPU's Reduce
  std::optional<std::string> wrong;  // the first that is beyond the bound
};

// `got`: the elements of `range`, each the sum of the patterns of `seeds`.
void CheckSums(DType dtype, std::span<const uint64_t> seeds, Range range,
               const std::byte* got, SumCheck* check);

}  // namespace maypole::probe

#endif  // MAYPOLE_TESTS_GPU_PROBE_LAB_SAMPLES_H_
