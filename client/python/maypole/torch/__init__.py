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
another kind raises an error that names it.
"""

from maypole import _native
from maypole.common import api as _common
from maypole.common.api import *  # noqa: F403 - the names of its __all__, which all frameworks' modules have
from maypole.torch import async_ops as _async_ops
from maypole.torch import elastic
from maypole.torch import ops as _ops
from maypole.torch.arena import arena_statistics, empty, empty_like
from maypole.torch.async_ops import *  # noqa: F403
from maypole.torch.compression import Compression, Compressor
from maypole.torch.functions import allgather_object, broadcast_object, broadcast_optimizer_state, broadcast_parameters
from maypole.torch.local_sgd import DiLoCo, LocalSGD
from maypole.torch.ops import *  # noqa: F403
from maypole.torch.optimizer import DistributedOptimizer
from maypole.torch.sparse import sparse_allreduce_async
from maypole.torch.sync_batch_norm import SyncBatchNorm

__all__ = [
    "Compression", "Compressor", "DiLoCo", "DistributedOptimizer", "LocalSGD", "SyncBatchNorm", "allgather_object",
    "arena_statistics",
    "broadcast_object", "broadcast_optimizer_state", "broadcast_parameters", "elastic", "empty", "empty_like",
    "sparse_allreduce_async",
]
__all__ += _async_ops.__all__
__all__ += _common.__all__
__all__ += _ops.__all__

# Loads the library now, so that the import fails if it is missing, not the first call.
_native.library()
