"""Maypole for JAX: collectives on pytrees, inside and outside jit.

    import maypole.jax as hvd

    hvd.init()
    params = hvd.broadcast_parameters(params, root_rank=0)
    optimizer = hvd.DistributedOptimizer(optax.sgd(0.1 * hvd.size()))

    @jax.jit
    def step(params, state, batch):
        gradients = jax.grad(loss)(params, batch)
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state

Each rank is a process with one device of its own. Works with jaxlib 0.4.38 and
newer; docs/jax.md has the rules of names and the limits.
"""

from maypole.common.basics import (ccl_built, cross_rank, cross_size,
                                   cuda_built, ddl_built, gloo_built,
                                   gloo_enabled, init, is_homogeneous,
                                   is_initialized, local_rank, local_size,
                                   mpi_built, mpi_enabled,
                                   mpi_threads_supported, nccl_built, rank,
                                   rocm_built, shutdown, size)
from maypole.common.collectives import barrier, join
from maypole.common.constants import Adasum, Average, Max, Min, Product, Sum
from maypole.common.exceptions import (HorovodInternalError,
                                       HorovodVersionMismatchError,
                                       HostsUpdatedInterrupt, MaypoleError)
from maypole.common.objects import allgather_object, broadcast_object
from maypole.common.process_sets import (ProcessSet, add_process_set,
                                         global_process_set,
                                         remove_process_set)
from maypole.common.timeline import start_timeline, stop_timeline
from maypole.jax import _ffi
from maypole.jax.compression import Compression, Compressor
from maypole.jax.functions import (broadcast_optimizer_state,
                                   broadcast_parameters)
from maypole.jax.ops import (allgather, allreduce, alltoall, broadcast,
                             reducescatter)
from maypole.jax.optimizer import DistributedOptimizer, reduce_gradients

from maypole.jax import elastic  # pylint: disable=wrong-import-position

# So that a missing library is an error of the import, not of the first call.
_ffi.register()
