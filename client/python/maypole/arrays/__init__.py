"""Collectives on arrays in host memory, for programs without a framework.

    import numpy as np
    import maypole as hvd

    hvd.init()
    mean = hvd.allreduce(np.arange(4.0) * hvd.rank(), name="x")

An array is a NumPy array or an object with __dlpack__ whose memory is the
host's (torch's, JAX's, ...); where the function does not write
into it, also a number or an object with __array__. Results are NumPy arrays;
functions whose name ends in '_' write into the array and return it; these functions refuse
immutable arrays (read-only ones, JAX's). bfloat16 arrays have the dtype of the package
ml_dtypes. Arrays on a GPU raise an error.

Operations are matched between ranks by process set, kind and name, in any
order; unnamed operations by the order of submission within their set and kind.
A name can be used again when its operation has ended. The functions with
`_async` in their names do not block: they return a handle for synchronize(). A
handle owns its arrays until then, and the input must not be changed until then.
A group is accepted whole or, if one member is refused, not at all; its members
are named `<name>.<i>of<n>`.

process_set: the ranks that take part; all of them must submit the operation.

Thread contract: any thread. Errors of the call itself (not initialized, name
pending, dtype, root, splits, a process set that this rank is not in) raise
ValueError; objects that are not arrays raise TypeError. Errors of the operation
raise HorovodInternalError, in the call or, for an `_async` function, in
synchronize().
"""

from collections.abc import Sequence
from typing import Any, Optional, Union

import numpy as np

from maypole.arrays import _submissions
from maypole.common import operations
from maypole.common.collectives import barrier, join, member_names, reduction
from maypole.common.constants import Average, ReduceOp
from maypole.common.operations import poll, synchronize
from maypole.common.process_sets import ProcessSet, global_process_set, id_of

__all__ = [
    "allgather", "allgather_async", "allreduce", "allreduce_", "allreduce_async", "allreduce_async_", "alltoall",
    "alltoall_async", "barrier", "broadcast", "broadcast_", "broadcast_async", "broadcast_async_", "grouped_allgather",
    "grouped_allgather_async", "grouped_allreduce", "grouped_allreduce_", "grouped_allreduce_async",
    "grouped_allreduce_async_", "grouped_reducescatter", "grouped_reducescatter_async", "join", "poll", "reducescatter",
    "reducescatter_async", "synchronize",
]


def _handle(pending: operations.Pending) -> int:
    return operations.add(operations.start(pending))


def _reduced(tensor: Any, average: Optional[bool], name: Optional[str],
             op: Optional[ReduceOp], prescale: float, postscale: float,
             process_set: Any, in_place: bool) -> Any:
    return operations.run(_submissions.allreduce(tensor, name, reduction(average, op),
                                       prescale, postscale, id_of(process_set),
                                       in_place, awaited=True))


def allreduce(tensor: Any,
              average: Optional[bool] = None,
              name: Optional[str] = None,
              op: Optional[ReduceOp] = None,
              prescale_factor: float = 1.0,
              postscale_factor: float = 1.0,
              process_set: ProcessSet = global_process_set) -> np.ndarray:
    """Reduces `tensor` over the ranks of a set into a new array of its shape.

    Args:
        tensor: any shape, the same on all ranks; it is not changed.
        average: older form of op: True for Average, False for Sum.
        name: ranks match the operation by this name; None: by the order of submission.
        op: Average (default), Sum, Min, Max, Product, Adasum (floating dtypes only). Integer averages truncate
            toward zero; integers wrap around on overflow. For bool, Sum and Max mean OR, Product and Min mean
            AND. If an input of Min or Max is NaN, so is the result.
        prescale_factor: factor for the inputs; not for bool. Integers are multiplied in float64, rounded toward
            zero and limited to the dtype's range.
        postscale_factor: factor for the result, likewise.
        process_set: the ranks that take part; all of them must make the call.

    Returns:
        A new array of the same shape and dtype, bit-equal on all ranks.

    Raises:
        ValueError: wrong arguments, or before init().
        HorovodInternalError: the operation failed: ranks disagreed on it, or a rank was lost.
    """
    return _reduced(tensor, average, name, op, prescale_factor,
                    postscale_factor, process_set, False)


