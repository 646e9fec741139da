// Vector kernels of common/reduce/reduce.h, for processors that have them.
//
// Plain on purpose: what includes this is compiled for such processors, and an
// inline function of a shared header in it could be the copy that the linker
// keeps for all (see reduce_avx2.cc).
#ifndef MAYPOLE_COMMON_REDUCE_REDUCE_SIMD_H_
#define MAYPOLE_COMMON_REDUCE_REDUCE_SIMD_H_

#include <cstddef>
#include <cstdint>

#include "common/types.h"

namespace maypole {

// A call of ReduceTo(), see there; divisor and scale are its Epilogue.
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

// As ReduceTo(), bit for bit but for NaN's, for the leading elements; returns
// how many it has done (0: none of this dtype, operation or finish). Call only
// if HasAvx2().
size_t ReduceAvx2(const ReduceTask& task);

// What Highway's target AVX2 needs: FMA, F16C, AES too; x86 processors since
// 2013.
bool HasAvx2();

}  // namespace maypole

#endif  // MAYPOLE_COMMON_REDUCE_REDUCE_SIMD_H_
