"""Collectives on MXNet's NDArrays (mx.nd and mx.np).

allreduce, broadcast and reducescatter are operations of MXNet's engine: they
return at once and run when their input is ready; the program waits for their
result as for that of every operation of MXNet (wait_to_read(), asnumpy()). A
failed operation raises MXNetError there, with Maypole's text. allgather and
alltoall block, because the ranks must agree on the shape of the result; their
errors are Maypole's own.

priority: of the engine's operation; higher ones run earlier.

Operations are matched between ranks by process set, kind and name; unnamed
ones by the order of the calls. Arrays on a GPU are copied to the host and back.

Thread contract: any thread; unnamed operations one at a time. Errors of the call
itself raise ValueError; objects that are not NDArrays raise TypeError.
"""

import logging
from collections.abc import Sequence
from typing import Any, Optional

import mxnet as mx
import numpy as np

from maypole import _native, arrays
from maypole.common import collectives
from maypole.common.collectives import member_names, reduction, title
from maypole.common.constants import Average, ReduceOp
from maypole.common.process_sets import ProcessSet, global_process_set, id_of
from maypole.mxnet import _engine

__all__ = [
    "allgather", "allreduce", "allreduce_", "alltoall", "broadcast", "broadcast_", "grouped_allgather",
    "grouped_allreduce", "grouped_allreduce_", "grouped_reducescatter", "reducescatter",
]

_log = logging.getLogger("maypole.mxnet")

# MXNet has no 16-bit integers, and represents bfloat16 in its own way.
_DTYPES: dict[Any, int] = {np.dtype(name): number for name, number in _native.DTYPES.items()
                           if name not in ("int16", "uint16", "bfloat16")}
_DTYPES[np.dtype([("bfloat16", np.uint16)])] = _native.BFLOAT16

_told_of_gpu = False


def _check(tensor: Any, kind: str, name: Optional[str]) -> None:
    collectives.check_name(kind, name)
    if not isinstance(tensor, mx.nd.NDArray):
        raise TypeError(f"{title(kind, name)}: expected an NDArray, got "
                        f"{type(tensor).__name__}")
    if tensor.stype != "default":
        raise ValueError(f"{title(kind, name)}: its storage type is "
                         f"{tensor.stype}, expected default; pass "
                         "tensor.tostype('default')")
    if np.dtype(tensor.dtype) not in _DTYPES:
        raise ValueError(f"{title(kind, name)}: dtype {tensor.dtype} is not "
                         "supported")
    if tensor.ndim > _native.MAX_DIMS:
        raise ValueError(f"{title(kind, name)}: it has {tensor.ndim} "
                         f"dimensions, but at most {_native.MAX_DIMS} are "
                         "supported; reshape it")


def _is_on_host(tensor: mx.nd.NDArray) -> bool:
    global _told_of_gpu
    if tensor.context.device_type != "gpu":
        return True
    if not _told_of_gpu:
        _log.warning("maypole: MXNet's arrays on a GPU are copied to the host "
                     "for each operation, and back")
        _told_of_gpu = True
    return False


def _empty(like: mx.nd.NDArray, shape: Sequence[int]) -> mx.nd.NDArray:
    module = mx.np if isinstance(like, mx.np.ndarray) else mx.nd
    with mx.util.np_shape(True):  # 0 rows are 0 rows
        return module.empty(tuple(shape), ctx=like.context, dtype=like.dtype)


def _from_numpy(values: np.ndarray, like: mx.nd.NDArray) -> mx.nd.NDArray:
    """Returns an array of the kind of `like`, with these values and their dtype."""
    module = mx.np if isinstance(like, mx.np.ndarray) else mx.nd
    with mx.util.np_shape(True):
        return module.array(values, ctx=like.context, dtype=values.dtype)


