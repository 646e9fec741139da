"""Collectives on pytrees of arrays, inside and outside jit.

A pytree's leaves are submitted together, all or none; the result has the same
structure. Outside traced functions a collective waits for its result, and
errors are HorovodInternalErrors. Inside, it is part of the program: JAX runs it
asynchronously, and its error is JAX's (jax.errors.JaxRuntimeError), raised
where the program's results are used.

name: ranks match operations by it, with each leaf's path appended. Without it,
operations in a traced function are named after their place in the program
(docs/jax.md), and outside they are matched by order.
process_set: the ranks that take part.

Thread contract: any thread; operations of one name must not overlap.
Raises ValueError for wrong arguments and before init().
"""

import dataclasses
from typing import Any, Callable, Optional

import jax
import jax.numpy as jnp

from maypole import _native
from maypole.common import basics, collectives
from maypole.common.constants import Average, ReduceOp
from maypole.common.exceptions import not_initialized
from maypole.common.process_sets import ProcessSet, global_process_set, id_of
from maypole.jax import _collectives, _dtypes, _internals, _names
from maypole.jax._plans import KIND_NAMES, Plan, limited
from maypole.jax.compression import Compression, Compressor


def allreduce(tree: Any,
              average: Optional[bool] = None,
              name: Optional[str] = None,
              compression: type[Compressor] = Compression.none,
              op: Optional[ReduceOp] = None,
              prescale_factor: float = 1.0,
              postscale_factor: float = 1.0,
              process_set: ProcessSet = global_process_set) -> Any:
    """Reduces each leaf over the ranks.

    Differentiable: the gradient is reduced in the same way.

    Args:
        tree: a pytree of arrays, whose shapes and dtypes are the same on all ranks.
        average: older form of op: True for Average, False for Sum.
        name: ranks match the operation by this name; None: by the order of submission.
        compression: Compression.fp16 and bf16 send floats in 16 bits.
        op: Average (default), Sum, Min, Max, Product, or, for floating leaves, Adasum, each with its own coefficients.
        prescale_factor: factor for the inputs; not for bool.
        postscale_factor: factor for the result, likewise.
        process_set: the ranks that take part; all of them must make the call.

    Returns:
        A pytree of the same structure, shapes and dtypes, bit-equal on all ranks.

    Raises:
        ValueError: wrong arguments, or before init().
        HorovodInternalError: the operation failed: ranks disagreed on it, or a rank was lost.
    """
    return _reduced(_native.ALLREDUCE, tree, name, compression,
                    collectives.reduction(average, op), prescale_factor,
                    postscale_factor, process_set)


def reduce_checked(tree: Any,
                   check: tuple[Any, tuple[str, ...]],
                   name: Optional[str],
                   compression: type[Compressor],
                   op: ReduceOp,
                   prescale_factor: float,
                   postscale_factor: float,
                   process_set: ProcessSet) -> Any:
    """As allreduce(); the ranks also compare facts of an optimizer: `check` is what _checks.facts() returns."""
    return _reduced(_native.ALLREDUCE, tree, name, compression, collectives.reduction(None, op), prescale_factor,
                    postscale_factor, process_set, check)


def reducescatter(tree: Any,
                  name: Optional[str] = None,
                  compression: type[Compressor] = Compression.none,
                  op: ReduceOp = Average,
                  process_set: ProcessSet = global_process_set,
                  prescale_factor: float = 1.0,
                  postscale_factor: float = 1.0) -> Any:
    """Reduces each leaf over the ranks; returns this rank's rows of the result.

    Differentiable, as an allreduce is: the gradient is gathered and, for a sum, multiplied by the number of
    ranks.

    Args:
        tree: leaves of at least one dimension, with the same shapes on all ranks.
        name: ranks match the operation by this name; None: by the order of submission.
        compression: Compression.none, or fp16 or bf16, which send floats in 16 bits.
        op: Average or Sum. With r rows and n ranks, each rank gets r // n rows, and the first r % n ranks one
            more. Other arguments are those of allreduce.
        process_set: the ranks that take part; all of them must make the call.
        prescale_factor: factor for the inputs.
        postscale_factor: factor for the result.

    Raises:
        ValueError: wrong arguments, or before init().
        HorovodInternalError: the operation failed: ranks disagreed on it, or a rank was lost.
    """
    op = collectives.reduction(None, op)
    for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]:
        collectives.check_scattered((name or "") + jax.tree_util.keystr(path), jnp.ndim(leaf), op)
    return _reduced(_native.REDUCESCATTER, tree, name, compression, op, prescale_factor,
                    postscale_factor, process_set)


