#include "tests/bench/cpp/pattern.h"

#include <algorithm>
#include <cstring>

#include "common/limits.h"

namespace maypole::bench {
namespace {

constexpr int64_t P = Pattern::kPeriod;
constexpr int64_t kRankStep = 7919;
constexpr int64_t kRoundStep = 10007;
constexpr int64_t kTensorStep = 613;

constexpr int64_t kMagnitude = 1024;
// float32 has 24 bits for integers.
static_assert(kMaxRanks * kMagnitude <= int64_t{1} << 24);

// Eleven bits of a multiplicative hash, as a signed number.
float Value(int64_t i) {
  const uint32_t hash = static_cast<uint32_t>(i) * 2654435761u;
  return static_cast<float>(static_cast<int64_t>(hash >> 21) - kMagnitude);
}

int64_t Shift(int64_t rank, int64_t round, int64_t tensor) {
  return (rank * kRankStep + round % P * kRoundStep +
          tensor % P * kTensorStep) %
         P;
}

void Repeat(std::vector<float>* table) {
  table->resize(2 * P);
  std::copy_n(table->begin(), P, table->begin() + P);
}

// The compiler makes this a vector loop; a search with an early end it cannot.
bool Equal(const float* a, const float* b, float factor, int64_t n) {
  int different = 0;
  for (int64_t i = 0; i < n; ++i) different |= a[i] != b[i] * factor;
  return different == 0;
}

}  // namespace

Pattern::Pattern(int ranks) : table_(P), sums_(P, 0.0f) {
  for (int64_t i = 0; i < P; ++i) table_[i] = Value(i);
  Repeat(&table_);
  for (int rank = 0; rank < ranks; ++rank) {
    const float* window = &table_[Shift(rank, 0, 0)];
    for (int64_t i = 0; i < P; ++i) sums_[i] += window[i];
  }
  Repeat(&sums_);
}

void Pattern::Fill(int rank, int64_t round, int64_t tensor,
                   std::span<float> out) const {
  const float* window = &table_[Shift(rank, round, tensor)];
  const int64_t size = static_cast<int64_t>(out.size());
  for (int64_t at = 0; at < size; at += P) {
    std::memcpy(&out[at], window, std::min(P, size - at) * sizeof(float));
  }
}

std::optional<Pattern::Wrong> Pattern::Check(int64_t round, int64_t tensor,
                                             std::span<const float> result,
                                             float factor) const {
  const float* window = &sums_[Shift(0, round, tensor)];
  const int64_t size = static_cast<int64_t>(result.size());
  for (int64_t at = 0; at < size; at += P) {
    const int64_t n = std::min(P, size - at);
    if (Equal(&result[at], window, factor, n)) continue;
    int64_t i = 0;
    while (result[at + i] == window[i] * factor) ++i;
    return Wrong{at + i, result[at + i], window[i] * factor};
  }
  return std::nullopt;
}

}  // namespace maypole::bench
