// Vector kernels of common/reduce.h, for processors that have them.
#ifndef MAYPOLE_COMMON_REDUCE_SIMD_H_
#define MAYPOLE_COMMON_REDUCE_SIMD_H_

#include <cstddef>
#include <span>

#include "common/reduce.h"

namespace maypole {

// As Sum(), bit for bit, for the leading elements; returns how many it has
// done (0: none of this dtype or finish). Call only if HasAvx2().
size_t SumAvx2(DType dtype, std::span<const std::byte* const> inputs,
               std::span<std::byte* const> outputs, size_t elements,
               const Finish& finish);

// What Highway's target AVX2 needs: FMA, F16C, AES too; x86 processors since
// 2013.
bool HasAvx2();

}  // namespace maypole

#endif  // MAYPOLE_COMMON_REDUCE_SIMD_H_
