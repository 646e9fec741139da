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
from maypole.common.constants import Min
from maypole.jax import _checks, _dtypes
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
        if _dtypes.foreign_dims(leaves[failed].dtype):
            error.args = (f"{error} (of an unsigned or complex array: the shape given here ends with dimensions of 1 "
                          "that the array lacks, which ranks with another dtype do not have)",)
        raise error
    if plan.check:
        different = _checks.first_difference(leaves[-1], results[-1], plan.check)
        if different is not None:
            raise ValueError(different)
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
    op, prescale, postscale = plan.op, plan.prescale, plan.postscale
    if plan.check and i == len(plan.names) - 1:
        op, prescale, postscale = Min, 1.0, 1.0
    return operations.prepare(
        plan.kind, _dtypes.code(source.dtype, plan, i), op, plan.root,
        source.shape + (1,) * _dtypes.foreign_dims(source.dtype), prescale, postscale, plan.names[i] or None,
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
