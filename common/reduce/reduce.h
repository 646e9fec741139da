// Reduction kernels, for all element types and operations of common/types.h.
//
// All of them reduce in the order of `inputs` (fixed rank order), so that the
// result has the same bits wherever it is computed. `output` may be one of the
// inputs; otherwise they must not overlap.
//
//   float32/64  As the hardware does. Min and max give NaN if any input is NaN
//               (as NumPy and torch do), and of equal zeros (-0, +0) the one of
//               the first input. Which of several NaNs' bits a result has is
//               not said.
//   float16,    The same, accumulated in float32 and rounded once, to nearest
//   bfloat16    even. Min and max are exact.
//   integers    Sum and product wrap.
//   bool        Any byte but 0 is true, results are 0 or 1. Sum and max are or,
//               product and min are and. Epilogue is ignored (CheckSignature
//               refuses an average).
//
// kAverage adds as kSum does: its division is Epilogue's. So does kAdasum,
// which is not an operation on elements: how to pair what was added is the
// caller's.
//
// Thread contract: pure functions.
#ifndef MAYPOLE_COMMON_REDUCE_REDUCE_H_
#define MAYPOLE_COMMON_REDUCE_REDUCE_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "common/types.h"

namespace maypole {

// Last step of a reduction, whatever the operation: divide by `divisor`
// (average; integers truncate toward zero as Horovod's do), then multiply by
// `scale` (floats only).
struct Epilogue {
  int64_t divisor = 1;
  double scale = 1.0;
  bool identity() const { return divisor == 1 && scale == 1.0; }
};

// output[i] = finish(op(op(inputs[0][i], inputs[1][i]), ...)), `elements` long.
// At least one input.
void Reduce(DType dtype, Op op, std::span<const std::byte* const> inputs,
            std::byte* output, size_t elements, const Epilogue& finish);

// The same, written to every output (at least one); none of them may overlap
// an input but as a whole.
void ReduceTo(DType dtype, Op op, std::span<const std::byte* const> inputs,
              std::span<std::byte* const> outputs, size_t elements,
              const Epilogue& finish);

// What Reduce and ReduceTo do where there are no vector kernels; for tests.
void ReducePortable(DType dtype, Op op,
                    std::span<const std::byte* const> inputs, std::byte* output,
                    size_t elements, const Epilogue& finish);

// Fills `output` with what changes nothing when it is one more input of
// Reduce: for a sum 0 (false), for a product 1 (true), for a min the greatest
// value (infinity, true), for a max the least (-infinity, false). Only -0 does
// not stay what it was, in a sum.
void FillNeutral(DType dtype, Op op, std::byte* output, size_t elements);

// output[i] = input[i] * factor, floats only; output may be input.
void Scale(DType dtype, const std::byte* input, std::byte* output,
           size_t elements, double factor);

// IEEE half and bfloat16, to nearest even; NaN stays NaN.
float HalfToFloat(uint16_t h);
uint16_t FloatToHalf(float f);
float Bfloat16ToFloat(uint16_t b);
uint16_t FloatToBfloat16(float f);

}  // namespace maypole

#endif  // MAYPOLE_COMMON_REDUCE_REDUCE_H_
