"""Adasum: a sum that adapts to how much the ranks' tensors agree.

After Maleki et al., "Scaling Distributed Training with Adaptive Summation"
(arXiv:2006.02924). For two ranks

    adasum(a, b) = (1 - a.b / 2|a|^2) a + (1 - a.b / 2|b|^2) b

which is the sum of orthogonal tensors and the average of equal ones. More ranks
are combined in a binary tree: the first ranks, as many as the largest power of
two that is smaller than their number, with the rest, each part likewise. For 4
ranks this is adasum(adasum(0, 1), adasum(2, 3)). Each tensor has its own
coefficients.

The tree needs no exchange of intermediate tensors. Every node of it is a linear
combination of the ranks' tensors, so its dot products follow from those of the
ranks' tensors (the Gram matrix). Hence:

    1. alltoall: each rank gets one slice of every rank's tensors;
    2. allreduce: sums the slices' Gram matrices, in float64, which are tiny;
    3. each rank computes the coefficients and its slice of the result;
    4. allgather: the slices of the result.

The data of 1 and 4 together are those of one allreduce, for any number of
ranks. The result is bit-equal on all ranks, because one rank computes each of
its elements. All tensors of one dtype and device travel in one operation.

The bindings do that with their tensors; here is what follows from the matrices.
Pure: no communication, no framework.
"""

from typing import Any, Callable

# A combination whose squared norm is this small against its parts' is zero.
_ZERO = 1e-13


def coefficients(gram: Any, ranks: int, module: Any, unit: Callable[[int], Any]) -> Any:
    """The factors of the ranks' tensors in their Adasum.

    gram: [tensors, ranks, ranks] in float64, the dot products of the ranks'
    tensors. module: the framework's, with einsum(), where() and ones_like().
    unit(i): [tensors, ranks], zeros but for ones in column i. Returns [tensors,
    ranks].
    """

    def dot(a: Any, b: Any) -> Any:
        return module.einsum("ti,tij,tj->t", a, gram, b)

    def factor(product: Any, a: Any) -> Any:
        norm = dot(a, a)
        parts = module.einsum("ti,tii->t", a * a, gram)
        # Written so that NaN is not zero.
        zero = norm <= _ZERO * parts
        return module.where(zero, module.ones_like(norm), 1 - product / (2 * norm))[:, None]

    def tree(first: int, end: int) -> Any:
        count = end - first
        if count == 1:
            return unit(first)
        middle = first + (1 << ((count - 1).bit_length() - 1))
        a, b = tree(first, middle), tree(middle, end)
        product = dot(a, b)
        return factor(product, a) * a + factor(product, b) * b

    return tree(0, ranks)
