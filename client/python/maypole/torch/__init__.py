"""Maypole for PyTorch, with the names and semantics of horovod.torch.

    import maypole.torch as hvd

    hvd.init()
    optimizer = hvd.DistributedOptimizer(
        optimizer, named_parameters=model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)

Works with torch 1.13 and newer, on CPU and CUDA tensors of float16, bfloat16,
float32, float64, int8, int16, int32, int64, uint8, bool and (torch 2.3) uint16,
and on arrays of other libraries (see maypole.torch.async_ops). A tensor of
another kind is refused by an error that names it.
"""

from maypole import _native
from maypole.common import api as _common
from maypole.common.api import *  # noqa: F403 - the names of its __all__, which all frameworks' modules have
from maypole.torch import elastic
from maypole.torch.arena import arena_statistics, empty, empty_like
from maypole.torch.async_ops import (
                                     allgather_async,
                                     allreduce_async,
                                     allreduce_async_,
                                     alltoall_async,
                                     barrier,
                                     broadcast_async,
                                     broadcast_async_,
                                     grouped_allgather_async,
                                     grouped_allreduce_async,
                                     grouped_allreduce_async_,
                                     grouped_reducescatter_async,
                                     join,
                                     poll,
                                     reducescatter_async,
                                     synchronize,
)
from maypole.torch.compression import Compression, Compressor
from maypole.torch.functions import allgather_object, broadcast_object, broadcast_optimizer_state, broadcast_parameters
from maypole.torch.local_sgd import DiLoCo, LocalSGD
from maypole.torch.ops import (
                                     allgather,
                                     allreduce,
                                     allreduce_,
                                     alltoall,
                                     broadcast,
                                     broadcast_,
                                     grouped_allgather,
                                     grouped_allreduce,
                                     grouped_allreduce_,
                                     grouped_reducescatter,
                                     reducescatter,
)
from maypole.torch.optimizer import DistributedOptimizer
from maypole.torch.sparse import sparse_allreduce_async
from maypole.torch.sync_batch_norm import SyncBatchNorm

__all__ = [
    "Compression", "Compressor", "DiLoCo", "DistributedOptimizer", "LocalSGD", "SyncBatchNorm", "allgather",
    "allgather_async", "allgather_object", "allreduce", "allreduce_", "allreduce_async", "allreduce_async_",
    "alltoall", "alltoall_async", "arena_statistics", "barrier", "broadcast", "broadcast_", "broadcast_async",
    "broadcast_async_", "broadcast_object", "broadcast_optimizer_state", "broadcast_parameters", "elastic", "empty",
    "empty_like", "grouped_allgather", "grouped_allgather_async", "grouped_allreduce", "grouped_allreduce_",
    "grouped_allreduce_async", "grouped_allreduce_async_", "grouped_reducescatter", "grouped_reducescatter_async",
    "join", "poll", "reducescatter", "reducescatter_async", "sparse_allreduce_async", "synchronize",
]
__all__ += _common.__all__

# So that a missing library is an error of the import, not of the first call.
_native.library()
