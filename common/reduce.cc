#include "common/reduce.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <type_traits>
#include <vector>

#include "common/reduce_simd.h"

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
  static Acc Add(Acc a, Acc b) {
    if constexpr (std::is_integral_v<T>) {
      using U = std::make_unsigned_t<T>;  // wraps, without overflow's UB
      return static_cast<T>(
          static_cast<U>(static_cast<U>(a) + static_cast<U>(b)));
    } else {
      return a + b;
    }
  }
};

struct Half {
  using Stored = uint16_t;
  using Acc = float;
  static Acc Load(Stored v) { return HalfToFloat(v); }
  static Stored Store(Acc v) { return FloatToHalf(v); }
  static Acc Add(Acc a, Acc b) { return a + b; }
};

struct Brain {
  using Stored = uint16_t;
  using Acc = float;
  static Acc Load(Stored v) { return Bfloat16ToFloat(v); }
  static Stored Store(Acc v) { return FloatToBfloat16(v); }
  static Acc Add(Acc a, Acc b) { return a + b; }
};

template <typename Acc>
void Apply(const Finish& finish, Acc* acc, size_t n) {
  if (finish.divisor != 1) {
    if constexpr (std::is_integral_v<Acc>) {
      for (size_t i = 0; i < n; ++i) {
        acc[i] = static_cast<Acc>(acc[i] / finish.divisor);
      }
    } else {
      const Acc d = static_cast<Acc>(finish.divisor);
      for (size_t i = 0; i < n; ++i) acc[i] /= d;
    }
  }
  if constexpr (!std::is_integral_v<Acc>) {
    if (finish.scale != 1.0) {
      const Acc s = static_cast<Acc>(finish.scale);
      for (size_t i = 0; i < n; ++i) acc[i] *= s;
    }
  }
}

// Elements may lie at any address: an application's buffers are not ours.
template <typename T>
T LoadAt(const std::byte* p, size_t i) {
  T v;
  std::memcpy(&v, p + i * sizeof(T), sizeof(T));
  return v;
}

template <typename E>
void SumOf(std::span<const std::byte* const> inputs, std::byte* output,
           size_t elements, const Finish& finish) {
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
        acc[i] = E::Add(acc[i], E::Load(LoadAt<Stored>(in, i)));
      }
    }
    Apply(finish, acc, n);
    for (size_t i = 0; i < n; ++i) stored[i] = E::Store(acc[i]);
    std::memcpy(output + offset, stored, n * sizeof(Stored));
  }
}

template <typename E>
void ScaleOf(const std::byte* input, std::byte* output, size_t elements,
             double factor) {
  const std::byte* inputs[] = {input};
  SumOf<E>(inputs, output, elements, Finish{1, factor});
}

}  // namespace

void SumPortable(DType dtype, std::span<const std::byte* const> inputs,
                 std::byte* output, size_t elements, const Finish& finish) {
  switch (dtype) {
    case DType::kUint8:
    case DType::kBool:
      return SumOf<Plain<uint8_t>>(inputs, output, elements, finish);
    case DType::kInt8:
      return SumOf<Plain<int8_t>>(inputs, output, elements, finish);
    case DType::kUint16:
      return SumOf<Plain<uint16_t>>(inputs, output, elements, finish);
    case DType::kInt16:
      return SumOf<Plain<int16_t>>(inputs, output, elements, finish);
    case DType::kInt32:
      return SumOf<Plain<int32_t>>(inputs, output, elements, finish);
    case DType::kInt64:
      return SumOf<Plain<int64_t>>(inputs, output, elements, finish);
    case DType::kFloat16:
      return SumOf<Half>(inputs, output, elements, finish);
    case DType::kFloat32:
      return SumOf<Plain<float>>(inputs, output, elements, finish);
    case DType::kFloat64:
      return SumOf<Plain<double>>(inputs, output, elements, finish);
    case DType::kBfloat16:
      return SumOf<Brain>(inputs, output, elements, finish);
  }
}

bool HasAvx2() {
#if defined(__x86_64__)
  static const bool has =
      __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
      __builtin_cpu_supports("f16c") && __builtin_cpu_supports("aes");
  return has;
#else
  return false;
#endif
}

void SumTo(DType dtype, std::span<const std::byte* const> inputs,
           std::span<std::byte* const> outputs, size_t elements,
           const Finish& finish) {
  const SumTask task = {dtype,          inputs.data(),  inputs.size(),
                        outputs.data(), outputs.size(), elements,
                        finish.divisor, finish.scale};
  const size_t done = HasAvx2() ? SumAvx2(task) : 0;
  if (done == elements) return;
  const size_t offset = done * SizeOf(dtype);
  std::vector<const std::byte*> rest(inputs.begin(), inputs.end());
  for (const std::byte*& in : rest) in += offset;
  std::byte* const first = outputs[0] + offset;
  SumPortable(dtype, rest, first, elements - done, finish);
  for (std::byte* out : outputs.subspan(1)) {
    std::memcpy(out + offset, first, (elements - done) * SizeOf(dtype));
  }
}

void Sum(DType dtype, std::span<const std::byte* const> inputs,
         std::byte* output, size_t elements, const Finish& finish) {
  std::byte* const outputs[] = {output};
  SumTo(dtype, inputs, outputs, elements, finish);
}

void Scale(DType dtype, const std::byte* input, std::byte* output,
           size_t elements, double factor) {
  switch (dtype) {
    case DType::kFloat16:
      return ScaleOf<Half>(input, output, elements, factor);
    case DType::kFloat32:
      return ScaleOf<Plain<float>>(input, output, elements, factor);
    case DType::kFloat64:
      return ScaleOf<Plain<double>>(input, output, elements, factor);
    case DType::kBfloat16:
      return ScaleOf<Brain>(input, output, elements, factor);
    default:  // CheckSignature refuses factors for integers
      if (input != output)
        std::memmove(output, input, elements * SizeOf(dtype));
  }
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
