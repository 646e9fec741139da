"""Elastic training with JAX: docs/elastic.md.

    @hvd.elastic.run
    def train(state):
        while state.batch < 1000:
            state.params, state.opt_state = step(state.params, state.opt_state)
            state.batch += 1
            if state.batch % 10 == 0:
                state.commit()

    train(hvd.elastic.JaxState(params=params, opt_state=opt_state, batch=0))

A commit waits for the arrays, because until then an error of a jitted function may not have appeared.

Compiled programs contain the job's size, this process's rank and the numbers of
process sets, so JAX's caches are cleared when a membership epoch begins.
Functions that the program has compiled itself (jit(f).lower(...).compile()) it
must compile again.
"""

import dataclasses
from typing import Any, Callable, Optional

import jax
import jax.numpy as jnp

from maypole.common import basics
from maypole.common.elastic import ObjectState, State, request_departure, reset, run_converting
from maypole.common.exceptions import HorovodInternalError, from_framework
from maypole.common.objects import broadcast_object
from maypole.jax import _ffi
from maypole.jax.functions import broadcast_parameters, is_key
from maypole.jax.optimizer import AccumulationState

__all__ = [
    "JaxState", "ObjectState", "State", "internal_error", "request_departure",
    "reset", "run"
]


class JaxState(ObjectState):
    """A state of pytrees and other objects, which are attributes.

    A save copies the jax.Arrays, so the program may donate them. sync() sends them as arrays; everything else
    must be picklable.

    Args:
        **kwargs: the state's attributes, with their values.
    """

    _most_passes = 0  # of a step, seen so far

    def __init__(self, **kwargs: Any):
        super().__init__(broadcast_object, basics.rank, **kwargs)

    def commit(self) -> None:
        """As for every state; an error of the operations that compute the attributes is raised first."""
        self._await_values()
        super().commit()

    def save(self) -> None:
        """Keeps copies of the attributes, once the operations that compute them have ended."""
        self._await_values()
        super().save()

    def _await_values(self) -> None:
        # The array of a failed operation must not be saved. jaxlib 0.4.38 drops some errors.
        jax.block_until_ready(self._values())
        failure = _ffi.take_failure()
        if failure is not None:
            raise from_framework(failure) or ValueError(failure)

    def sync(self) -> None:
        """Gives all ranks the attributes of rank 0, and saves them."""
        if self._saved_state:
            self._set(_broadcast(self._values()))
        self.save()

    def reset(self) -> None:
        """Forgets compiled functions, which contain the number of ranks."""
        jax.clear_caches()

    def _passes_if_within_step(self) -> int:
        states = [state for state in jax.tree_util.tree_leaves(self._values(), is_leaf=_accumulates)
                  if _accumulates(state)]
        passes = max((int(state.passes) for state in states), default=0)
        # A state does not say how many passes a step has.
        self._most_passes = max(self._most_passes, passes + 1)
        return self._most_passes if passes else 0

    def _values(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self._saved_state}


def _accumulates(value: Any) -> bool:
    return isinstance(value, AccumulationState)


@dataclasses.dataclass(frozen=True)
class _Array:
    """What a rank must know about an array to receive it. impl: a key's implementation."""

    shape: tuple[int, ...]
    dtype: Any
    impl: Any = None


def _described(leaf: Any) -> Any:
    if not isinstance(leaf, jax.Array):
        return leaf
    if not is_key(leaf):
        return _Array(leaf.shape, leaf.dtype)
    data = jax.random.key_data(leaf)
    return _Array(data.shape, data.dtype, jax.random.key_impl(leaf))


def _empty(array: _Array) -> Any:
    values = jnp.zeros(array.shape, array.dtype)
    if array.impl is None:
        return values
    return jax.random.wrap_key_data(values, impl=array.impl)


def _broadcast(values: Any) -> Any:
    """Returns rank 0's values on all ranks, whatever values the others have."""
    described = broadcast_object(jax.tree_util.tree_map(_described, values),
                                 name="maypole.jax.elastic.sync")
    leaves, structure = jax.tree_util.tree_flatten(described)
    if basics.rank() == 0:
        arrays = [
            leaf for leaf in jax.tree_util.tree_leaves(values)
            if isinstance(leaf, jax.Array)
        ]
    else:
        arrays = [_empty(leaf) for leaf in leaves if isinstance(leaf, _Array)]
    received = iter(broadcast_parameters(arrays))
    return structure.unflatten([
        next(received) if isinstance(leaf, _Array) else leaf for leaf in leaves
    ])


def internal_error(error: BaseException) -> Optional[HorovodInternalError]:
    """Returns the HorovodInternalError of an operation whose failure in a traced function made JAX raise `error`.

    None for other errors.
    """
    found = from_framework(error) if isinstance(error, RuntimeError) else None
    if found is not None:
        _ffi.take_failure()  # the program knows now
    return found


def run(func: Callable[..., Any]) -> Callable[..., Any]:
    """Decorates func(state, ...) so that it survives the loss of ranks and takes in new ones.

    See maypole.common.elastic.

    Args:
        func: func(state, ...), which trains.
    """
    return run_converting(func, internal_error)
