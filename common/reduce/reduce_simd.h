// Vector kernels of common/reduce/reduce.h, for processors that have them.
//
// This header includes as little as possible: the file that implements it is
// compiled for AVX2 on x86, and if that file contained an inline function of a
// shared header, the linker might use its copy everywhere (see reduce_simd.cc).
#ifndef MAYPOLE_COMMON_REDUCE_REDUCE_SIMD_H_
#define MAYPOLE_COMMON_REDUCE_REDUCE_SIMD_H_

#include <cstddef>
#include <cstdint>

#include "common/types.h"

namespace maypole {

// The arguments of ReduceTo(); divisor and scale are its Epilogue.
struct ReduceTask {
  DType dtype;
  Op op;
  const std::byte* const* inputs;
  size_t input_count;
  std::byte* const* outputs;
  size_t output_count;
  size_t elements;
  int64_t divisor;
  double scale;
};

// Like ReduceTo(), with the same bits except in NaNs, but only for the leading
// elements. Returns how many it has reduced (0 if it does not support the
// dtype, operation or epilogue). Call only if HasSimd().
size_t ReduceSimd(const ReduceTask& task);

// True if the processor has what ReduceSimd() was compiled for:
//
//   x86-64    Highway's target AVX2, which includes FMA, F16C and AES;
//             processors have it since 2013
//   aarch64 NEON, which all of them have
bool HasSimd();

}  // namespace maypole

#endif  // MAYPOLE_COMMON_REDUCE_REDUCE_SIMD_H_