def allreduce_(tensor: Any,
               average: Optional[bool] = None,
               name: Optional[str] = None,
               op: Optional[ReduceOp] = None,
               prescale_factor: float = 1.0,
               postscale_factor: float = 1.0,
               process_set: ProcessSet = global_process_set) -> Any:
    """Allreduce in place: writes the result to `tensor` and returns it.

    After an error the array's contents are undefined.
    """
    return _reduced(tensor, average, name, op, prescale_factor,
                    postscale_factor, process_set, True)


def allreduce_async(tensor: Any,
                    average: Optional[bool] = None,
                    name: Optional[str] = None,
                    op: Optional[ReduceOp] = None,
                    prescale_factor: float = 1.0,
                    postscale_factor: float = 1.0,
                    process_set: ProcessSet = global_process_set) -> int:
    """Starts allreduce(); returns a handle."""
    return _handle(_submissions.allreduce(
        tensor, name, reduction(average, op), prescale_factor,
        postscale_factor, id_of(process_set), False))


def allreduce_async_(tensor: Any,
                     average: Optional[bool] = None,
                     name: Optional[str] = None,
                     op: Optional[ReduceOp] = None,
                     prescale_factor: float = 1.0,
                     postscale_factor: float = 1.0,
                     process_set: ProcessSet = global_process_set) -> int:
    """Starts allreduce_(); returns a handle. An array that is not contiguous gets its result at synchronize()."""
    return _handle(_submissions.allreduce(
        tensor, name, reduction(average, op), prescale_factor,
        postscale_factor, id_of(process_set), True))


def _allreduces(tensors: Sequence[Any], average: Optional[bool],
                name: Optional[str], op: Optional[ReduceOp], prescale: float,
                postscale: float, process_set: Any,
                in_place: bool) -> operations.PendingGroup:
    op, number = reduction(average, op), id_of(process_set)
    return operations.start_group([
        _submissions.allreduce(tensor, member, op, prescale, postscale, number,
                               in_place)
        for tensor, member in zip(tensors, member_names(name, len(tensors)))
    ])


def grouped_allreduce(tensors: Sequence[Any],
                      average: Optional[bool] = None,
                      name: Optional[str] = None,
                      op: Optional[ReduceOp] = None,
                      prescale_factor: float = 1.0,
                      postscale_factor: float = 1.0,
                      process_set: ProcessSet = global_process_set
                     ) -> list[np.ndarray]:
    """allreduce() of each of `tensors`; returns the list of results."""
    return _allreduces(tensors, average, name, op, prescale_factor,
                       postscale_factor, process_set, False).wait()


def grouped_allreduce_(tensors: Sequence[Any],
                       average: Optional[bool] = None,
                       name: Optional[str] = None,
                       op: Optional[ReduceOp] = None,
                       prescale_factor: float = 1.0,
                       postscale_factor: float = 1.0,
                       process_set: ProcessSet = global_process_set) -> list[Any]:
    """allreduce_() of each of `tensors`."""
    return _allreduces(tensors, average, name, op, prescale_factor,
                       postscale_factor, process_set, True).wait()


def grouped_allreduce_async(tensors: Sequence[Any],
                            average: Optional[bool] = None,
                            name: Optional[str] = None,
                            op: Optional[ReduceOp] = None,
                            prescale_factor: float = 1.0,
                            postscale_factor: float = 1.0,
                            process_set: ProcessSet = global_process_set) -> int:
    """Starts grouped_allreduce(); one handle for all."""
    return operations.add(
        _allreduces(tensors, average, name, op, prescale_factor,
                    postscale_factor, process_set, False))


def grouped_allreduce_async_(tensors: Sequence[Any],
                             average: Optional[bool] = None,
                             name: Optional[str] = None,
                             op: Optional[ReduceOp] = None,
                             prescale_factor: float = 1.0,
                             postscale_factor: float = 1.0,
                             process_set: ProcessSet = global_process_set) -> int:
    """Starts grouped_allreduce_(); one handle for all."""
    return operations.add(
        _allreduces(tensors, average, name, op, prescale_factor,
                    postscale_factor, process_set, True))


