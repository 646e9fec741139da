// Reduction kernels.
//
// All of them reduce in the order of `inputs` (fixed rank order), so that the
// result has the same bits wherever it is computed. float16 and bfloat16
// accumulate in float32 and round once, to nearest even. Integers wrap.
// `output` may be one of the inputs; otherwise they must not overlap.
//
// Thread contract: pure functions.
#ifndef MAYPOLE_COMMON_REDUCE_H_
#define MAYPOLE_COMMON_REDUCE_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "common/types.h"

namespace maypole {

// Last step of a reduction: divide by `divisor` (average; integers truncate
// toward zero as Horovod's do), then multiply by `scale` (floats only).
struct Finish {
  int64_t divisor = 1;
  double scale = 1.0;
  bool identity() const { return divisor == 1 && scale == 1.0; }
};

// output[i] = finish(inputs[0][i] + inputs[1][i] + ...), `elements` long.
// At least one input.
void Sum(DType dtype, std::span<const std::byte* const> inputs,
         std::byte* output, size_t elements, const Finish& finish);

// The same, written to every output (at least one); none of them may overlap
// an input but as a whole.
void SumTo(DType dtype, std::span<const std::byte* const> inputs,
           std::span<std::byte* const> outputs, size_t elements,
           const Finish& finish);

// What Sum and SumTo do where there are no vector kernels; for tests.
void SumPortable(DType dtype, std::span<const std::byte* const> inputs,
                 std::byte* output, size_t elements, const Finish& finish);

// output[i] = input[i] * factor, floats only; output may be input.
void Scale(DType dtype, const std::byte* input, std::byte* output,
           size_t elements, double factor);

// IEEE half and bfloat16, to nearest even; NaN stays NaN.
float HalfToFloat(uint16_t h);
uint16_t FloatToHalf(float f);
float Bfloat16ToFloat(uint16_t b);
uint16_t FloatToBfloat16(float f);

}  // namespace maypole

#endif  // MAYPOLE_COMMON_REDUCE_H_