def _push(kind: int, tensor: mx.nd.NDArray, output: mx.nd.NDArray,
          name: Optional[str], priority: int, process_set: int, op: int = 0,
          root: int = 0, prescale: float = 1.0,
          postscale: float = 1.0) -> mx.nd.NDArray:
    """Pushes an operation, which writes `output`; returns `output`."""
    name = name or collectives.next_name(f"mxnet.{kind}", process_set)
    source = target = None
    if not _is_on_host(tensor):
        source = tensor.as_in_context(mx.cpu())
        target = source if output is tensor else output.as_in_context(mx.cpu())
    _engine.push(kind, _DTYPES[np.dtype(tensor.dtype)], op, root, prescale, postscale,
                 name, process_set, tensor if source is None else source,
                 output if target is None else target, priority)
    if target is not None:
        target.copyto(output)
    return output


def _check_all(tensors: Sequence[Any], kind: str, names: Sequence[Optional[str]]) -> None:
    for tensor, name in zip(tensors, names):
        _check(tensor, kind, name)


def _allreduced(tensors: Sequence[mx.nd.NDArray], names: Sequence[Optional[str]], average: Optional[bool],
                op: Optional[ReduceOp], priority: int, prescale: float, postscale: float, process_set: ProcessSet,
                in_place: bool) -> list[mx.nd.NDArray]:
    """Pushes a reduction of each tensor, if none of them is refused."""
    op = reduction(average, op)
    _check_all(tensors, "allreduce", names)
    factors = [collectives.check_factors("allreduce", name, prescale, postscale) for name in names]
    number = id_of(process_set)
    return [_push(_native.ALLREDUCE, tensor, tensor if in_place else _empty(tensor, tensor.shape), name, priority,
                  number, op, 0, *both) for tensor, name, both in zip(tensors, names, factors)]


def allreduce(tensor: mx.nd.NDArray,
              average: Optional[bool] = None,
              name: Optional[str] = None,
              priority: int = 0,
              prescale_factor: float = 1.0,
              postscale_factor: float = 1.0,
              process_set: ProcessSet = global_process_set,
              op: Optional[ReduceOp] = None) -> mx.nd.NDArray:
    """Reduces `tensor` over the ranks of a set into a new array of its shape.

    Args:
        tensor: any shape, the same on all ranks; it is not changed.
        average: older form of op: True for Average, False for Sum.
        name: ranks match the operation by this name; None: by the order of submission.
        priority: the operation's priority in MXNet's engine.
        prescale_factor: factor for the inputs.
        postscale_factor: factor for the result.
        process_set: the ranks that take part; all of them must make the call.
        op: Average (default), Sum, Min, Max, Product, Adasum (floating dtypes only). Integer averages truncate
            toward zero. For bool, Sum and Max mean OR, Product and Min mean AND.

    Returns:
        A new array of the same shape and dtype, bit-equal on all ranks.

    Raises:
        ValueError: wrong arguments, or before init().
        MXNetError: at the wait for the result: ranks disagreed on the operation, or a rank was lost.
    """
    return _allreduced([tensor], [name], average, op, priority, prescale_factor, postscale_factor, process_set,
                       False)[0]


def allreduce_(tensor: mx.nd.NDArray,
               average: Optional[bool] = None,
               name: Optional[str] = None,
               priority: int = 0,
               prescale_factor: float = 1.0,
               postscale_factor: float = 1.0,
               process_set: ProcessSet = global_process_set,
               op: Optional[ReduceOp] = None) -> mx.nd.NDArray:
    """Allreduce in place: writes the result to `tensor` and returns it."""
    return _allreduced([tensor], [name], average, op, priority, prescale_factor, postscale_factor, process_set,
                       True)[0]


def grouped_allreduce(tensors: Sequence[mx.nd.NDArray],
                      average: Optional[bool] = None,
                      name: Optional[str] = None,
                      priority: int = 0,
                      prescale_factor: float = 1.0,
                      postscale_factor: float = 1.0,
                      process_set: ProcessSet = global_process_set,
                      op: Optional[ReduceOp] = None) -> list[mx.nd.NDArray]:
    """allreduce() of each of `tensors`, named `<name>.<i>of<n>`.

    Returns:
        The list of results.
    """
    return _allreduced(tensors, member_names(name, len(tensors)), average, op, priority, prescale_factor,
                       postscale_factor, process_set, False)


