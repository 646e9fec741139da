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
from maypole.mxnet import ops as _ops
from maypole.mxnet.compression import Compression, Compressor
from maypole.mxnet.functions import broadcast_parameters
from maypole.mxnet.ops import *  # noqa: F403
from maypole.mxnet.optimizer import DistributedOptimizer, DistributedTrainer

__all__ = [
    "Compression", "Compressor", "DistributedOptimizer", "DistributedTrainer", "allgather_object", "barrier",
    "broadcast_object", "broadcast_parameters", "join",
]
__all__ += _common.__all__
__all__ += _ops.__all__