def allgather(tree: Any,
              name: Optional[str] = None,
              process_set: ProcessSet = global_process_set) -> Any:
    """Concatenates the ranks' leaves along dimension 0, in rank order.

    A scalar counts as one element. Outside traced functions the first dimension may differ between ranks;
    inside it must not, because the program's shapes are fixed (the library checks it). Differentiable: each
    rank gets its own rows of the averaged gradient.

    Args:
        tree: a pytree of arrays.
        name: ranks match the operation by this name; None: by the order of submission.
        process_set: the ranks that take part; all of them must make the call.

    Returns:
        A pytree of the same structure, whose leaves have the rows of all ranks, in rank order.

    Raises:
        ValueError: wrong arguments, or before init().
        HorovodInternalError: the operation failed: ranks disagreed on it, or a rank was lost.
    """
    plan, leaves, rebuild = _planned(_native.ALLGATHER, tree, name, process_set)
    leaves = [leaf.reshape(1) if leaf.ndim == 0 else leaf for leaf in leaves]
    return rebuild(_collectives.apply(plan, tuple(leaves)))


def broadcast(tree: Any,
              root_rank: int = 0,
              name: Optional[str] = None,
              process_set: ProcessSet = global_process_set) -> Any:
    """Returns the values of rank `root_rank`'s leaves on all ranks.

    Differentiable: the averaged gradient goes to the root.

    Args:
        tree: a pytree of arrays.
        root_rank: a rank of the job (not an index in the process set); it must be in the set. Shapes and dtypes
            must be the same on all ranks.
        name: ranks match the operation by this name; None: by the order of submission.
        process_set: the ranks that take part; all of them must make the call.

    Raises:
        ValueError: wrong arguments, or before init().
        HorovodInternalError: the operation failed: ranks disagreed on it, or a rank was lost.
    """
    plan, leaves, rebuild = _planned(_native.BROADCAST, tree, name, process_set,
                                     root=collectives.check_root(name, root_rank))
    return rebuild(_collectives.apply(plan, tuple(leaves)))


def alltoall(tree: Any,
             splits: Any = None,
             name: Optional[str] = None,
             process_set: ProcessSet = global_process_set) -> Any:
    """Sends each rank some rows of each leaf; returns the rows received.

    Args:
        tree: a pytree of arrays.
        splits: how many rows of each leaf go to each rank of the set, in rank order; None: equal parts.
        name: ranks match the operation by this name; None: by the order of submission.
        process_set: the ranks that take part; all of them must make the call.

    Returns:
        The rows from all ranks, in rank order; if splits is given, a pair of these rows and of how many came
        from each rank. Inside traced functions only equal parts are possible, of a first dimension that is
        the same on all ranks. Differentiable in floating leaves.

    Raises:
        ValueError: wrong arguments, or before init().
        HorovodInternalError: the operation failed: ranks disagreed on it, or a rank was lost.
    """
    plan, leaves, rebuild = _planned(_native.ALLTOALL, tree, name, process_set)
    if splits is not None:
        numbers = collectives.splits_of(
            getattr(splits, "tolist", lambda: splits)(), plan.names[0])
        rows, received = _collectives.apply_splits(plan, tuple(numbers or ()),
                                                   tuple(leaves))
        return rebuild(rows), received
    ranks = len(collectives.ranks_of(plan.process_set))
    for i, leaf in enumerate(leaves):
        if leaf.ndim == 0 or leaf.shape[0] % ranks:
            raise ValueError(
                f"{collectives.title('alltoall', plan.label(i))}: its shape is "
                f"{list(leaf.shape)}, expected a first dimension that is a "
                f"multiple of {ranks}, the number of ranks, or splits")
    return rebuild(_collectives.apply(plan, tuple(leaves)))