def grouped_allreduce_(tensors: Sequence[mx.nd.NDArray],
                       average: Optional[bool] = None,
                       name: Optional[str] = None,
                       priority: int = 0,
                       prescale_factor: float = 1.0,
                       postscale_factor: float = 1.0,
                       process_set: ProcessSet = global_process_set,
                       op: Optional[ReduceOp] = None) -> list[mx.nd.NDArray]:
    """allreduce_() of each of `tensors`, named `<name>.<i>of<n>`."""
    return _allreduced(tensors, member_names(name, len(tensors)), average, op, priority, prescale_factor,
                       postscale_factor, process_set, True)


def allgather(tensor: mx.nd.NDArray,
              name: Optional[str] = None,
              priority: int = 0,
              process_set: ProcessSet = global_process_set) -> mx.nd.NDArray:
    """Concatenates the ranks' `tensor`s along dimension 0, in rank order.

    The first dimension may differ between ranks, the others must not. Blocks; priority has no effect.

    Args:
        tensor: [rows, ...]: the number of rows may differ between ranks (and may be 0), the rest must not.
        name: ranks match the operation by this name; None: by the order of submission.
        priority: the operation's priority in MXNet's engine.
        process_set: the ranks that take part; all of them must make the call.

    Returns:
        [all rows, ...], in rank order.

    Raises:
        ValueError: wrong arguments, or before init().
        HorovodInternalError: the operation failed: ranks disagreed on it, or a rank was lost.
    """
    _check(tensor, "allgather", name)
    return _from_numpy(arrays.allgather(tensor.asnumpy(), name, process_set),
                       tensor)


def grouped_allgather(tensors: Sequence[mx.nd.NDArray],
                      name: Optional[str] = None,
                      priority: int = 0,
                      process_set: ProcessSet = global_process_set
                     ) -> list[mx.nd.NDArray]:
    """allgather() of each of `tensors`, named `<name>.<i>of<n>`.

    Returns:
        The list of results.
    """
    _check_all(tensors, "allgather", member_names(name, len(tensors)))
    gathered = arrays.grouped_allgather([t.asnumpy() for t in tensors], name,
                                        process_set)
    return [_from_numpy(rows, t) for rows, t in zip(gathered, tensors)]


def broadcast(tensor: mx.nd.NDArray,
              root_rank: int,
              name: Optional[str] = None,
              priority: int = 0,
              process_set: ProcessSet = global_process_set) -> mx.nd.NDArray:
    """Returns a new array with the values of rank `root_rank`'s `tensor`.

    Args:
        tensor: any shape and dtype, the same on all ranks.
        root_rank: a rank of the job (not an index in the process set). Shape and dtype must be the same on all
            ranks.
        name: ranks match the operation by this name; None: by the order of submission.
        priority: the operation's priority in MXNet's engine.
        process_set: the ranks that take part; all of them must make the call.

    Raises:
        ValueError: wrong arguments, or before init().
        MXNetError: at the wait for the result: ranks disagreed on the operation, or a rank was lost.
    """
    _check(tensor, "broadcast", name)
    root_rank = collectives.check_root(name, root_rank)
    return _push(_native.BROADCAST, tensor, _empty(tensor, tensor.shape), name,
                 priority, id_of(process_set), root=root_rank)


def broadcast_(tensor: mx.nd.NDArray,
               root_rank: int,
               name: Optional[str] = None,
               priority: int = 0,
               process_set: ProcessSet = global_process_set) -> mx.nd.NDArray:
    """Broadcast in place: writes the root's values to `tensor`, returns it."""
    _check(tensor, "broadcast", name)
    root_rank = collectives.check_root(name, root_rank)
    return _push(_native.BROADCAST, tensor, tensor, name, priority,
                 id_of(process_set), root=root_rank)


