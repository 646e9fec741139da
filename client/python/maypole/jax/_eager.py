"""Collectives on values, outside traced functions: on the arrays' host memory.

An array of the CPU is read where it is. An array of another device comes through
the host, and the result goes back to where its input was.

Thread contract: any thread; waits for the result, without the GIL. Ctrl-C ends
the wait. Raises HorovodInternalError.
"""

import functools
import logging
from collections.abc import Sequence
from typing import Any, Optional

import jax
import numpy as np

from maypole import _native
from maypole.arrays._submissions import address, contiguous, rows_of
from maypole.common import collectives, operations
from maypole.jax import _dtypes
from maypole.jax._plans import Plan

_log = logging.getLogger("maypole.jax")
_ALIGNMENT = 64  # of memory that XLA uses without a copy


def run(plan: Plan, leaves: Sequence[Any],
        splits: Optional[Sequence[int]] = None) -> list[Any]:
    """Runs a collective for each leaf, all together; returns the results.

    The result for an alltoall with `splits` is a pair: (rows, numpy array of
    how many came from each rank).
    """
    members = [
        _prepare(plan, i, leaf, splits) for i, leaf in enumerate(leaves)
    ]
    operations.start_group(members)
    results, error = operations.wait_all(members)
    if error is not None:
        failed = next(i for i, result in enumerate(results) if result is None)
        if not plan.names[failed] and plan.label(failed):
            error.args = (f"{error} (leaf {plan.label(failed)} of the tree)",)
        raise error
    return [_placed(result, leaf) for result, leaf in zip(results, leaves)]


def _prepare(plan: Plan, i: int, leaf: Any,
             splits: Optional[Sequence[int]]) -> operations.Pending:
    source = contiguous(np.asarray(leaf))
    target, finish = None, None
    if plan.kind in (_native.ALLGATHER, _native.ALLTOALL):
        finish = rows_of(source, plan.process_set, None if splits is None else np.int32)
    else:
        shape = source.shape
        if plan.kind == _native.REDUCESCATTER:
            shape = (collectives.scattered_rows(shape[0], plan.process_set),
                     ) + shape[1:]
        target = _aligned(shape, source.dtype)
    return operations.prepare(
        plan.kind, _dtypes.code(source.dtype, plan, i), plan.op, plan.root,
        source.shape, plan.prescale, plan.postscale, plan.names[i] or None,
        address(source), 0 if target is None else address(target), source,
        target, finish, finish_releases=finish is not None,
        process_set=plan.process_set, splits=splits)


def _aligned(shape: Sequence[int], dtype: np.dtype) -> np.ndarray:
    """An array in memory that a jax.Array can use without a copy."""
    size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    memory = np.empty(size + _ALIGNMENT, np.uint8)
    start = -address(memory) % _ALIGNMENT
    return memory[start:start + size].view(dtype).reshape(shape)


def _placed(result: Any, leaf: Any) -> Any:
    """`result` as a jax.Array where `leaf` is; committed to a device if it is."""
    if isinstance(result, tuple):
        return (_placed(result[0], leaf), result[1])
    if not isinstance(leaf, jax.Array) or not leaf.committed:
        return jax.device_put(result)
    for device in leaf.sharding.device_set:
        if device.platform != "cpu":
            _say_once(device.platform)
            break
    # On a CPU the array uses the result's memory.
    return jax.device_put(result, leaf.sharding)


@functools.cache
def _say_once(platform: str) -> None:
    _log.warning("maypole.jax: arrays of %s go through the host's memory",
                 platform)