def _reduced(kind: int, tree: Any, name: Optional[str], compression: type[Compressor],
             op: ReduceOp, prescale: float, postscale: float, process_set: Any,
             check: Optional[tuple[Any, tuple[str, ...]]] = None) -> Any:
    prescale, postscale = collectives.check_factors(KIND_NAMES[kind], name,
                                                    prescale, postscale)
    plan, leaves, rebuild = _planned(kind, tree, name, process_set, op=op,
                                     prescale=prescale, postscale=postscale)
    compressed = [compression.compress(leaf) for leaf in leaves]
    inputs = [small for small, _ in compressed]
    if check is not None and inputs:
        base = plan.names[0][:len(plan.names[0]) - len(plan.paths[0])] or KIND_NAMES[kind]
        plan = dataclasses.replace(plan, names=plan.names + (limited(base + ".check"),), check=check[1])
        inputs.append(check[0])
    results = _collectives.apply(plan, tuple(inputs))
    return rebuild([
        compression.decompress(result, context)
        for result, (_, context) in zip(results, compressed)
    ])


def _planned(kind: int, tree: Any, name: Optional[str], process_set: Any,
             **arguments: Any) -> tuple[Plan, list[Any], Callable[[Any], Any]]:
    """Returns (the plan, the leaves as arrays, a function that makes a pytree of the results)."""
    _check_place(kind)
    collectives.check_name(KIND_NAMES[kind], name)
    leaves, structure = jax.tree_util.tree_flatten(tree)
    arguments["paths"] = paths = _names.paths_of(structure)
    leaves = [_array(leaf, KIND_NAMES[kind], (name or "") + path) for leaf, path in zip(leaves, paths)]
    if name is None and _internals.is_top_level():
        names = _names.outside(KIND_NAMES[kind], id_of(process_set), structure)
    else:
        base = _names.of_place(KIND_NAMES[kind]) if name is None else name
        names = _names.of_leaves(base, structure)
    plan = Plan(kind, names, process_set=id_of(process_set), **arguments)
    for i, leaf in enumerate(leaves):
        _dtypes.code(leaf.dtype, plan, i)
        most = _dtypes.MAX_DIMS - _dtypes.foreign_dims(leaf.dtype)
        if leaf.ndim > most:
            raise ValueError(f"{collectives.title(KIND_NAMES[kind], plan.label(i))}: it has {leaf.ndim} dimensions, "
                             f"expected at most {most}; reshape it")
    return plan, leaves, lambda results: structure.unflatten(results)


def _array(leaf: Any, kind: str, label: str) -> Any:
    if isinstance(leaf, jax.Array) or getattr(leaf, "dtype", None) == jax.dtypes.float0:
        return leaf
    try:
        return jnp.asarray(leaf)
    except TypeError as error:
        raise TypeError(f"{collectives.title(kind, label)}: a leaf of the pytree is {leaf!r:.80}, expected an array "
                        f"or a number; leave it out, or use broadcast_object() ({error})") from None


def _check_place(kind: int) -> None:
    if not basics.in_job():
        raise ValueError(not_initialized())
    axes = _internals.device_axes()
    if axes:
        raise ValueError(
            f"{KIND_NAMES[kind]} inside pmap or shard_map over "
            f"{', '.join(sorted(map(str, axes)))}: it would run once for each "
            "device under one name; reduce over the devices first "
            "(jax.lax.pmean), and call it outside")
