"""Gradients of Keras on TensorFlow, dense ones and those of embeddings.

In a graph each gradient has its own operation, which runs as soon as the gradient is ready,
while others are being computed. Eagerly all dense gradients are one operation, for which the
program waits.

Thread contract: as Reduction's.
"""

import weakref
from collections.abc import Sequence
from typing import Any, Callable, Optional

import tensorflow as tf

import maypole.tensorflow as hvd
from maypole._keras.gradients import BackendGradients
from maypole._keras.variables import name_of
from maypole.tensorflow import _equal_weights, _gradient_layouts, _nodes
from maypole.tensorflow.util import tf_variable


class Gradients(BackendGradients):
    """See BackendGradients."""

    def __init__(self) -> None:
        self._counter: Optional[_equal_weights.StepCounter] = None

    def complete(self, reduction: Any, grads: Sequence[Any], prefix: str, indices: Sequence[int],
                 variables: Sequence[Any]) -> list[Any]:
        """As in the base class; the ranks exchange this when a graph is made, or in each step that is not compiled.

        Raises ValueError, on all ranks, if ranks have other variables.
        """
        del prefix  # ranks with other variables have another prefix
        return _gradient_layouts.completed(
            f"keras.{reduction.name}", reduction.process_set, grads, variables,
            [f"variable {i}{name_of(variable)}" for i, variable in zip(indices, variables)], reduction.sparse_as_dense)

    def reduce(self, reduction: Any, grads: Sequence[Any], prefix: str, indices: Sequence[int],
               own: bool, postscale: float) -> list[Any]:
        if reduction.sparse_as_dense:
            grads = [tf.convert_to_tensor(g) for g in grads]
        dense = [not isinstance(g, tf.IndexedSlices) for g in grads]
        if not tf.executing_eagerly() or not all(dense):
            return [
                hvd.allreduce(grad, op=reduction.op, compression=reduction.compression,
                              prescale_factor=reduction.prescale, postscale_factor=postscale,
                              name=f"{prefix}.{i}", process_set=reduction.process_set,
                              ignore_name_scope=True) for grad, i in zip(grads, indices)
            ]
        return hvd.grouped_allreduce(
            list(grads), op=reduction.op, compression=reduction.compression,
            prescale_factor=reduction.prescale, postscale_factor=postscale,
            process_set=reduction.process_set, name=prefix, ignore_name_scope=True)

    def smallest(self, reduction: Any, value: Any, name: str) -> Any:
        least = hvd.allreduce(tf.cast(value, tf.int32), op=hvd.Min, name=name,
                              process_set=reduction.process_set, ignore_name_scope=True)
        return tf.cast(least, tf.bool)

    def computed(self, loss: Any, variables: Any, grad_loss: Any, tape: Any) -> list[Any]:
        tape = tape or tf.GradientTape()
        if callable(loss):
            with tape:
                loss = loss()
        variables = list(variables() if callable(variables) else variables)
        return list(zip(tape.gradient(loss, variables, grad_loss), variables))

    def not_from(self, reduction: Any, grads: Sequence[Any], reduced: Sequence[Any], name: str,
                 variables: Sequence[Any]) -> list[bool]:
        if tf.executing_eagerly():
            return super().not_from(reduction, grads, reduced, name, variables)
        return [before is None or not _comes_from(_tensor(grad).op, _tensor(before).op)
                for grad, before in zip(grads, reduced)]

    def values(self, grad: Any) -> Any:
        return _tensor(grad).numpy()

    def can_compare(self) -> bool:
        return _equal_weights.is_possible()

    def compared(self, optimizer: Any, reduction: Any, variables: Sequence[Any],
                 facts_of: Callable[[Sequence[Any]], Any], name: str) -> Any:
        if self._counter is None:
            self._counter = _equal_weights.StepCounter("DistributedOptimizer")
        name = f"{name}.{_nodes.count_use(name)}"
        return tf.control_dependencies(self._counter.count([tf_variable(v) for v in variables], facts_of, name,
                                                           reduction.process_set))

    def outside(self) -> Any:
        return tf.init_scope()

    def place(self) -> Any:
        return None if tf.executing_eagerly() else weakref.ref(tf.compat.v1.get_default_graph())

    def scaled(self, grad: Any, factor: float) -> Any:
        if isinstance(grad, tf.IndexedSlices):
            return tf.IndexedSlices(grad.values * factor, grad.indices, grad.dense_shape)
        return grad * factor


def _tensor(grad: Any) -> Any:
    return grad.values if isinstance(grad, tf.IndexedSlices) else tf.convert_to_tensor(grad)


def _comes_from(operation: Any, source: Any) -> bool:
    """Whether an operation of a graph needs the result of another one."""
    seen, todo = {operation}, [operation]
    while todo:
        at = todo.pop()
        if at is source:
            return True
        for tensor in at.inputs:
            if tensor.op not in seen:
                seen.add(tensor.op)
                todo.append(tensor.op)
    return False
