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

The bindings do that with their tensors; here is what follows from the matrices,
and how the ranks learn whether all have tensors of the same shapes: each adds
signature() at its place of the diagonal of one more matrix in step 2.
Pure: no communication, no framework.
"""

import zlib
from collections.abc import Sequence
from typing import Any, Callable

from maypole import _native
from maypole.common.exceptions import HorovodInternalError, from_status

# A combination whose squared norm is this small against its parts' is zero.
_ZERO = 1e-13


def signature(shapes: Any) -> int:
    """A positive number that depends on the shapes, exact in float64."""
    return 1 + zlib.crc32(repr(shapes).encode())


def check_shapes(name: str, signatures: Sequence[float], shapes: Any) -> None:
    """Raises HorovodInternalError on all ranks, or on none, if the ranks' shapes differ.

    A rank that has joined has signature 0, which is no difference: see joined().

    Args:
        name: of the operation.
        signatures: by rank, after step 2.
        shapes: this rank's, for the text.
    """
    numbers = [round(number) for number in signatures]
    first = numbers.index(max(numbers))
    for rank, number in enumerate(numbers):
        if number not in (0, numbers[first]):
            raise from_status(
                _native.FAILED_PRECONDITION,
                f"allreduce {name!r}: the shapes of ranks {rank} and {first} of the process set differ; "
                f"this rank's are {shapes}; Adasum needs the same on all ranks")


def joined(name: str) -> HorovodInternalError:
    """The error of all ranks after a rank has joined."""
    return HorovodInternalError(
        f"allreduce {name!r}: a rank has joined (it has no more inputs), and Adasum needs every rank; "
        "use Average or Sum")


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
