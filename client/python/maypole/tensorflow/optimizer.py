"""DistributedOptimizer: an optimizer that applies the gradients of all ranks.

    optimizer = DistributedOptimizer(tf.compat.v1.train.AdamOptimizer(0.001))
    train_op = optimizer.minimize(loss, global_step=step)

Here are those of tf.compat.v1.train; Keras' are in maypole.tensorflow.keras.

Thread contract: one thread builds the graph; all ranks build the same.
"""

from typing import Any, Optional

import tensorflow as tf

from maypole.common import basics
from maypole.common.constants import Adasum, Average, ReduceOp
from maypole.common.process_sets import ProcessSet, global_process_set
from maypole.common.training_arguments import check_predivision, groups_of
from maypole.tensorflow._gradient_reduction import GradientReduction
from maypole.tensorflow.adasum_optimizer import _DistributedAdasumOptimizer
from maypole.tensorflow.compression import Compression, Compressor
from maypole.tensorflow.gradient_aggregation import LocalGradientAggregationHelper


class _DistributedOptimizer(tf.compat.v1.train.Optimizer):
    """Reduces the gradients between compute_gradients() and apply_gradients().

    With backward_passes_per_step = n > 1 it reduces and applies gradients only in every n-th step.
    """

    def __init__(self, optimizer: tf.compat.v1.train.Optimizer, name: str, use_locking: bool,
                 reduction: GradientReduction, aggregation: Optional[LocalGradientAggregationHelper]):
        super().__init__(name=name, use_locking=use_locking)
        self._optimizer = optimizer
        self._reduction = reduction
        self._aggregation = aggregation

    def register_local_var(self, var: Any) -> None:
        """Makes the variable's gradient stay on this rank."""
        self._reduction.local.register(var)

    def compute_gradients(self, *args: Any, **kwargs: Any) -> list[Any]:
        """Returns the reduced gradients of the wrapped optimizer, with their variables."""
        pairs = self._optimizer.compute_gradients(*args, **kwargs)
        if not pairs:
            return pairs
        gradients, variables = zip(*pairs)
        compute = (self._reduction if self._aggregation is None
                   else self._aggregation.compute_gradients)
        return list(zip(compute(gradients, variables), variables))

    def apply_gradients(self, grads_and_vars: Any, global_step: Any = None,
                        name: Optional[str] = None) -> Any:
        """Takes the wrapped optimizer's step."""
        pairs = list(grads_and_vars)
        if self._aggregation is None:
            return self._optimizer.apply_gradients(pairs, global_step, name)
        return self._aggregation.apply_gradients(
            lambda: self._optimizer.apply_gradients(pairs, global_step, name),
            self._optimizer, pairs, global_step=global_step)

    def get_slot(self, *args: Any, **kwargs: Any) -> Any:
        return self._optimizer.get_slot(*args, **kwargs)

    def get_slot_names(self, *args: Any, **kwargs: Any) -> Any:
        return self._optimizer.get_slot_names(*args, **kwargs)

    def variables(self, *args: Any, **kwargs: Any) -> Any:
        return self._optimizer.variables(*args, **kwargs)


def DistributedOptimizer(optimizer: Any,
                         name: Optional[str] = None,
                         use_locking: bool = False,
                         device_dense: str = "",
                         device_sparse: str = "",
                         compression: type[Compressor] = Compression.none,
                         sparse_as_dense: bool = False,
                         backward_passes_per_step: int = 1,
                         op: ReduceOp = Average,
                         gradient_predivide_factor: float = 1.0,
                         average_aggregated_gradients: bool = False,
                         num_groups: int = 0,
                         groups: Any = None,
                         process_set: ProcessSet = global_process_set,
                         scale_local_gradients: bool = True) -> Any:
    """Wraps an optimizer of tf.compat.v1.train or of Keras.

    With op=Adasum and tf.compat.v1.train each rank makes its own steps, and the steps are
    combined (maypole.tensorflow.adasum_optimizer).

    Args:
        optimizer: the optimizer of this rank.
        name: the new optimizer's name.
        use_locking: the new optimizer's use_locking.
        device_dense: where operations of dense tensors are placed; "": where TensorFlow likes.
        device_sparse: where operations of tf.IndexedSlices are placed; "": where TensorFlow likes.
        compression: Compression.none, or fp16 or bf16, which send floats in 16 bits.
        sparse_as_dense: reduce sparse gradients as dense ones; otherwise they are gathered.
        backward_passes_per_step: the number of steps whose gradients are summed before they are reduced and applied.
        op: Average (default), Sum or Adasum.
        gradient_predivide_factor: with Average, gradients are divided by it before and multiplied by it after
            the sum.
        average_aggregated_gradients: divide them by that number.
        num_groups: the older name of groups.
        groups: None: groups of a few megabytes. A number of groups, or a list of lists of variables: those are
            reduced together.
        process_set: the ranks whose gradients are reduced.
        scale_local_gradients: divide gradients that stay on their rank by the number of ranks, like the
            gradients of the averaged loss.

    Raises:
        ValueError: for other objects, and for options that cannot be combined.
    """
    check_predivision(op, gradient_predivide_factor)
    groups = groups_of(num_groups, groups)
    if isinstance(optimizer, tf.compat.v1.train.Optimizer) and op == Adasum:
        return _DistributedAdasumOptimizer(
            optimizer, name, use_locking, device_dense, device_sparse,
            compression, backward_passes_per_step)
    if isinstance(optimizer, tf.compat.v1.train.Optimizer):
        name = name or f"Distributed{type(optimizer).__name__}"
        reduction = GradientReduction(name, device_dense, device_sparse, compression, sparse_as_dense, op,
                                      gradient_predivide_factor, groups, process_set, scale_local_gradients)
        aggregation = None if backward_passes_per_step <= 1 else LocalGradientAggregationHelper(
            backward_passes_per_step, reduction, sparse_as_dense, average_aggregated_gradients, rank=basics.rank(),
            optimizer_type=LocalGradientAggregationHelper._OPTIMIZER_TYPE_LEGACY, process_set=process_set,
            scale_local_gradients=scale_local_gradients, name=name)
        return _DistributedOptimizer(optimizer, name, use_locking, reduction, aggregation)
    if not _is_of_keras(optimizer):
        raise ValueError(f"{optimizer!r} is a {type(optimizer).__name__}, "
                         "expected an optimizer of tf.compat.v1.train or Keras")
    from maypole.tensorflow import keras
    return keras.DistributedOptimizer(
        optimizer, name, device_dense, device_sparse, compression,
        sparse_as_dense, gradient_predivide_factor, op,
        backward_passes_per_step, average_aggregated_gradients, 0, groups,
        process_set, scale_local_gradients)


def _is_of_keras(optimizer: Any) -> bool:
    # By name, so that Keras is not imported: Keras 2, Keras 3 and tf_keras have different optimizer classes.
    return any(kind.__module__.partition(".")[0] in ("keras", "tf_keras")
               or ".keras." in kind.__module__ for kind in type(optimizer).__mro__)
