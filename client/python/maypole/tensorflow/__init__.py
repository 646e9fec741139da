"""Maypole for TensorFlow, with the names and semantics of horovod.tensorflow.

    import maypole.tensorflow as hvd

    hvd.init()
    mean = hvd.allreduce(tensor)            # eager, in tf.function, in a compat.v1 graph
    hvd.broadcast_variables(model.variables, root_rank=0)

Works with TensorFlow 2.8 to 2.21 (docs/tensorflow.md), on CPU tensors; tensors on
a GPU go through host memory. Nothing is compiled against TensorFlow.
"""

from typing import TYPE_CHECKING, Any

from maypole.common import api as _common
from maypole.common.api import *  # noqa: F403 - the names of its __all__, which all frameworks' modules have
from maypole.tensorflow import (
    _gradients,  # noqa: F401 - registers them
    elastic,
)
from maypole.tensorflow import functions as _functions
from maypole.tensorflow import mpi_ops as _mpi_ops
from maypole.tensorflow.broadcast_hook import BroadcastGlobalVariablesHook
from maypole.tensorflow.compression import Compression, Compressor
from maypole.tensorflow.functions import *  # noqa: F403
from maypole.tensorflow.mpi_ops import *  # noqa: F403
from maypole.tensorflow.optimizer import DistributedOptimizer
from maypole.tensorflow.reductions import allreduce, grouped_allreduce, grouped_reducescatter, reducescatter
from maypole.tensorflow.tape import DistributedGradientTape, PartialDistributedGradientTape

__all__ = [
    "BroadcastGlobalVariablesHook", "Compression", "Compressor", "DistributedGradientTape", "DistributedOptimizer",
    "PartialDistributedGradientTape", "allreduce", "elastic", "grouped_allreduce", "grouped_reducescatter",
    "reducescatter",
]
__all__ += _common.__all__
__all__ += _functions.__all__
__all__ += _mpi_ops.__all__

if TYPE_CHECKING:
    from maypole.tensorflow.sync_batch_norm import SyncBatchNormalization as SyncBatchNormalization


def __getattr__(name: str) -> Any:
    # Not imported at the top: it imports Keras, which many programs do not need.
    if name == "SyncBatchNormalization":
        from maypole.tensorflow.sync_batch_norm import SyncBatchNormalization
        return SyncBatchNormalization
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
