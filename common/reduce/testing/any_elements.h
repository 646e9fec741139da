// Purpose: elements of all types for tests of reductions, random but the same
// on every machine.
//
//   ForAllTypes([]<typename N>(DType dtype, N) {
//     std::mt19937_64 random(1);
//     const auto inputs = AnyInputs<N>(3, 100, random);
//   });
//
// Thread contract: pure functions.
#ifndef MAYPOLE_COMMON_REDUCE_TESTING_ANY_ELEMENTS_H_
#define MAYPOLE_COMMON_REDUCE_TESTING_ANY_ELEMENTS_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <limits>
#include <random>
#include <type_traits>
#include <vector>

#include "common/reduce/reduce.h"
#include "common/types.h"

namespace maypole {

// How a test reads and writes an element. It computes with Value.
template <typename T>
struct Number {
  using Stored = T;
  using Value = T;
  static Value Read(Stored v) { return v; }
  static Stored Write(Value v) { return v; }
};

struct HalfNumber {
  using Stored = uint16_t;
  using Value = float;
  static Value Read(Stored v) { return HalfToFloat(v); }
  static Stored Write(Value v) { return FloatToHalf(v); }
};

struct BrainNumber {
  using Stored = uint16_t;
  using Value = float;
  static Value Read(Stored v) { return Bfloat16ToFloat(v); }
  static Stored Write(Value v) { return FloatToBfloat16(v); }
};

struct TruthNumber {
  using Stored = uint8_t;
  using Value = bool;
  static Value Read(Stored v) { return v != 0; }
  static Stored Write(Value v) { return v; }
};

// Calls visit(dtype, N()) for every dtype.
template <typename Visit>
void ForAllTypes(const Visit& visit) {
  visit(DType::kUint8, Number<uint8_t>());
  visit(DType::kInt8, Number<int8_t>());
  visit(DType::kUint16, Number<uint16_t>());
  visit(DType::kInt16, Number<int16_t>());
  visit(DType::kInt32, Number<int32_t>());
  visit(DType::kInt64, Number<int64_t>());
  visit(DType::kFloat16, HalfNumber());
  visit(DType::kFloat32, Number<float>());
  visit(DType::kFloat64, Number<double>());
  visit(DType::kBool, TruthNumber());
  visit(DType::kBfloat16, BrainNumber());
}

// Any bits, or small numbers and the special values of floats.
template <typename N>
typename N::Stored Any(std::mt19937_64& random) {
  typename N::Stored v;
  if (random() % 2 == 0) {
    const uint64_t bits = random();
    std::memcpy(&v, &bits, sizeof(v));
    return v;
  }
  using Value = typename N::Value;
  if constexpr (std::is_floating_point_v<Value>) {
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    constexpr double kSpecial[] = {0.0,  -0.0,      1.0,        -1.0,  2.5,
                                   -2.5, kInfinity, -kInfinity, 1e-45, -6e-8,
                                   5e4,  5e-324,    -1e38};
    const size_t i = random() % (std::size(kSpecial) + 1);
    return N::Write(i == std::size(kSpecial)
                        ? std::numeric_limits<Value>::quiet_NaN()
                        : static_cast<Value>(kSpecial[i]));
  }
  return N::Write(static_cast<Value>(random() % 5));
}

template <typename N>
std::vector<std::vector<typename N::Stored>> AnyInputs(
    size_t count, size_t elements, std::mt19937_64& random) {
  std::vector<std::vector<typename N::Stored>> in(count);
  for (auto& v : in) {
    for (size_t i = 0; i < elements; ++i) v.push_back(Any<N>(random));
  }
  return in;
}

template <typename N>
Epilogue AnyEpilogue(std::mt19937_64& random) {
  Epilogue epilogue;
  if (random() % 2 == 0) epilogue.divisor = 1 + random() % 5;
  if (std::is_floating_point_v<typename N::Value> && random() % 2 == 0) {
    epilogue.scale = 0.7;
  }
  return epilogue;
}

}  // namespace maypole

#endif  // MAYPOLE_COMMON_REDUCE_TESTING_ANY_ELEMENTS_H_
