// Reduction kernels, for all element types and operations of common/types.h.
//
// All kernels reduce in the order of `inputs` (the fixed order of ranks), so
// that the result has the same bits wherever it is computed. `output` may be
// one of the inputs; otherwise it must not overlap them.
//
//   float32/64  As the hardware computes. Min and max are NaN if any input is
//               NaN (as in NumPy and torch); between -0 and +0 they choose the
//               first input. If several inputs are NaN, the bits of the
//               resulting NaN are unspecified.
//   float16,    The same, accumulated in float32 and rounded once, to nearest
//   bfloat16    even. Min and max are exact.
//   integers    Sum and product wrap. Factors multiply in float64 and round
//               toward zero; a product outside the dtype's range becomes its
//               nearest limit, NaN becomes 0.
//   bool        Any byte but 0 is true; results are 0 or 1. Sum and max are OR,
//               product and min are AND. Epilogue is ignored (CheckSignature
//               refuses an average).
//
// kAverage adds like kSum; the division is part of Epilogue. kAdasum also adds:
// it is not an elementwise operation (common/reduce/adasum.h).
//
// Thread contract: pure functions.
#ifndef MAYPOLE_COMMON_REDUCE_REDUCE_H_
#define MAYPOLE_COMMON_REDUCE_REDUCE_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "common/types.h"

namespace maypole {

// The last step of every reduction: divide by `divisor` (for an average;
// integers truncate toward zero as in Horovod), then multiply by `scale`;
// integers are rounded once if there are both.
struct Epilogue {
  int64_t divisor = 1;
  double scale = 1.0;
  bool identity() const { return divisor == 1 && scale == 1.0; }
};
// The epilogue of an operation of `ranks` ranks.
Epilogue EpilogueOf(Op op, double postscale, size_t ranks);

// The epilogue of a reduction whose ranks reduce on each node first, and whose
// nodes then reduce these parts: what is done to each part, and what to the
// result. A part is stored in the tensor's dtype, and a sum of float16 may be
// too large for it where its average is not. So parts of such a sum are made
// smaller by a power of two, which changes no bit of what does not overflow and
// is not subnormal.
struct NodesEpilogue {
  Epilogue on_node, over_nodes;
};
NodesEpilogue OverNodes(DType dtype, Op op, const Epilogue& finish);

// output[i] = epilogue(op(op(inputs[0][i], inputs[1][i]), ...)) for i from 0 to
// elements - 1. There must be at least one input.
void Reduce(DType dtype, Op op, std::span<const std::byte* const> inputs,
            std::byte* output, size_t elements, const Epilogue& finish);

// The same, written to every output (at least one). An output may be the same
// array as an input, but must not overlap one partially.
void ReduceTo(DType dtype, Op op, std::span<const std::byte* const> inputs,
              std::span<std::byte* const> outputs, size_t elements,
              const Epilogue& finish);

// The implementation without vector kernels; for tests.
void ReducePortable(DType dtype, Op op,
                    std::span<const std::byte* const> inputs, std::byte* output,
                    size_t elements, const Epilogue& finish);

// Fills `output` with the neutral value, which as one more input of Reduce
// changes no result: 0 (false) for a sum, 1 (true) for a product, the greatest
// value (infinity, true) for a min, the least (-infinity, false) for a max. The
// only exception: a sum of -0 becomes +0.
void FillNeutral(DType dtype, Op op, std::byte* output, size_t elements);

// output[i] = input[i] * factor; not for bool. `output` may be `input`.
void Scale(DType dtype, const std::byte* input, std::byte* output,
           size_t elements, double factor);

// Conversions of IEEE half and bfloat16. They round to nearest even; NaN stays
// NaN.
float HalfToFloat(uint16_t h);
uint16_t FloatToHalf(float f);
float Bfloat16ToFloat(uint16_t b);
uint16_t FloatToBfloat16(float f);

}  // namespace maypole

#endif  // MAYPOLE_COMMON_REDUCE_REDUCE_H_
