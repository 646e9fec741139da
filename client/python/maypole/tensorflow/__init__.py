"""Maypole for TensorFlow, with the names and semantics of horovod.tensorflow.

    import maypole.tensorflow as hvd

    hvd.init()
    mean = hvd.allreduce(tensor)            # eager, in tf.function, in a compat.v1 graph
    hvd.broadcast_variables(model.variables, root_rank=0)

Works with TensorFlow 2.8 to 2.21 (docs/tensorflow.md), on CPU tensors; tensors on
a GPU go through host memory. Nothing is compiled against TensorFlow.
"""

from typing import Any

from maypole.common.basics import (ccl_built, cross_rank, cross_size,
                                   cuda_built, ddl_built, gloo_built,
                                   gloo_enabled, init, is_homogeneous,
                                   is_initialized, local_rank, local_size,
                                   mpi_built, mpi_enabled,
                                   mpi_threads_supported, nccl_built, rank,
                                   rocm_built, shutdown, size)
from maypole.common.constants import (Adasum, Average, Max, Min, Product, Sum)
from maypole.common.exceptions import (HorovodInternalError,
                                       HorovodVersionMismatchError,
                                       HostsUpdatedInterrupt, MaypoleError)
from maypole.common.process_sets import (ProcessSet, add_process_set,
                                         global_process_set,
                                         remove_process_set)
from maypole.common.timeline import start_timeline, stop_timeline
from maypole.tensorflow import _gradients  # registers them
from maypole.tensorflow.broadcast_hook import BroadcastGlobalVariablesHook
from maypole.tensorflow.compression import Compression, Compressor
from maypole.tensorflow.functions import (allgather_object,
                                          broadcast_global_variables,
                                          broadcast_object,
                                          broadcast_object_fn,
                                          broadcast_variables)
from maypole.tensorflow.mpi_ops import (allgather, alltoall, barrier,
                                        broadcast, broadcast_, grouped_allgather, join,
                                        local_rank_op, local_size_op,
                                        process_set_included_op, rank_op,
                                        size_op)
from maypole.tensorflow.reductions import (allreduce, grouped_allreduce,
                                           grouped_reducescatter,
                                           reducescatter)
from maypole.tensorflow.optimizer import DistributedOptimizer
from maypole.tensorflow.tape import (DistributedGradientTape,
                                     PartialDistributedGradientTape)

from maypole.tensorflow import elastic  # pylint: disable=wrong-import-position


def __getattr__(name: str) -> Any:
    # It imports Keras, which many programs do not need.
    if name == "SyncBatchNormalization":
        from maypole.tensorflow.sync_batch_norm import SyncBatchNormalization
        return SyncBatchNormalization
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
