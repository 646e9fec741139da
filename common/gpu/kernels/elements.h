// How kernels load, combine and store elements of a type, by the rules of
// common/reduce/reduce.h.
//
// Purpose: an element type E converts an element in memory (Stored) to the type
// for computing (Accumulator) and back; an operation O combines two
// accumulators and says whether the result is divided at the end.
//
// Thread contract: pure functions.
//
// Invariants: the results have the same bits as those of common/reduce, except
// for the bits of a NaN (reduce_kernel_test compares them). This needs a
// compiler that neither fuses a multiplication and an addition nor flushes
// subnormals: nvcc's option -fmad=false (code_test checks).
#ifndef MAYPOLE_COMMON_GPU_KERNELS_ELEMENTS_H_
#define MAYPOLE_COMMON_GPU_KERNELS_ELEMENTS_H_

#ifndef __CUDACC__
#include <bit>
#endif
#include <cstdint>
#include <type_traits>

#include "common/gpu/kernels/arguments.h"
#include "common/gpu/kernels/device.h"

namespace maypole::cuda {

template <typename T>
struct Plain {
  using Stored = T;
  using Accumulator = T;
  static MAYPOLE_DEVICE T Load(T v) { return v; }
  static MAYPOLE_DEVICE T Store(T v) { return v; }
};

// The hardware's conversions, written here because cuda_fp16.h takes longer to
// compile than all kernels of a type.
struct Half {
  using Stored = uint16_t;
  using Accumulator = float;
#ifdef __CUDACC__
  static MAYPOLE_DEVICE float Load(uint16_t v) {
    float f;
    asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(v));
    return f;
  }
  static MAYPOLE_DEVICE uint16_t Store(float v) {
    uint16_t h;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(v));
    return h;
  }
#else
  static float Load(uint16_t v) { return HalfToFloat(v); }
  static uint16_t Store(float v) { return FloatToHalf(v); }
#endif
};

struct Brain {
  using Stored = uint16_t;
  using Accumulator = float;
#ifdef __CUDACC__
  static MAYPOLE_DEVICE float Load(uint16_t v) {
    return __uint_as_float(static_cast<uint32_t>(v) << 16);
  }
  static MAYPOLE_DEVICE uint16_t Store(float v) {
#if __CUDA_ARCH__ >= 800
    uint16_t b;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(b) : "f"(v));
    return b;
#else
    return Rounded(__float_as_uint(v));
#endif
  }
#else
  static float Load(uint16_t v) { return Bfloat16ToFloat(v); }
  static uint16_t Store(float v) { return Rounded(std::bit_cast<uint32_t>(v)); }
#endif
  // The upper half of a float's bits, rounded to nearest, ties to even: no
  // instruction before 8.0 does it. A NaN stays one.
  static MAYPOLE_DEVICE uint16_t Rounded(uint32_t bits) {
    if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fff;
    return static_cast<uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
  }
};

// Any byte but 0 is true.
struct Truth {
  using Stored = uint8_t;
  using Accumulator = bool;
  static MAYPOLE_DEVICE bool Load(uint8_t v) { return v != 0; }
  static MAYPOLE_DEVICE uint8_t Store(bool v) { return v ? 1 : 0; }
};

// Unsigned, and not promoted to int: overflow is defined, and wraps.
template <typename T>
using Wrapping = std::common_type_t<std::make_unsigned_t<T>, unsigned>;

struct Sum {
  static constexpr bool kDivides = false;
  template <typename T>
  static MAYPOLE_DEVICE T Of(T a, T b) {
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

struct Average : Sum {
  static constexpr bool kDivides = true;
};

struct Product {
  static constexpr bool kDivides = false;
  template <typename T>
  static MAYPOLE_DEVICE T Of(T a, T b) {
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

// The second condition selects a NaN in b; a NaN in a stays, because no
// comparison with it is true. Of two equal zeros, the first stays.
struct Min {
  static constexpr bool kDivides = false;
  template <typename T>
  static MAYPOLE_DEVICE T Of(T a, T b) {
    return b < a || b != b ? b : a;
  }
};

struct Max {
  static constexpr bool kDivides = false;
  template <typename T>
  static MAYPOLE_DEVICE T Of(T a, T b) {
    return b > a || b != b ? b : a;
  }
};

template <typename E>
inline constexpr bool kIsFloat =
    std::is_floating_point_v<typename E::Accumulator>;

// The first step, for floats. The CPU stores the product before it reduces, so
// it is rounded to the stored type.
template <typename E>
MAYPOLE_DEVICE typename E::Accumulator Prescaled(
    typename E::Accumulator v, const ReduceArguments& arguments) {
  using Accumulator = typename E::Accumulator;
  return E::Load(E::Store(v * static_cast<Accumulator>(arguments.prescale)));
}

// The last step: divides (integers truncate toward zero), then multiplies
// (floats only). A factor of 1 changes no bit.
template <typename E, typename O>
MAYPOLE_DEVICE typename E::Accumulator Finished(
    typename E::Accumulator v, const ReduceArguments& arguments) {
  using Accumulator = typename E::Accumulator;
  if constexpr (O::kDivides) {
    if constexpr (kIsFloat<E>) {
      v = v / static_cast<Accumulator>(arguments.divisor);
    } else {  // smaller types are promoted to int
      v = static_cast<Accumulator>(v / arguments.divisor);
    }
  }
  if constexpr (kIsFloat<E>) v *= static_cast<Accumulator>(arguments.postscale);
  return v;
}

}  // namespace maypole::cuda

#endif  // MAYPOLE_COMMON_GPU_KERNELS_ELEMENTS_H_
