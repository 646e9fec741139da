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

from maypole.common import api as _common
from maypole.common.api import *  # noqa: F403 - the names of its __all__, which all frameworks' modules have
from maypole.common.collectives import barrier, join
from maypole.common.objects import allgather_object, broadcast_object
from maypole.jax import _ffi, elastic
from maypole.jax.compression import Compression, Compressor
from maypole.jax.functions import broadcast_optimizer_state, broadcast_parameters
from maypole.jax.ops import allgather, allreduce, alltoall, broadcast, reducescatter
from maypole.jax.optimizer import DistributedOptimizer, reduce_gradients

__all__ = [
    "Compression", "Compressor", "DistributedOptimizer", "allgather", "allgather_object", "allreduce", "alltoall",
    "barrier", "broadcast", "broadcast_object", "broadcast_optimizer_state", "broadcast_parameters", "elastic", "join",
    "reduce_gradients", "reducescatter",
]
__all__ += _common.__all__

# Loads the library now, so that the import fails if it is missing, not the first call.
_ffi.register()
