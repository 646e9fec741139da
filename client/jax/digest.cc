#include "client/jax/digest.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

namespace maypole::jax {
namespace {

namespace ffi = xla::ffi;

constexpr int32_t kLeftOut = std::numeric_limits<int32_t>::max();
constexpr int32_t kSpread = 11;
constexpr uint32_t kDigest = (1u << 20) - 1;

uint32_t Hashed(int64_t i) {
  uint32_t number = (static_cast<uint32_t>(i) + 1) * 0x9E3779B1u;
  number = (number ^ (number >> 15)) * 0x2C1B3C6Du;
  return number ^ (number >> 12);
}

template <typename Word>
uint32_t SumOfBits(const void* data, int64_t bytes) {
  const auto* words = static_cast<const Word*>(data);
  const int64_t count = bytes / static_cast<int64_t>(sizeof(Word));
  uint32_t total = 0;
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t bits = words[i];
    total += (bits ^ (bits >> 16)) * (Hashed(i) | 1);
  }
  return total;
}

int32_t Exact(const ffi::Buffer& buffer) {
  int64_t elements = 1;
  for (int64_t i = 0; i < buffer.rank; ++i) elements *= buffer.dims[i];
  const int64_t bytes = ffi::SizeOf(buffer);
  uint32_t total = 0;
  if (bytes == elements) {
    total = SumOfBits<uint8_t>(buffer.data, bytes);
  } else if (bytes == 2 * elements) {
    total = SumOfBits<uint16_t>(buffer.data, bytes);
  } else {
    total = SumOfBits<uint32_t>(buffer.data, bytes);
  }
  total ^= total >> 15;
  return static_cast<int32_t>((total & kDigest) << kSpread);
}

float FromBits(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

// The absolute value.
double FromHalf(uint16_t bits) {
  const int exponent = bits >> 10 & 0x1f;
  const int fraction = bits & 0x3ff;
  if (exponent == 0x1f) return std::numeric_limits<double>::infinity();
  return exponent == 0 ? std::ldexp(fraction, -24)
                       : std::ldexp(fraction + 0x400, exponent - 25);
}

double Absolute(float value) { return std::fabs(value); }
double Absolute(double value) { return std::fabs(value); }

// The sum, with weights of 1 to 2, of absolute(value) of the buffer's values.
template <typename Value, typename Function>
double SumOf(const ffi::Buffer& buffer, Function absolute) {
  const auto* values = static_cast<const Value*>(buffer.data);
  const int64_t count =
      ffi::SizeOf(buffer) / static_cast<int64_t>(sizeof(Value));
  double total = 0;
  for (int64_t i = 0; i < count; ++i) {
    total += absolute(values[i]) * (1 + (Hashed(i) >> 24) / 256.0);
  }
  return total;
}

// The bits of numbers that are not negative are in the order of the numbers.
int32_t Rough(const ffi::Buffer& buffer) {
  double total;
  bool is_short = false;
  switch (buffer.dtype) {
    case ffi::kF32:
      total = SumOf<float>(buffer, [](float v) { return Absolute(v); });
      break;
    case ffi::kF64:
      total = SumOf<double>(buffer, [](double v) { return Absolute(v); });
      break;
    case ffi::kBf16:
      is_short = true;
      total = SumOf<uint16_t>(buffer, [](uint16_t v) {
        return Absolute(FromBits(uint32_t{v} << 16));
      });
      break;
    case ffi::kF16:
      is_short = true;
      total = SumOf<uint16_t>(buffer, &FromHalf);
      break;
    default:
      return Exact(buffer);
  }
  auto sum = static_cast<float>(total);
  if (!std::isfinite(sum)) sum = std::numeric_limits<float>::infinity();
  int32_t bits;
  std::memcpy(&bits, &sum, sizeof bits);
  return is_short ? bits >> 6 : bits;
}

}  // namespace

bool WriteDigests(const ffi::CallFrame& frame) {
  const int64_t count = frame.arguments.size - 1;
  if (count < 1 || frame.results.size != 1 ||
      frame.arguments.items[0]->dtype != ffi::kS32 ||
      ffi::SizeOf(*frame.results.items[0]) !=
          2 * count * static_cast<int64_t>(sizeof(int32_t))) {
    return false;
  }
  const int32_t steps =
      *static_cast<const int32_t*>(frame.arguments.items[0]->data);
  auto* numbers = static_cast<int32_t*>(frame.results.items[0]->data);
  if ((steps & (steps + 1)) != 0) {
    std::fill_n(numbers, 2 * count, kLeftOut);
    return true;
  }
  for (int64_t i = 0; i < count; ++i) {
    const ffi::Buffer& buffer = *frame.arguments.items[i + 1];
    numbers[i] = steps == 0 ? Exact(buffer) : Rough(buffer);
    numbers[count + i] = ~numbers[i];
  }
  return true;
}

}  // namespace maypole::jax
