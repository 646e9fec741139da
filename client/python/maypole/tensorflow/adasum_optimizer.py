"""DistributedOptimizer(op=Adasum): combines the ranks' steps, not their gradients.

    start = the variables' values
    the optimizer's own step, or several, with this rank's gradients
    variable = start + the ranks' Adasum of (variable - start)

So the learning rate need not grow with the number of ranks. Each rank has its own momentum and other state.

Thread contract: one thread builds the graph; all ranks build the same and run the
same steps.
"""

from typing import Any, Optional

import tensorflow as tf

from maypole.common.constants import Adasum
from maypole.common.process_sets import global_process_set
from maypole.tensorflow import _gradient_layouts, reductions
from maypole.tensorflow._gradient_reduction import label_of
from maypole.tensorflow.compression import Compression, Compressor


class _DistributedAdasumOptimizer(tf.compat.v1.train.Optimizer):
    """An optimizer of tf.compat.v1.train; after every backward_passes_per_step steps, the ranks' steps are combined."""

    def __init__(self, optimizer: tf.compat.v1.train.Optimizer, name: Optional[str] = None,
                 use_locking: bool = False, device_dense: str = "", device_sparse: str = "",
                 compression: type[Compressor] = Compression.none, backward_passes_per_step: int = 1):
        super().__init__(name=name or f"DistributedDelta{type(optimizer).__name__}",
                         use_locking=use_locking)
        self._optimizer = optimizer
        self._options = dict(device_dense=device_dense, device_sparse=device_sparse,
                             compression=compression)
        self._passes = backward_passes_per_step

    def compute_gradients(self, *args: Any, **kwargs: Any) -> list[Any]:
        """Returns this rank's own gradients, computed by the wrapped optimizer."""
        return self._optimizer.compute_gradients(*args, **kwargs)

    def apply_gradients(self, *args: Any, **kwargs: Any) -> Any:
        """Takes the wrapped optimizer's step, then combines the ranks' steps."""
        pairs = list(args[0] if args else kwargs.pop("grads_and_vars"))
        variables = self._changed(pairs)

        def apply() -> Any:
            return self._optimizer.apply_gradients(pairs, *args[1:], **kwargs)

        if self._passes == 1:
            starts = [tf.identity(variable.read_value()) for variable in variables]
            with tf.control_dependencies(starts):
                step = apply()
            with tf.control_dependencies(_all_of(step)):
                return self._combine(variables, starts)
        return self._apply_some(apply, variables)

    def _changed(self, pairs: list[Any]) -> list[Any]:
        """Returns the variables for which some rank has a gradient."""
        gradients, variables = zip(*pairs) if pairs else ((), ())
        everyones = _gradient_layouts.completed(
            self._name, global_process_set, gradients, variables,
            [label_of(variable) for variable in variables], True)
        return [variable for gradient, variable in zip(everyones, variables)
                if gradient is not None]

    def _apply_some(self, apply: Any, variables: list[Any]) -> Any:
        """Makes one of several steps: the first one keeps the variables' values, the last one combines the ranks'."""
        starts = [self._zeros_slot(v, "delta_start", self._name) for v in variables]
        done = self._create_non_slot_variable(tf.constant(0, tf.int64), "passes", variables[0])

        def keep() -> Any:
            return tf.group(*[start.assign(v.read_value()) for start, v in zip(starts, variables)])

        with tf.control_dependencies(_all_of(tf.cond(
                tf.equal(done.read_value(), 0), keep, tf.no_op))):
            step = apply()
        with tf.control_dependencies(_all_of(step)):
            passes = tf.math.floormod(done.read_value() + 1, self._passes)
        with tf.control_dependencies(_all_of(done.assign(passes))):
            return tf.cond(
                tf.equal(passes, 0),
                lambda: self._combine(variables, [start.read_value() for start in starts]),
                tf.no_op)

    def _combine(self, variables: list[Any], starts: list[Any]) -> Any:
        deltas = [variable.read_value() - start for variable, start in zip(variables, starts)]
        combined = reductions.grouped_allreduce(deltas, op=Adasum, name=self._name + ".delta",
                                                ignore_name_scope=True, **self._options)
        return tf.group(*[variable.assign(start + delta) for variable, start, delta
                          in zip(variables, starts, combined)])

    def get_slot(self, var: Any, name: str) -> Any:
        return self._optimizer.get_slot(var, name)

    def get_slot_names(self) -> Any:
        return self._optimizer.get_slot_names()

    def variables(self, *args: Any, **kwargs: Any) -> Any:
        return self._optimizer.variables(*args, **kwargs) + super().variables()


def _all_of(step: Any) -> list[Any]:
    """Returns a list for tf.control_dependencies(); empty in eager execution."""
    return [] if step is None or tf.executing_eagerly() else [step]
