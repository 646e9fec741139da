"""Local gradient aggregation in version 1 graphs.

The rules are those of gradient_aggregation_eager.py. Here the variables are
local ones, which a MonitoredTrainingSession initializes and no checkpoint
contains, and the global step is counted.

Thread contract: one thread builds the graph.
"""

import functools
from typing import Any, Callable

import tensorflow as tf

from maypole.common.process_sets import ProcessSet, global_process_set
from maypole.tensorflow import _gradient_sums
from maypole.tensorflow.gradient_aggregation_eager import (
    LocalGradientAggregationHelperEager,
    apply_op_to_not_none_tensors,
    get_not_none_from_list,
)

__all__ = ["LocalGradientAggregationHelper", "apply_op_to_not_none_tensors",
           "get_not_none_from_list"]


class LocalGradientAggregationHelper(LocalGradientAggregationHelperEager):
    """As LocalGradientAggregationHelperEager, also in a version 1 graph.

    rank: not needed; accepted for compatibility.
    optimizer_type: _OPTIMIZER_TYPE_KERAS initializes the variables in Keras' session, where nothing else does.
    name: the name of the scope of its variables.
    """

    _OPTIMIZER_TYPE_KERAS = "optimizer_type_keras"
    _OPTIMIZER_TYPE_LEGACY = "optimizer_type_legacy"

    def __init__(self,
                 backward_passes_per_step: int,
                 allreduce_func: Callable[[Any, Any], Any],
                 sparse_as_dense: bool,
                 average_aggregated_gradients: bool,
                 rank: int,
                 optimizer_type: str,
                 process_set: ProcessSet = global_process_set,
                 scale_local_gradients: bool = True,
                 name: str = ""):
        self.optimizer_type = optimizer_type
        self.name = name
        super().__init__(backward_passes_per_step, allreduce_func,
                         sparse_as_dense, average_aggregated_gradients,
                         process_set, scale_local_gradients)

    def apply_gradients(self, apply_grads_closure: Callable[[], Any],
                        optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        """As in the eager helper, but counts global_step in every step."""
        global_step = kwargs.get("global_step")

        def skipped() -> Any:
            if global_step is not None:
                return global_step.assign_add(
                    tf.constant(1, global_step.dtype.base_dtype))
            return self._count_iteration(optimizer)

        done = self._cond_applied(apply_grads_closure, skipped, args)
        return done if tf.executing_eagerly() else done.op

    def _new_variable(self) -> Callable[[str, Any, Any], Any]:
        return functools.partial(
            variable_of, self.name,
            self.optimizer_type == self._OPTIMIZER_TYPE_KERAS)


def variable_of(of: str, in_keras: bool, name: str, shape: Any,
                dtype: Any) -> Any:
    """Returns a variable of zeros for the helper `of`. in_keras: whether Keras' session must initialize it."""
    if tf.compat.v1.executing_eagerly_outside_functions():
        return _gradient_sums.new_variable(name, shape, dtype)
    with tf.compat.v1.name_scope(f"aggregation_variables_{of}"):
        variable = tf.compat.v1.Variable(
            # A function, so that the initializer does not get the caller's
            # control dependencies, which may need a batch.
            lambda: tf.zeros(shape, dtype), trainable=False, name=name,
            use_resource=True,
            collections=[tf.compat.v1.GraphKeys.LOCAL_VARIABLES])
    if in_keras:
        tf.compat.v1.keras.backend.get_session(op_input_list=()).run(
            variable.initializer)
    return variable
