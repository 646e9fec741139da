// Adasum: a sum that adapts to how much the ranks' tensors agree.
//
// After Maleki et al., "Scaling Distributed Training with Adaptive Summation"
// (arXiv:2006.02924). For two ranks
//
//   adasum(a, b) = (1 - a.b / 2|a|^2) a + (1 - a.b / 2|b|^2) b
//
// which is the sum of orthogonal tensors and the average of equal ones. More
// ranks are combined in a binary tree: the first 2^k ranks (the largest power
// of two below their number) with the rest, each part likewise. For 4 ranks
// this is adasum(adasum(0, 1), adasum(2, 3)).
//
// The tree needs no exchange of intermediate tensors. Every node of it is a
// linear combination of the ranks' tensors, so its dot products follow from
// those of the ranks' tensors, which are a small matrix:
//
//   std::vector<double> products(ranks * ranks); AdasumProducts(dtype, rows,
//   elements, products.data()); // For a tensor cut into slices: the sum of the
//   slices' products. AdasumCombine(dtype, rows, AdasumFactors(products,
//   ranks), elements, out);
//
// All is computed in float64 and rounded once, to the tensors' dtype.
//
// Thread contract: pure functions.
#ifndef MAYPOLE_COMMON_REDUCE_ADASUM_H_
#define MAYPOLE_COMMON_REDUCE_ADASUM_H_

#include <cstddef>
#include <span>
#include <vector>

#include "common/types.h"

namespace maypole {

// True for the dtypes that the functions below support.
bool HasAdasum(DType dtype);

// The dot products of all pairs of the ranks' rows: ranks x ranks numbers. A
// row that is null counts as zeros. Rows may be unaligned.
void AdasumProducts(DType dtype, std::span<const std::byte* const> rows,
                    size_t elements, double* products);

// The factors of the ranks' tensors in their Adasum.
std::vector<double> AdasumFactors(std::span<const double> products,
                                  size_t ranks);

// output = the sum of the rows, each times its factor. `output` must not
// overlap a row.
void AdasumCombine(DType dtype, std::span<const std::byte* const> rows,
                   std::span<const double> factors, size_t elements,
                   std::byte* output);

}  // namespace maypole

#endif  // MAYPOLE_COMMON_REDUCE_ADASUM_H_
