#include "common/reduce/reduce.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>
#include <vector>

#include "common/reduce/reduce_simd.h"

namespace maypole {
namespace {

constexpr size_t kBlock = 1024;  // elements; the accumulator stays in L1

// How elements of a type are read, accumulated and written back.
template <typename T>
struct Plain {
  using Stored = T;
  using Acc = T;
  static Acc Load(Stored v) { return v; }
  static Stored Store(Acc v) { return v; }
};

struct Half {
  using Stored = uint16_t;
  using Acc = float;
  static Acc Load(Stored v) { return HalfToFloat(v); }
  static Stored Store(Acc v) { return FloatToHalf(v); }
};

struct Brain {
  using Stored = uint16_t;
  using Acc = float;
  static Acc Load(Stored v) { return Bfloat16ToFloat(v); }
  static Stored Store(Acc v) { return FloatToBfloat16(v); }
};

// Read as bytes: an application may store values other than 0 and 1.
struct Truth {
  using Stored = uint8_t;
  using Acc = bool;
  static Acc Load(Stored v) { return v != 0; }
  static Stored Store(Acc v) { return v ? 1 : 0; }
};

// Integers wrap, without overflow's undefined behaviour: in an unsigned type
// that is not promoted to int.
template <typename T>
using Wrapping = std::common_type_t<std::make_unsigned_t<T>, unsigned>;

struct AddOp {
  template <typename T>
  static T Of(T a, T b) {
    if constexpr (std::is_same_v<T, bool>) {
      return a || b;
    } else if constexpr (std::is_integral_v<T>) {
      using W = Wrapping<T>;
      return static_cast<T>(static_cast<W>(a) + static_cast<W>(b));
    } else {
      return a + b;
    }
  }
};

struct MultiplyOp {
  template <typename T>
  static T Of(T a, T b) {
    if constexpr (std::is_same_v<T, bool>) {
      return a && b;
    } else if constexpr (std::is_integral_v<T>) {
      using W = Wrapping<T>;
      return static_cast<T>(static_cast<W>(a) * static_cast<W>(b));
    } else {
      return a * b;
    }
  }
};

// The second condition selects a NaN in b. A NaN in a is kept, because no
// comparison with it is true.
struct MinOp {
  template <typename T>
  static T Of(T a, T b) {
    return b < a || b != b ? b : a;
  }
};

struct MaxOp {
  template <typename T>
  static T Of(T a, T b) {
    return b > a || b != b ? b : a;
  }
};

// Rounds toward zero; a value outside T becomes its nearest limit, NaN becomes
// 0.
template <typename T>
T Limited(double v) {
  using Limits = std::numeric_limits<T>;
  // float64 has no 2^63 - 1: the next one is outside.
  if (v >= static_cast<double>(Limits::max())) return Limits::max();
  if (v <= static_cast<double>(Limits::min())) return Limits::min();
  return v != v ? T{0} : static_cast<T>(v);
}

template <typename Acc>
void Apply(const Epilogue& finish, Acc* acc, size_t n) {
  if constexpr (std::is_same_v<Acc, bool>) {
    return;
  } else if constexpr (std::is_integral_v<Acc>) {
    if (finish.scale != 1.0) {
      const auto d = static_cast<double>(finish.divisor);
      for (size_t i = 0; i < n; ++i) {
        acc[i] = Limited<Acc>(static_cast<double>(acc[i]) * finish.scale / d);
      }
    } else if (finish.divisor != 1) {
      for (size_t i = 0; i < n; ++i) {
        acc[i] = static_cast<Acc>(acc[i] / finish.divisor);
      }
    }
  } else {
    if (finish.divisor != 1) {
      const Acc d = static_cast<Acc>(finish.divisor);
      for (size_t i = 0; i < n; ++i) acc[i] /= d;
    }
    if (finish.scale != 1.0) {
      const Acc s = static_cast<Acc>(finish.scale);
      for (size_t i = 0; i < n; ++i) acc[i] *= s;
    }
  }
}

// Elements may be unaligned, because applications provide the buffers.
template <typename T>
T LoadAt(const std::byte* p, size_t i) {
  T v;
  std::memcpy(&v, p + i * sizeof(T), sizeof(T));
  return v;
}

template <typename E, typename O>
void Fold(std::span<const std::byte* const> inputs, std::byte* output,
          size_t elements, const Epilogue& finish) {
  using Stored = typename E::Stored;
  using Acc = typename E::Acc;
  Acc acc[kBlock];
  Stored stored[kBlock];
  for (size_t begin = 0; begin < elements; begin += kBlock) {
    const size_t n = std::min(kBlock, elements - begin);
    const size_t offset = begin * sizeof(Stored);
    for (size_t i = 0; i < n; ++i) {
      acc[i] = E::Load(LoadAt<Stored>(inputs[0] + offset, i));
    }
    for (size_t k = 1; k < inputs.size(); ++k) {
      const std::byte* in = inputs[k] + offset;
      for (size_t i = 0; i < n; ++i) {
        acc[i] = O::Of(acc[i], E::Load(LoadAt<Stored>(in, i)));
      }
    }
    Apply(finish, acc, n);
    for (size_t i = 0; i < n; ++i) stored[i] = E::Store(acc[i]);
    std::memcpy(output + offset, stored, n * sizeof(Stored));
  }
}

template <typename E>
void FoldBy(Op op, std::span<const std::byte* const> inputs, std::byte* output,
            size_t elements, const Epilogue& finish) {
  switch (op) {
    case Op::kSum:
    case Op::kAverage:
    case Op::kAdasum:
      return Fold<E, AddOp>(inputs, output, elements, finish);
    case Op::kMin:
      return Fold<E, MinOp>(inputs, output, elements, finish);
    case Op::kMax:
      return Fold<E, MaxOp>(inputs, output, elements, finish);
    case Op::kProduct:
      return Fold<E, MultiplyOp>(inputs, output, elements, finish);
  }
}

template <typename E>
typename E::Acc NeutralOf(Op op) {
  using Acc = typename E::Acc;
  using Limits = std::numeric_limits<Acc>;
  switch (op) {
    case Op::kSum:
    case Op::kAverage:
    case Op::kAdasum:
      return Acc{0};
    case Op::kMin:
      return Limits::has_infinity ? Limits::infinity() : Limits::max();
    case Op::kMax:
      return Limits::has_infinity ? -Limits::infinity() : Limits::lowest();
    case Op::kProduct:
      return Acc{1};
  }
  return Acc{0};
}

// Calls visit(E()) with the reader E of the dtype.
template <typename Visit>
void WithReader(DType dtype, const Visit& visit) {
  switch (dtype) {
    case DType::kUint8:
      return visit(Plain<uint8_t>());
    case DType::kInt8:
      return visit(Plain<int8_t>());
    case DType::kUint16:
      return visit(Plain<uint16_t>());
    case DType::kInt16:
      return visit(Plain<int16_t>());
    case DType::kInt32:
      return visit(Plain<int32_t>());
    case DType::kInt64:
      return visit(Plain<int64_t>());
    case DType::kFloat16:
      return visit(Half());
    case DType::kFloat32:
      return visit(Plain<float>());
    case DType::kFloat64:
      return visit(Plain<double>());
    case DType::kBool:
      return visit(Truth());
    case DType::kBfloat16:
      return visit(Brain());
  }
}

}  // namespace

void ReducePortable(DType dtype, Op op,
                    std::span<const std::byte* const> inputs, std::byte* output,
                    size_t elements, const Epilogue& finish) {
  WithReader(dtype, [&]<typename E>(E) {
    FoldBy<E>(op, inputs, output, elements, finish);
  });
}

void FillNeutral(DType dtype, Op op, std::byte* output, size_t elements) {
  WithReader(dtype, [&]<typename E>(E) {
    const typename E::Stored value = E::Store(NeutralOf<E>(op));
    for (size_t i = 0; i < elements; ++i) {
      std::memcpy(output + i * sizeof(value), &value, sizeof(value));
    }
  });
}

bool HasSimd() {
#if defined(__x86_64__)
  // The first check includes that the system saves the registers. clang 14 does
  // not know all of these names in __builtin_cpu_supports.
  static const bool has = [] {
    unsigned a = 0, b = 0, c = 0, d = 0;
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
           __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0 &&
           (c & bit_AES) != 0;
  }();
  return has;
#elif defined(__aarch64__)
  return true;
#else
  return false;
#endif
}

void ReduceTo(DType dtype, Op op, std::span<const std::byte* const> inputs,
              std::span<std::byte* const> outputs, size_t elements,
              const Epilogue& finish) {
  const ReduceTask task = {
      dtype,          op,       inputs.data(),  inputs.size(), outputs.data(),
      outputs.size(), elements, finish.divisor, finish.scale};
  const size_t done = HasSimd() ? ReduceSimd(task) : 0;
  if (done == elements) return;
  const size_t offset = done * SizeOf(dtype);
  std::vector<const std::byte*> rest(inputs.begin(), inputs.end());
  for (const std::byte*& in : rest) in += offset;
  std::byte* const first = outputs[0] + offset;
  ReducePortable(dtype, op, rest, first, elements - done, finish);
  for (std::byte* out : outputs.subspan(1)) {
    std::memcpy(out + offset, first, (elements - done) * SizeOf(dtype));
  }
}

void Reduce(DType dtype, Op op, std::span<const std::byte* const> inputs,
            std::byte* output, size_t elements, const Epilogue& finish) {
  std::byte* const outputs[] = {output};
  ReduceTo(dtype, op, inputs, outputs, elements, finish);
}

void Scale(DType dtype, const std::byte* input, std::byte* output,
           size_t elements, double factor) {
  ReducePortable(dtype, Op::kSum, {&input, 1}, output, elements, {1, factor});
}

Epilogue EpilogueOf(Op op, double postscale, size_t ranks) {
  return {.divisor = op == Op::kAverage ? static_cast<int64_t>(ranks) : 1,
          .scale = postscale};
}

NodesEpilogue OverNodes(DType dtype, Op op, const Epilogue& finish) {
  NodesEpilogue out{.over_nodes = finish};
  const double factor =
      std::abs(finish.scale) / static_cast<double>(finish.divisor);
  const bool sums = op == Op::kSum || op == Op::kAverage;
  if (dtype != DType::kFloat16 || !sums || !(factor > 0 && factor < 1)) {
    return out;
  }
  const int halvings = -std::ilogb(factor);  // at least the factor's effect
  out.on_node.scale = std::ldexp(1.0, -halvings);
  out.over_nodes.scale = std::ldexp(finish.scale, halvings);
  return out;
}

float HalfToFloat(uint16_t h) {
  const uint32_t sign = static_cast<uint32_t>(h & 0x8000u) << 16;
  const uint32_t exponent = (h >> 10) & 0x1f;
  const uint32_t mantissa = h & 0x3ff;
  if (exponent == 0x1f) {  // infinity, NaN
    return std::bit_cast<float>(sign | 0x7f800000u | mantissa << 13);
  }
  if (exponent == 0) {  // zero, subnormal: mantissa x 2^-24
    const float v = static_cast<float>(mantissa) * 0x1p-24f;
    return sign != 0 ? -v : v;
  }
  return std::bit_cast<float>(sign | (exponent + 112) << 23 | mantissa << 13);
}

uint16_t FloatToHalf(float f) {
  const uint32_t bits = std::bit_cast<uint32_t>(f);
  const uint16_t sign = static_cast<uint16_t>(bits >> 16 & 0x8000u);
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) {  // NaN, quiet, upper payload kept
    return static_cast<uint16_t>(sign | 0x7e00u | (magnitude >> 13 & 0x1ffu));
  }
  if (magnitude >= 0x477ff000u) return sign | 0x7c00u;  // rounds to infinity
  if (magnitude < 0x38800000u) {                        // below 2^-14
    // Adding 0.5 puts the half's last place at the float's last place, so the
    // addition itself rounds to nearest even.
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(shifted) -
                                         std::bit_cast<uint32_t>(0.5f)));
  }
  const uint32_t rounded = magnitude + 0xfffu + (magnitude >> 13 & 1u);
  return static_cast<uint16_t>(sign | ((rounded - (112u << 23)) >> 13));
}

float Bfloat16ToFloat(uint16_t b) {
  return std::bit_cast<float>(static_cast<uint32_t>(b) << 16);
}

uint16_t FloatToBfloat16(float f) {
  const uint32_t bits = std::bit_cast<uint32_t>(f);
  if ((bits & 0x7fffffffu) > 0x7f800000u) {
    return static_cast<uint16_t>(bits >> 16 | 0x40u);  // NaN stays NaN
  }
  return static_cast<uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

}  // namespace maypole