def allgather(tensor: Any,
              name: Optional[str] = None,
              process_set: ProcessSet = global_process_set) -> np.ndarray:
    """Concatenates the ranks' `tensor`s along dimension 0, in rank order.

    The first dimension may differ between ranks (and may be 0), the others must not. A scalar counts as one
    element.

    Args:
        tensor: [rows, ...]: the number of rows may differ between ranks (and may be 0), the rest must not.
        name: ranks match the operation by this name; None: by the order of submission.
        process_set: the ranks that take part; all of them must make the call.

    Returns:
        [all rows, ...], in rank order.

    Raises:
        ValueError: wrong arguments, or before init().
        HorovodInternalError: the operation failed: ranks disagreed on it, or a rank was lost.
    """
    return operations.run(_submissions.allgather(tensor, name, id_of(process_set), True))


def allgather_async(tensor: Any,
                    name: Optional[str] = None,
                    process_set: ProcessSet = global_process_set) -> int:
    """Starts allgather(); returns a handle."""
    return _handle(_submissions.allgather(tensor, name, id_of(process_set)))


def _allgathers(tensors: Sequence[Any], name: Optional[str],
                process_set: Any) -> operations.PendingGroup:
    number = id_of(process_set)
    return operations.start_group([
        _submissions.allgather(tensor, member, number)
        for tensor, member in zip(tensors, member_names(name, len(tensors)))
    ])


def grouped_allgather(tensors: Sequence[Any],
                      name: Optional[str] = None,
                      process_set: ProcessSet = global_process_set
                     ) -> list[np.ndarray]:
    """allgather() of each of `tensors`; returns the list of results."""
    return _allgathers(tensors, name, process_set).wait()


def grouped_allgather_async(tensors: Sequence[Any],
                            name: Optional[str] = None,
                            process_set: ProcessSet = global_process_set) -> int:
    """Starts grouped_allgather(); one handle for all."""
    return operations.add(_allgathers(tensors, name, process_set))


def broadcast(tensor: Any,
              root_rank: int,
              name: Optional[str] = None,
              process_set: ProcessSet = global_process_set) -> np.ndarray:
    """Returns a new array with the values of rank `root_rank`'s `tensor`.

    Args:
        tensor: any shape and dtype, the same on all ranks.
        root_rank: a rank of the job (not an index in the process set); it must be in the set. Shape and dtype
            must be the same on all ranks.
        name: ranks match the operation by this name; None: by the order of submission.
        process_set: the ranks that take part; all of them must make the call.

    Raises:
        ValueError: wrong arguments, or before init().
        HorovodInternalError: the operation failed: ranks disagreed on it, or a rank was lost.
    """
    return operations.run(_submissions.broadcast(tensor, root_rank, name,
                                       id_of(process_set), False, True))


def broadcast_(tensor: Any,
               root_rank: int,
               name: Optional[str] = None,
               process_set: ProcessSet = global_process_set) -> Any:
    """Broadcast in place: writes the root's values to `tensor`, returns it."""
    return operations.run(_submissions.broadcast(tensor, root_rank, name,
                                       id_of(process_set), True, True))


def broadcast_async(tensor: Any,
                    root_rank: int,
                    name: Optional[str] = None,
                    process_set: ProcessSet = global_process_set) -> int:
    """Starts broadcast(); returns a handle."""
    return _handle(_submissions.broadcast(tensor, root_rank, name,
                                          id_of(process_set), False))


def broadcast_async_(tensor: Any,
                     root_rank: int,
                     name: Optional[str] = None,
                     process_set: ProcessSet = global_process_set) -> int:
    """Starts broadcast_(); returns a handle."""
    return _handle(_submissions.broadcast(tensor, root_rank, name,
                                          id_of(process_set), True))


