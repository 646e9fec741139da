"""Maypole for Apache MXNet 1.9.1, with the names and semantics of horovod.mxnet.

    import maypole.mxnet as hvd

    hvd.init()
    hvd.broadcast_parameters(net.collect_params(), root_rank=0)
    trainer = hvd.DistributedTrainer(net.collect_params(), "sgd",
                                     {"learning_rate": 0.1 * hvd.size()})

MXNet is archived: 1.9.1 is its last version, and this module is for programs that
still need it (docs/mxnet.md). Arrays on a GPU go through the host.
"""

from maypole.common import api as _common
from maypole.common.api import *  # noqa: F403 - the names of its __all__, which all frameworks' modules have
from maypole.common.collectives import barrier, join
from maypole.common.objects import allgather_object, broadcast_object
from maypole.mxnet.compression import Compression, Compressor
from maypole.mxnet.functions import broadcast_parameters
from maypole.mxnet.ops import (
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
from maypole.mxnet.optimizer import DistributedOptimizer, DistributedTrainer

__all__ = [
    "Compression", "Compressor", "DistributedOptimizer", "DistributedTrainer", "allgather", "allgather_object",
    "allreduce", "allreduce_", "alltoall", "barrier", "broadcast", "broadcast_", "broadcast_object",
    "broadcast_parameters", "grouped_allgather", "grouped_allreduce", "grouped_allreduce_", "grouped_reducescatter",
    "join", "reducescatter",
]
__all__ += _common.__all__
