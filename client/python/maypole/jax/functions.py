"""Broadcasts the values with which training starts.

Thread contract: one thread at a time.
"""

from typing import Any

import jax
import jax.numpy as jnp

from maypole.common.process_sets import ProcessSet, global_process_set
from maypole.jax.ops import broadcast


def broadcast_parameters(params: Any,
                         root_rank: int = 0,
                         process_set: ProcessSet = global_process_set) -> Any:
    """Returns rank `root_rank`'s values of a pytree: parameters, an optimizer's state, keys of jax.random.

    JAX's arrays cannot be changed, so the result must replace `params`. Leaves that are Python numbers become
    arrays.

    Args:
        params: a pytree of arrays.
        root_rank: a rank of the job (not an index in the process set), in the set.
        process_set: the ranks that take part; all of them must make the call.
    """
    keys = jax.tree_util.tree_map(is_key, params)
    raw = jax.tree_util.tree_map(
        lambda leaf, key: jax.random.key_data(leaf) if key else leaf, params,
        keys)
    raw = broadcast(raw, root_rank, "broadcast_parameters", process_set)
    return jax.tree_util.tree_map(
        lambda values, key, leaf: jax.random.wrap_key_data(
            values, impl=jax.random.key_impl(leaf)) if key else values, raw,
        keys, params)


def broadcast_optimizer_state(state: Any,
                              root_rank: int = 0,
                              process_set: ProcessSet = global_process_set) -> Any:
    """broadcast_parameters() for an optimizer's state, which is also a pytree.

    Args:
        state: the state to broadcast.
        root_rank: a rank of the job (not an index in the process set), in the set.
        process_set: the ranks that take part; all of them must make the call.

    Returns:
        A pytree of the same structure, with the root's values.
    """
    return broadcast_parameters(state, root_rank, process_set)


def is_key(leaf: Any) -> bool:
    """Whether `leaf` is an array of jax.random's typed keys."""
    return isinstance(leaf, jax.Array) and jnp.issubdtype(
        leaf.dtype, jax.dtypes.prng_key)
