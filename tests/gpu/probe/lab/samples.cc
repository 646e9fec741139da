#include "tests/gpu/probe/lab/samples.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/reduce/reduce.h"

namespace maypole::probe {
namespace {

// The longest range that is looked at, and the many short ones.
constexpr uint64_t kLongRange = 256 << 10;
constexpr uint64_t kShortRanges = 64;
constexpr uint64_t kShortRange = 4099;

uint64_t Mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

// 24 random bits of mantissa, of eight magnitudes, before it is rounded to the
// type.
float Raw(const Pattern& pattern, uint64_t index) {
  const uint64_t h = Mix((pattern.seed << 32) ^ (index % kPeriod));
  const int32_t mantissa = static_cast<int32_t>(h & 0xffffff) - 0x800000;
  const int exponent = static_cast<int>((h >> 24) & 7) - 5;
  return std::ldexp(static_cast<float>(mantissa), exponent - 23);
}

double Decode(DType dtype, const std::byte* at) {
  uint16_t half = 0;
  float value = 0;
  switch (dtype) {
    case DType::kFloat16:
      std::memcpy(&half, at, sizeof(half));
      return HalfToFloat(half);
    case DType::kBfloat16:
      std::memcpy(&half, at, sizeof(half));
      return Bfloat16ToFloat(half);
    default:
      std::memcpy(&value, at, sizeof(value));
      return value;
  }
}

void EncodeOne(const Pattern& pattern, uint64_t index, std::byte* at) {
  const float value = Raw(pattern, index);
  uint16_t half = 0;
  switch (pattern.dtype) {
    case DType::kFloat16:
      half = FloatToHalf(value);
      std::memcpy(at, &half, sizeof(half));
      return;
    case DType::kBfloat16:
      half = FloatToBfloat16(value);
      std::memcpy(at, &half, sizeof(half));
      return;
    default:
      std::memcpy(at, &value, sizeof(value));
  }
}

std::string WrongText(DType dtype, uint64_t index, double got, double expected,
                      double bound) {
  return absl::StrCat("wrong sum of ", std::string(Name(dtype)), " at element ",
                      index, ": got ", got, ", expected ", expected, " within ",
                      bound);
}

}  // namespace

double ValueAt(const Pattern& pattern, uint64_t index) {
  std::byte bits[8] = {};
  EncodeOne(pattern, index, bits);
  return Decode(pattern.dtype, bits);
}

std::vector<std::byte> Encode(const Pattern& pattern, Range range) {
  const size_t size = SizeOf(pattern.dtype);
  std::vector<std::byte> out(range.count * size);
  for (uint64_t i = 0; i < range.count; ++i) {
    EncodeOne(pattern, range.begin + i, &out[i * size]);
  }
  return out;
}

std::vector<Range> SampleRanges(uint64_t elements) {
  if (elements <= kSampled) return {{0, elements}};
  std::vector<Range> out = {{0, kLongRange},
                            {elements / 2 - kLongRange / 2 - 1, kLongRange},
                            {elements - kLongRange, kLongRange}};
  for (uint64_t i = 0; i < kShortRanges; ++i) {
    const uint64_t begin = Mix(i) % (elements - kShortRange);
    out.push_back({begin | 1, kShortRange});
  }
  return out;
}

double ErrorBound(DType dtype, size_t inputs, double sum, double magnitudes) {
  const double added =
      std::ldexp(static_cast<double>(inputs - 1) * magnitudes, -24) *
      (1 + std::ldexp(static_cast<double>(inputs), -24));
  const double before_rounding = std::abs(sum) + added;
  switch (dtype) {
    case DType::kFloat16:
      return added +
             std::max(std::ldexp(before_rounding, -11), std::ldexp(1.0, -25));
    case DType::kBfloat16:
      return added + std::ldexp(before_rounding, -8);
    default:
      return added;
  }
}

void CheckSums(DType dtype, std::span<const uint64_t> seeds, Range range,
               const std::byte* got, SumCheck* check) {
  const size_t size = SizeOf(dtype);
  std::vector<std::vector<std::byte>> inputs;
  std::vector<const std::byte*> pointers;
  for (const uint64_t seed : seeds) {
    inputs.push_back(Encode({dtype, seed}, range));
    pointers.push_back(inputs.back().data());
  }
  std::vector<std::byte> cpu(range.count * size);
  Reduce(dtype, Op::kSum, pointers, cpu.data(), range.count, Epilogue());
  for (uint64_t i = 0; i < range.count; ++i) {
    double sum = 0, magnitudes = 0;
    for (const std::byte* input : pointers) {
      const double value = Decode(dtype, input + i * size);
      sum += value;
      magnitudes += std::abs(value);
    }
    const double value = Decode(dtype, got + i * size);
    const double bound = ErrorBound(dtype, seeds.size(), sum, magnitudes);
    const double error = std::abs(value - sum);
    if (!(error <= bound) && !check->wrong.has_value()) {  // NaN is wrong too
      check->wrong = WrongText(dtype, range.begin + i, value, sum, bound);
    }
    if (error > 0 && bound > 0) {
      check->worst = std::max(check->worst, error / bound);
    }
    if (std::memcmp(got + i * size, &cpu[i * size], size) != 0) {
      ++check->other_bits;
    }
  }
  check->checked += range.count;
}

}  // namespace maypole::probe
