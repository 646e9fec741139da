// 16-bit floats by their definition: the reference's own conversions.
//
// They share no code with common/reduce/reduce.h, so that the reference detects
// errors there. A value is sign * fraction * 2^exponent, found by arithmetic
// that is exact in double; the product's conversions move bits.
//
// Thread contract: pure functions.
#ifndef MAYPOLE_TESTS_PROPERTIES_SPEC_NARROW_FLOAT_H_
#define MAYPOLE_TESTS_PROPERTIES_SPEC_NARROW_FLOAT_H_

#include <cstdint>

namespace maypole::properties {

// Bits: a sign, then the exponent, then the fraction.
struct NarrowFormat {
  int exponent_bits;
  int fraction_bits;
};
inline constexpr NarrowFormat kHalf = {5, 10};  // IEEE 754 binary16
inline constexpr NarrowFormat kBfloat16 = {8, 7};

// Every value of both formats is a float.
float Widen(const NarrowFormat& format, uint16_t bits);

// Rounds to the nearest value, ties to the one whose last bit is 0. Half a step
// beyond the largest value and above: infinity. NaN gives a NaN.
uint16_t Narrow(const NarrowFormat& format, double value);

// True for each bit pattern that is a NaN.
bool IsNan(const NarrowFormat& format, uint16_t bits);

}  // namespace maypole::properties

#endif  // MAYPOLE_TESTS_PROPERTIES_SPEC_NARROW_FLOAT_H_
