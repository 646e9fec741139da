#include "tests/properties/spec/narrow_float.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

namespace maypole::properties {
namespace {

int Bias(const NarrowFormat& f) { return (1 << (f.exponent_bits - 1)) - 1; }

int LargestExponent(const NarrowFormat& f) {  // the field: infinity and NaN
  return (1 << f.exponent_bits) - 1;
}

int Infinity(const NarrowFormat& f) {
  return LargestExponent(f) << f.fraction_bits;
}

// Of a double >= 0, floor(log2(v)); below 2^-1022 some less.
int ExponentOf(double v) {
  return static_cast<int>(std::bit_cast<uint64_t>(v) >> 52) - 1023;
}

double PowerOfTwo(int exponent) {  // -1022 to 1023
  return std::bit_cast<double>(static_cast<uint64_t>(exponent + 1023) << 52);
}

// To the nearest whole number, ties to even; 0 <= v < 2^30.
int Rounded(double v) {
  const int whole = static_cast<int>(v);
  const double rest = v - whole;
  const bool odd = whole % 2 != 0;
  return rest > 0.5 || (rest == 0.5 && odd) ? whole + 1 : whole;
}

float ValueOf(const NarrowFormat& f, uint16_t bits) {
  const int fraction = bits & ((1 << f.fraction_bits) - 1);
  const int exponent = (bits & 0x7fff) >> f.fraction_bits;
  double value = 0;
  if (exponent == LargestExponent(f)) {
    value = fraction == 0 ? std::numeric_limits<double>::infinity()
                          : std::numeric_limits<double>::quiet_NaN();
  } else if (exponent == 0) {  // zero, subnormal
    value = std::ldexp(fraction, 1 - Bias(f) - f.fraction_bits);
  } else {
    value = std::ldexp(fraction + (1 << f.fraction_bits),
                       exponent - Bias(f) - f.fraction_bits);
  }
  return static_cast<float>(bits >> 15 != 0 ? -value : value);
}

std::vector<float> AllValues(const NarrowFormat& f) {
  std::vector<float> all;
  for (int bits = 0; bits < 65536; ++bits) {
    all.push_back(ValueOf(f, static_cast<uint16_t>(bits)));
  }
  return all;
}

}  // namespace

float Widen(const NarrowFormat& f, uint16_t bits) {
  static const std::vector<float> halfs = AllValues(kHalf);
  static const std::vector<float> bfloat16s = AllValues(kBfloat16);
  return (f.fraction_bits == kHalf.fraction_bits ? halfs : bfloat16s)[bits];
}

uint16_t Narrow(const NarrowFormat& f, double value) {
  const int sign = std::signbit(value) ? 0x8000 : 0;
  if (std::isnan(value)) {
    return static_cast<uint16_t>(sign | Infinity(f) |
                                 1 << (f.fraction_bits - 1));
  }
  if (std::isinf(value)) return static_cast<uint16_t>(sign | Infinity(f));
  const double size = std::fabs(value);
  const int least = 1 - Bias(f);  // of a normal number and of all below
  const int exponent = std::max(ExponentOf(size), least);
  // In steps of the last place there. 2^fraction_bits of them make the next
  // exponent, in the encoding as in the value.
  const int steps = Rounded(size * PowerOfTwo(f.fraction_bits - exponent));
  const int bits = ((exponent - least) << f.fraction_bits) + steps;
  return static_cast<uint16_t>(sign | std::min(bits, Infinity(f)));
}

bool IsNan(const NarrowFormat& f, uint16_t bits) {
  return (bits & 0x7fff) > Infinity(f);
}

}  // namespace maypole::properties