def alltoall(tensor: mx.nd.NDArray,
             splits: Any = None,
             name: Optional[str] = None,
             priority: int = 0,
             process_set: ProcessSet = global_process_set) -> Any:
    """Sends each rank some rows of `tensor`; returns the rows received.

    Args:
        tensor: [rows, ...]: all dimensions except the first must be the same on all ranks.
        splits: how many rows go to each rank of the set, in rank order: a list or an int32 or int64 array;
            None: equal parts. If it is given, the result is a pair: the rows, and how many came from each rank.
            Blocks; priority has no effect.
        name: ranks match the operation by this name; None: by the order of submission.
        priority: the operation's priority in MXNet's engine.
        process_set: the ranks that take part; all of them must make the call.

    Raises:
        ValueError: wrong arguments, or before init().
        HorovodInternalError: the operation failed: ranks disagreed on it, or a rank was lost.
    """
    _check(tensor, "alltoall", name)
    if isinstance(splits, mx.nd.NDArray):
        splits = splits.asnumpy()
    result = arrays.alltoall(tensor.asnumpy(), splits, name, process_set)
    if splits is None:
        return _from_numpy(result, tensor)
    return tuple(_from_numpy(part, tensor) for part in result)


def _scattered(tensors: Sequence[mx.nd.NDArray], names: Sequence[Optional[str]], op: ReduceOp, priority: int,
               process_set: ProcessSet, prescale: float, postscale: float) -> list[mx.nd.NDArray]:
    """Pushes a reducescatter of each tensor, if none of them is refused."""
    op = reduction(None, op)
    _check_all(tensors, "reducescatter", names)
    number = id_of(process_set)
    results = []
    for tensor, name in zip(tensors, names):
        collectives.check_scattered(name, tensor.ndim, op)
        factors = collectives.check_factors("reducescatter", name, prescale, postscale)
        rows = collectives.scattered_rows(tensor.shape[0], number)
        results.append(_push(_native.REDUCESCATTER, tensor, _empty(tensor, (rows,) + tensor.shape[1:]), name,
                             priority, number, op, 0, *factors))
    return results


def reducescatter(tensor: mx.nd.NDArray,
                  op: ReduceOp = Average,
                  name: Optional[str] = None,
                  priority: int = 0,
                  process_set: ProcessSet = global_process_set,
                  prescale_factor: float = 1.0,
                  postscale_factor: float = 1.0) -> mx.nd.NDArray:
    """Reduces `tensor` over the ranks; returns this rank's rows of the result.

    Args:
        tensor: has at least one dimension, and the same shape on all ranks.
        op: Average or Sum. With r rows and n ranks, each rank gets r // n rows, and the first r % n ranks one
            more.
        name: ranks match the operation by this name; None: by the order of submission.
        priority: the operation's priority in MXNet's engine.
        process_set: the ranks that take part; all of them must make the call.
        prescale_factor: factor for the inputs.
        postscale_factor: factor for the result.

    Raises:
        ValueError: wrong arguments, or before init().
        MXNetError: at the wait for the result: ranks disagreed on the operation, or a rank was lost.
    """
    return _scattered([tensor], [name], op, priority, process_set, prescale_factor, postscale_factor)[0]


def grouped_reducescatter(tensors: Sequence[mx.nd.NDArray],
                          op: ReduceOp = Average,
                          name: Optional[str] = None,
                          priority: int = 0,
                          process_set: ProcessSet = global_process_set,
                          prescale_factor: float = 1.0,
                          postscale_factor: float = 1.0
                         ) -> list[mx.nd.NDArray]:
    """reducescatter() of each of `tensors`, named `<name>.<i>of<n>`.

    Returns:
        The list of results.
    """
    return _scattered(tensors, member_names(name, len(tensors)), op, priority, process_set, prescale_factor,
                      postscale_factor)
