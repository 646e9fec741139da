"""Local gradient aggregation: sums the gradients of several steps, and reduces only the sum.

The helper keeps a sum per gradient and a counter of the steps in it:

    counter before   compute_gradients() returns      then apply_gradients()
    0 .. k-2         the step's own gradients         does not apply
    k-1              the sums, reduced; counter = 0   applies

where k is backward_passes_per_step. Works where variables are tf.Variables:
eagerly, and in a tf.function. The control dependencies here repeat the order of
a tf.function, for graphs without automatic ones.

Thread contract: one thread.
"""

from typing import Any, Callable, Optional

import tensorflow as tf

from maypole.common.process_sets import ProcessSet, global_process_set
from maypole.common.training_arguments import check_passes
from maypole.tensorflow import _gradient_sums
from maypole.tensorflow._gradient_reduction import LocalVariables


def apply_op_to_not_none_tensors(tensor_op: Callable[..., Any], tensors: Any,
                                 *args: Any) -> list[Any]:
    """Applies tensor_op(tensor, *args) to each tensor; None stays None."""
    return [None if tensor is None else tensor_op(tensor, *args)
            for tensor in tensors]


def get_not_none_from_list(tensor_list: Any) -> list[Any]:
    """The entries that are not None."""
    return [tensor for tensor in tensor_list if tensor is not None]


class LocalGradientAggregationHelperEager:
    """Sums gradients and reduces every backward_passes_per_step-th sum.

    allreduce_func: (gradients, variables) -> reduced gradients.
    sparse_as_dense: needed if gradients are IndexedSlices, because a sum has the full shape.
    average_aggregated_gradients: divide the reduced sums by the number of steps in them.
    process_set, scale_local_gradients: see register_local_var().
    """

    def __init__(self,
                 backward_passes_per_step: int,
                 allreduce_func: Callable[[Any, Any], Any],
                 sparse_as_dense: bool,
                 average_aggregated_gradients: bool,
                 process_set: ProcessSet = global_process_set,
                 scale_local_gradients: bool = True):
        check_passes(backward_passes_per_step)
        self.backward_passes_per_step = backward_passes_per_step
        self.allreduce_grads = allreduce_func
        self.sparse_as_dense = sparse_as_dense
        self.average_aggregated_gradients = average_aggregated_gradients
        self._sums = _gradient_sums.GradientSums(self._new_variable())
        self._local = LocalVariables(process_set, scale_local_gradients)

    @property
    def counter(self) -> Any:
        """A variable, the steps in the sums; None before the first step."""
        return self._sums.counter

    @property
    def locally_aggregated_grads(self) -> Optional[list[Any]]:
        """The sums, in the gradients' order; None where there is no gradient, and before the first step."""
        return self._sums.totals

    def register_local_var(self, var: Any) -> None:
        """Makes the variable's gradient stay on its rank.

        The gradient is summed, and with scale_local_gradients divided by the number of ranks.
        """
        self._local.register(var)

    def compute_gradients(self, grads: Any, vars: Any) -> list[Any]:
        """Adds a step's gradients; returns those for apply_gradients().

        Raises ValueError for an IndexedSlices unless sparse_as_dense.
        """
        vars = list(vars)
        # All ranks sum the same gradients.
        completed = getattr(self.allreduce_grads, "completed", None)
        if completed is not None:
            grads = completed(list(grads), vars)
        grads = [self._dense(gradient) for gradient in grads]
        sums = self._sums.add(grads)
        present = [i for i, gradient in enumerate(grads)
                   if gradient is not None]
        counter = self._sums.count_step(sums)
        chosen = tf.cond(
            tf.equal(counter, self.backward_passes_per_step),
            lambda: self._reduced([sums[i] for i in present],
                                  [vars[i] for i in present]),
            lambda: [tf.identity(grads[i]) for i in present])
        result = [None] * len(grads)
        for i, gradient in zip(present, chosen):
            result[i] = gradient
        return result

    def apply_gradients(self, apply_grads_closure: Callable[[], Any],
                        optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        """Runs apply_grads_closure() if the last step's gradients were reduced.

        Otherwise only counts the optimizer's iterations.

        args[0]: the gradients and variables that the closure applies.
        """
        return self._cond_applied(
            apply_grads_closure, lambda: self._count_iteration(optimizer),
            args)

    def _cond_applied(self, applied: Callable[[], Any],
                      skipped: Callable[[], Any], args: Any) -> Any:
        gradients = [gradient for gradient, _ in args[0]] if args else []
        with tf.control_dependencies(get_not_none_from_list(gradients)):
            return tf.cond(tf.equal(self.counter, 0),
                           _returning_nothing(applied),
                           _returning_nothing(skipped))

    @staticmethod
    def _count_iteration(optimizer: Any) -> Any:
        if getattr(optimizer, "iterations", None) is not None:
            return optimizer.iterations.assign_add(1)
        return None

    def _dense(self, gradient: Any) -> Any:
        if not isinstance(gradient, tf.IndexedSlices):
            return gradient
        if not self.sparse_as_dense:
            raise ValueError("a gradient is an IndexedSlices: with "
                             "backward_passes_per_step > 1, sparse_as_dense="
                             "True is expected")
        return tf.convert_to_tensor(gradient)

    def _new_variable(self) -> Callable[[str, Any, Any], Any]:
        """Returns the function that makes the variables.

        It is not a method of this object: the object would then live until a garbage collection.
        """
        return _gradient_sums.new_variable

    def _reduced(self, sums: list[Any], variables: list[Any]) -> list[Any]:
        reduced = self._local.reduce_others(self.allreduce_grads, sums,
                                            variables)
        with tf.control_dependencies([self._sums.end()]):
            if self.average_aggregated_gradients:
                return [gradient / tf.cast(self.backward_passes_per_step,
                                           gradient.dtype)
                        for gradient in reduced]
            return [tf.identity(gradient) for gradient in reduced]


def _returning_nothing(function: Callable[[], Any]) -> Callable[[], Any]:
    """Makes branches of a tf.cond return the same kind: an operation in a version 1 graph, a constant otherwise."""

    def run() -> Any:
        done = function()
        if tf.executing_eagerly():
            return tf.constant(True)
        with tf.control_dependencies(get_not_none_from_list([done])):
            return tf.constant(True)

    return run
