"""Adasum of arrays, by the algorithm of maypole.common.adasum.

One array at a time; it blocks.

Thread contract: any thread; one thread at a time per name.
"""

from typing import Any, Optional

import numpy as np

from maypole.arrays import _submissions
from maypole.common import adasum, collectives, operations
from maypole.common.constants import Sum
from maypole.common.process_sets import id_of

_FLOATS = ("float16", "bfloat16", "float32", "float64")


def allreduce(value: Any, name: Optional[str], prescale: float,
              postscale: float, process_set: Any, in_place: bool) -> Any:
    """The Adasum of the ranks' arrays, as a new array or in `value`.

    Raises ValueError for an array that is not of a floating dtype,
    HorovodInternalError if shapes differ between ranks or a rank has joined.
    """
    array = _submissions.as_array(value, "allreduce", name, in_place)
    if array.dtype.name not in _FLOATS:
        raise ValueError(f"{collectives.title('allreduce', name)}: Adasum needs "
                         f"a floating point array, this one is {array.dtype}")
    prescale, postscale = collectives.check_factors("allreduce", name, prescale,
                                                    postscale)
    number = id_of(process_set)
    result = _Reduction(array, name or collectives.next_name("adasum", number),
                        prescale * postscale, process_set, number).result()
    if not in_place:
        return result
    array[...] = result
    return value


class _Reduction:

    def __init__(self, array: np.ndarray, name: str, factor: float,
                 process_set: Any, number: int):
        self._array = array
        self._name = f"{name}.adasum"
        self._factor = factor
        self._set = number
        self._ranks = process_set.size()
        self._me = process_set.rank()

    def result(self) -> np.ndarray:
        flat = self._array.reshape(-1)
        splits = [len(flat) // self._ranks + (r < len(flat) % self._ranks)
                  for r in range(self._ranks)]
        rows, received = self._now(_submissions.alltoall(
            flat, splits, self._name, self._set, True))
        # Of a rank that has joined, or has another shape, nothing is used; see
        # adasum.check_shapes().
        mine = np.zeros((self._ranks, splits[self._me]))
        starts = np.cumsum(received) - received
        for row, start, count in zip(mine, starts, received):
            if count == len(row):
                row[:] = rows[start:start + count]
        gram, signatures = self._summed(np.stack([mine @ mine.T, self._signature()]))
        if not signatures.diagonal().all():
            raise adasum.joined(self._name)
        adasum.check_shapes(self._name, signatures.diagonal().tolist(), [list(self._array.shape)])
        factors = adasum.coefficients(gram[np.newaxis], self._ranks, np,
                                      lambda r: np.eye(self._ranks)[r:r + 1])
        own = (self._factor * factors[0] @ mine).astype(self._array.dtype)
        gathered = self._now(_submissions.allgather(
            own, self._name, self._set, True))
        return gathered.reshape(self._array.shape)

    def _summed(self, matrices: np.ndarray) -> np.ndarray:
        # The scale factors are here so that ranks that give different ones get
        # an error, and are taken out again.
        return self._now(_submissions.allreduce(
            matrices, self._name, Sum, 1.0, self._factor or 1.0, self._set,
            False, True)) / (self._factor or 1.0)

    @staticmethod
    def _now(pending: operations.Pending) -> Any:
        return operations.start(pending).wait()

    def _signature(self) -> np.ndarray:
        """A matrix with a number at this rank's place that depends on the shape.

        So the sum tells all ranks everyone's.
        """
        matrix = np.zeros((self._ranks, self._ranks))
        matrix[self._me, self._me] = adasum.signature(self._array.shape)
        return matrix
