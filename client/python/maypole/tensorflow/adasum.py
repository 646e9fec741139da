"""Adasum of TensorFlow tensors, by the algorithm of maypole.common.adasum.

Thread contract: that of mpi_ops. All ranks of the set are needed: with one that
has joined, the result is an error.
"""

from collections.abc import Sequence
from typing import Any, Callable, Optional

import tensorflow as tf

from maypole.common import adasum, collectives
from maypole.common.constants import Sum
from maypole.tensorflow import _nodes, mpi_ops
from maypole.tensorflow._library import as_it_is


@as_it_is
def allreduce(tensors: Sequence[Any], name: Optional[str], prescale: float, postscale: float,
              process_set: Any, ignore_name_scope: bool) -> list[Any]:
    """The Adasum of each tensor: [...] floats, the same shapes on all ranks.

    Raises ValueError for other dtypes. Its gradient is the Adasum of the ranks'
    gradients.
    """
    tensors = [tf.convert_to_tensor(tensor) for tensor in tensors]
    if not tensors:
        return []
    collectives.check_name("allreduce", name)  # before names are made of it
    prescale, postscale = collectives.check_factors("allreduce", name, prescale, postscale)
    for tensor in tensors:
        if not tensor.dtype.is_floating:
            raise ValueError(f"allreduce {name or 'of an unnamed tensor'}: Adasum needs a "
                             f"floating point tensor, this one is {tensor.dtype.name}")

    @tf.custom_gradient
    def reduced(*values: Any) -> Any:

        def gradient(*grads: Any) -> Any:
            return allreduce(grads, name and name + ".gradient", prescale, postscale,
                             process_set, ignore_name_scope)

        return _by_dtype(values, lambda group, number: _Group(
            group, name and f"{name}.adasum{number or ''}", prescale * postscale, process_set,
            ignore_name_scope).reduced()), gradient

    return list(reduced(*tensors))


def _by_dtype(values: Sequence[Any],
              function: Callable[[list[Any], int], list[Any]]) -> list[Any]:
    """function(values of one dtype, the group's number), in the values' order."""
    groups: dict[Any, list[int]] = {}
    for i, value in enumerate(values):
        groups.setdefault(value.dtype, []).append(i)
    results = list(values)
    for number, group in enumerate(groups.values()):
        for i, result in zip(group, function([values[i] for i in group], number)):
            results[i] = result
    return results


class _Group:
    """Tensors of one dtype, one after the other: [elements].

    With zeros at the end, so that each rank's slice has `width` elements.
    """

    def __init__(self, tensors: list[Any], name: Optional[str], factor: float,
                 process_set: Any, ignore_name_scope: bool):
        self._tensors = tensors
        self._name = name
        self._factor = factor
        self._process_set = process_set
        self._number = process_set.process_set_id
        self._ignore = ignore_name_scope
        self._ranks = process_set.size()
        self._counts = [tf.size(tensor) for tensor in tensors]
        self._total = tf.add_n(self._counts)
        self._width = -(-self._total // self._ranks)
        # A function may run in a later epoch than it was traced in.
        self._me = _nodes.place("process_set_rank", self._number)

    def reduced(self) -> list[Any]:
        columns = self._exchanged()
        grams = tf.stack([tf.matmul(part, part, transpose_b=True)
                          for part in (tf.cast(c, tf.float64) for c in columns)]
                         + [self._signature()])
        (sums,) = mpi_ops._reduce("Allreduce", [grams], self._part("gram"), Sum, 1.0, 1.0,
                                  self._ignore, self._number)
        with tf.control_dependencies(self._checks(tf.linalg.diag_part(sums[-1]))):
            factors = self._factor * adasum.coefficients(sums[:-1], self._ranks, tf, self._unit)
        own = tf.concat([tf.cast(tf.linalg.matvec(tf.cast(part, tf.float64), factors[i],
                                                  transpose_a=True), part.dtype)
                         for i, part in enumerate(columns)], 0)
        return self._gathered(own)

    def _part(self, what: str) -> Optional[str]:
        return self._name and f"{self._name}.{what}"

    def _exchanged(self) -> list[Any]:
        """Step 1: of each tensor [ranks, this rank's elements of it]."""
        flat = tf.concat([tf.reshape(tensor, [-1]) for tensor in self._tensors], 0)
        rows = tf.reshape(tf.pad(flat, [[0, self._ranks * self._width - self._total]]),
                          [self._ranks, self._width])
        received, _ = _nodes.call(
            "Alltoall", {"tensor": rows, "splits": tf.constant([], tf.int32)},
            {"process_set_id": self._number}, self._part("slices"), self._ignore)
        message = (f"allreduce {self._name or ''}: of {self._ranks} ranks, some have sent nothing: "
                   "one has joined (it has no more inputs), or the job had another number of ranks "
                   "when this function was traced; Adasum needs every rank")
        with tf.control_dependencies([tf.debugging.Assert(
                tf.equal(tf.shape(received)[0], self._ranks), [message])]):
            received = tf.reshape(received, [self._ranks, self._width])
        parts, offset = [], -self._me * self._width
        for count in self._counts:
            first, last = (tf.clip_by_value(at, 0, self._width) for at in (offset, offset + count))
            parts.append(received[:, first:last])
            offset += count
        return parts

    def _signature(self) -> Any:
        """A matrix [ranks, ranks] with a number at this rank's place that depends on the shapes.

        So the sum tells all ranks everyone's.
        """
        own = adasum.signature([tensor.shape.as_list() if tensor.shape.rank is not None else None
                                for tensor in self._tensors])
        return tf.linalg.diag(tf.one_hot(self._me, self._ranks, dtype=tf.float64) * float(own))

    def _checks(self, signatures: Any) -> list[Any]:
        message = (f"allreduce {self._name or ''}: the shapes of two ranks differ; this rank's are "
                   f"{[str(tensor.shape) for tensor in self._tensors]}; Adasum needs the same on "
                   "all ranks")
        return [tf.debugging.Assert(tf.reduce_all(tf.equal(signatures, signatures[0])), [message])]

    def _unit(self, rank: int) -> Any:
        return tf.tile(tf.one_hot([rank], self._ranks, dtype=tf.float64),
                       [len(self._tensors), 1])

    def _gathered(self, own: Any) -> list[Any]:
        """Step 4: `own` is this rank's slice of the results."""
        padded = tf.pad(own, [[0, self._width - tf.size(own)]])
        (flat,) = mpi_ops._group_call("Allgather", [padded], self._part("results"), self._ignore,
                                      {"process_set_id": self._number})
        parts = tf.split(flat[:self._total], self._counts)
        return [tf.ensure_shape(tf.reshape(part, tf.shape(tensor)), tensor.shape)
                for part, tensor in zip(parts, self._tensors)]
