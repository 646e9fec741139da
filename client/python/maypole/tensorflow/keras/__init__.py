"""Maypole for TensorFlow's Keras, with the names and semantics of horovod.tensorflow.keras.

    import tensorflow as tf
    import maypole.tensorflow.keras as hvd

Functions have the same meaning as in maypole.keras, for the Keras that is tf.keras: Keras 2 up to
TensorFlow 2.15, then Keras 3, or tf_keras if TF_USE_LEGACY_KERAS=1 asks for it.
"""

from typing import Any, Optional

from tensorflow import keras as _keras_module

from maypole import _native
from maypole._keras import api, backends
from maypole._keras.values import allgather, allreduce, broadcast, reducescatter
from maypole.common import api as _common
from maypole.common.api import *  # noqa: F403 - the names of its __all__, which all frameworks' modules have
from maypole.common.constants import Average, ReduceOp
from maypole.common.objects import allgather_object, broadcast_object
from maypole.common.process_sets import ProcessSet, global_process_set
from maypole.tensorflow.keras import callbacks, elastic

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
        backward_passes_per_step: int = 1,
        average_aggregated_gradients: bool = False,
        num_groups: int = 0,
        groups: Any = None,
        process_set: ProcessSet = global_process_set,
        scale_local_gradients: bool = True) -> Any:
    """As maypole.keras.DistributedOptimizer(), with the parameters in another order."""
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
