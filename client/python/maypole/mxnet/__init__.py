"""Maypole for Apache MXNet 1.9.1, with the names and semantics of horovod.mxnet.

    import maypole.mxnet as hvd

    hvd.init()
    hvd.broadcast_parameters(net.collect_params(), root_rank=0)
    trainer = hvd.DistributedTrainer(net.collect_params(), "sgd",
                                     {"learning_rate": 0.1 * hvd.size()})

MXNet is archived: 1.9.1 is its last version, and this module is for programs that
still need it (docs/mxnet.md). Arrays on a GPU go through the host.
"""

from maypole.common.basics import (ccl_built, cross_rank, cross_size,
                                   cuda_built, ddl_built, gloo_built,
                                   gloo_enabled, init, is_homogeneous,
                                   is_initialized, local_rank, local_size,
                                   mpi_built, mpi_enabled,
                                   mpi_threads_supported, nccl_built, rank,
                                   rocm_built, shutdown, size)
from maypole.common.collectives import barrier, join
from maypole.common.constants import (Adasum, Average, Max, Min, Product, Sum)
from maypole.common.exceptions import (HorovodInternalError,
                                       HorovodVersionMismatchError,
                                       HostsUpdatedInterrupt, MaypoleError)
from maypole.common.objects import allgather_object, broadcast_object
from maypole.common.process_sets import (ProcessSet, add_process_set,
                                         global_process_set,
                                         remove_process_set)
from maypole.common.timeline import start_timeline, stop_timeline
from maypole.mxnet.compression import Compression, Compressor
from maypole.mxnet.functions import broadcast_parameters
from maypole.mxnet.ops import (allgather, allreduce, allreduce_, alltoall,
                               broadcast, broadcast_, grouped_allgather,
                               grouped_allreduce, grouped_allreduce_,
                               grouped_reducescatter, reducescatter)
from maypole.mxnet.optimizer import DistributedOptimizer, DistributedTrainer
