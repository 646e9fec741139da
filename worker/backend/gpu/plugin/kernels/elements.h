// How kernels load, combine and store elements of a type, by the rules of
// common/reduce/reduce.h.
//
// Invariants: the results have the same bits as those of common/reduce, except
// for the bits of a NaN; shares_test compares them. 16-bit types are
// accumulated in float32.
#ifndef MAYPOLE_WORKER_BACKEND_GPU_PLUGIN_KERNELS_ELEMENTS_H_
#define MAYPOLE_WORKER_BACKEND_GPU_PLUGIN_KERNELS_ELEMENTS_H_

#include <cstdint>

#include "worker/backend/gpu/plugin/kernels/share.h"

#ifdef __CUDACC__
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#else
#include "common/reduce/reduce.h"
#endif

namespace maypole::gpu::plugin {

template <typename T>
struct Plain {
  using Stored = T;
  using Accumulator = T;
  static MAYPOLE_SHARE T Load(T v) { return v; }
  static MAYPOLE_SHARE T Store(T v) { return v; }
};

struct Half {
  using Stored = uint16_t;
  using Accumulator = float;
#ifdef __CUDACC__
  static MAYPOLE_SHARE float Load(uint16_t v) {
    return __half2float(__ushort_as_half(v));
  }
  static MAYPOLE_SHARE uint16_t Store(float v) {
    return __half_as_ushort(__float2half_rn(v));
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
  static MAYPOLE_SHARE float Load(uint16_t v) {
    return __uint_as_float(static_cast<uint32_t>(v) << 16);
  }
  static MAYPOLE_SHARE uint16_t Store(float v) {
    return __bfloat16_as_ushort(__float2bfloat16_rn(v));
  }
#else
  static float Load(uint16_t v) { return Bfloat16ToFloat(v); }
  static uint16_t Store(float v) { return FloatToBfloat16(v); }
#endif
};

struct Add {
  template <typename T>
  static MAYPOLE_SHARE T Of(T a, T b) {
    return a + b;
  }
};

// The second condition selects a NaN in b; a NaN in a stays, because no
// comparison with it is true. Of two equal zeros, the first stays.
struct Min {
  template <typename T>
  static MAYPOLE_SHARE T Of(T a, T b) {
    return b < a || b != b ? b : a;
  }
};

struct Max {
  template <typename T>
  static MAYPOLE_SHARE T Of(T a, T b) {
    return b > a || b != b ? b : a;
  }
};

}  // namespace maypole::gpu::plugin

#endif  // MAYPOLE_WORKER_BACKEND_GPU_PLUGIN_KERNELS_ELEMENTS_H_