def alltoall(
    tensor: Any,
    splits: Any = None,
    name: Optional[str] = None,
    process_set: ProcessSet = global_process_set
) -> Union[np.ndarray, tuple[np.ndarray, np.ndarray]]:
    """Sends each rank some rows of `tensor`; returns the rows received.

    Args:
        tensor: [rows, ...]: all dimensions except the first must be the same on all ranks.
        splits: how many rows go to each rank of the set, in rank order: a list or an int32 or int64 array;
            None: equal parts.
        name: ranks match the operation by this name; None: by the order of submission.
        process_set: the ranks that take part; all of them must make the call.

    Returns:
        The rows from all ranks, in rank order; if splits is given, a pair of these rows and of how many came
        from each rank (int32, or the dtype of `splits`).

    Raises:
        ValueError: wrong arguments, or before init().
        HorovodInternalError: the operation failed: ranks disagreed on it, or a rank was lost.
    """
    rows, received = operations.run(
        _submissions.alltoall(tensor, splits, name, id_of(process_set), True))
    return rows if splits is None else (rows, received)


def alltoall_async(tensor: Any,
                   splits: Any = None,
                   name: Optional[str] = None,
                   process_set: ProcessSet = global_process_set) -> int:
    """Starts alltoall(); returns a handle. synchronize() returns the pair, also without splits."""
    return _handle(
        _submissions.alltoall(tensor, splits, name, id_of(process_set)))


def reducescatter(tensor: Any,
                  name: Optional[str] = None,
                  op: ReduceOp = Average,
                  process_set: ProcessSet = global_process_set,
                  prescale_factor: float = 1.0,
                  postscale_factor: float = 1.0) -> np.ndarray:
    """Reduces `tensor` over the ranks; returns this rank's rows of the result.

    Args:
        tensor: has at least one dimension, and the same shape on all ranks.
        name: ranks match the operation by this name; None: by the order of submission.
        op: Average or Sum. With r rows and n ranks, each rank gets r // n rows, and the first r % n ranks one
            more.
        process_set: the ranks that take part; all of them must make the call.
        prescale_factor: factor for the inputs.
        postscale_factor: factor for the result.

    Raises:
        ValueError: wrong arguments, or before init().
        HorovodInternalError: the operation failed: ranks disagreed on it, or a rank was lost.
    """
    return operations.run(
        _submissions.reducescatter(tensor, name, reduction(None, op),
                                   prescale_factor, postscale_factor,
                                   id_of(process_set), True))


def reducescatter_async(tensor: Any,
                        name: Optional[str] = None,
                        op: ReduceOp = Average,
                        process_set: ProcessSet = global_process_set,
                        prescale_factor: float = 1.0,
                        postscale_factor: float = 1.0) -> int:
    """Starts reducescatter(); returns a handle."""
    return _handle(
        _submissions.reducescatter(tensor, name, reduction(None, op),
                                   prescale_factor, postscale_factor,
                                   id_of(process_set)))


def _reducescatters(tensors: Sequence[Any], name: Optional[str], op: ReduceOp,
                    process_set: Any, prescale: float,
                    postscale: float) -> operations.PendingGroup:
    op, number = reduction(None, op), id_of(process_set)
    return operations.start_group([
        _submissions.reducescatter(tensor, member, op, prescale, postscale,
                                   number)
        for tensor, member in zip(tensors, member_names(name, len(tensors)))
    ])


def grouped_reducescatter(tensors: Sequence[Any],
                          name: Optional[str] = None,
                          op: ReduceOp = Average,
                          process_set: ProcessSet = global_process_set,
                          prescale_factor: float = 1.0,
                          postscale_factor: float = 1.0) -> list[np.ndarray]:
    """reducescatter() of each of `tensors`; returns the list of results."""
    return _reducescatters(tensors, name, op, process_set, prescale_factor,
                           postscale_factor).wait()


def grouped_reducescatter_async(tensors: Sequence[Any],
                                name: Optional[str] = None,
                                op: ReduceOp = Average,
                                process_set: ProcessSet = global_process_set,
                                prescale_factor: float = 1.0,
                                postscale_factor: float = 1.0) -> int:
    """Starts grouped_reducescatter(); one handle for all."""
    return operations.add(
        _reducescatters(tensors, name, op, process_set, prescale_factor,
                        postscale_factor))
