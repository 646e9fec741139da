"""Maypole for Keras, with the names and semantics of horovod.keras.

    import keras
    import maypole.keras as hvd

    hvd.init()
    model.compile(hvd.DistributedOptimizer(keras.optimizers.Adam(0.001 * hvd.size())), ...)
    model.fit(..., callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0),
                              hvd.callbacks.MetricAverageCallback()])
    if hvd.rank() == 0:
        model.save("model.keras")      # loads where Maypole is not installed

Works with Keras 3 on its backends tensorflow, jax and torch, and with Keras 2, the keras of
TensorFlow 2.8 to 2.15. With tf_keras (Keras 2 beside a newer TensorFlow) use
maypole.tensorflow.keras. docs/keras.md has the whole list.
"""

from typing import Any, Optional

import keras as _keras_module

from maypole import _native
from maypole._keras import api, backends
from maypole._keras.values import allgather, allreduce, broadcast, reducescatter
from maypole.common import api as _common
from maypole.common.api import *  # noqa: F403 - the names of its __all__, which all frameworks' modules have
from maypole.common.constants import Average, ReduceOp
from maypole.common.objects import allgather_object, broadcast_object
from maypole.common.process_sets import ProcessSet, global_process_set
from maypole.keras import callbacks, elastic

__all__ = [
    "Compression", "DistributedOptimizer", "PartialDistributedOptimizer", "allgather", "allgather_object", "allreduce",
    "broadcast", "broadcast_global_variables", "broadcast_object", "callbacks", "elastic", "load_model",
    "reducescatter",
]
__all__ += _common.__all__

# From the backend's binding. Raises ImportError for a backend that Maypole does not support.
Compression = backends.compression_of(_keras_module)


def DistributedOptimizer(
        optimizer: Any,
        name: Optional[str] = None,
        device_dense: str = "",
        device_sparse: str = "",
        compression: Any = Compression.none,
        sparse_as_dense: bool = False,
        gradient_predivide_factor: float = 1.0,
        op: ReduceOp = Average,
        num_groups: int = 0,
        groups: Any = None,
        backward_passes_per_step: int = 1,
        average_aggregated_gradients: bool = False,
        process_set: ProcessSet = global_process_set,
        scale_local_gradients: bool = True) -> Any:
    """Makes the optimizer reduce gradients over all ranks before it steps; returns it.

    It is the same object, with its state, now of a subclass of its class; Keras saves it under its original
    class. Clipping, weight decay, moving averages and loss scaling act on the reduced gradients, as in one
    process. With the policy mixed_float16 the function returns a LossScaleOptimizer around it, in place of the
    one that compile() would make. A second call replaces the arguments. init() must have been called.

    Args:
        optimizer: the optimizer of this rank.
        name: a part of the operations' names; needed if two optimizers for variables of equal shapes step at the
            same time. (Gradients are matched by the position of their variables.)
        device_dense: where operations of dense tensors are placed; "": where TensorFlow likes.
        device_sparse: where operations of tf.IndexedSlices are placed; "": where TensorFlow likes.
        compression: Compression.fp16 or bf16 sends gradients in 16 bits.
        sparse_as_dense: reduce gradients of embeddings (IndexedSlices) as dense ones; otherwise they are
            gathered.
        gradient_predivide_factor: with Average, gradients are divided by it before and multiplied by it after
            the sum.
        op: Average, Sum or Adasum.
        num_groups: accepted, without effect, because the coordinator groups operations itself.
        groups: accepted, without effect, because the coordinator groups operations itself.
        backward_passes_per_step: n: the optimizer steps in every n-th call, with the sum of the gradients of
            n calls; only this sum is reduced.
        average_aggregated_gradients: step with the average instead.
        process_set: the ranks whose gradients are reduced; other ranks step with their own.
        scale_local_gradients: see PartialDistributedOptimizer().

    Raises:
        ValueError: for wrong arguments; the text says what is expected.
    """
    return api.distributed_optimizer(
        _keras_module, optimizer, name, compression, sparse_as_dense, gradient_predivide_factor, op,
        num_groups, groups, backward_passes_per_step, average_aggregated_gradients, process_set,
        None, scale_local_gradients)


_functions = api.Functions(_keras_module)
PartialDistributedOptimizer = _functions.PartialDistributedOptimizer
broadcast_global_variables = _functions.broadcast_global_variables
load_model = _functions.load_model

# Loads the library now, so that the import fails if it is missing, not the first call.
_native.library()
