"""Collectives on torch tensors that return a handle at once.

Operations are matched between ranks by process set, kind and name, in any
order; unnamed operations by the order of submission within their set and kind.
A name can be used again when its operation has ended. The functions with
`_async` in their names do not block. A handle owns its tensors until
synchronize(); the input must not be changed until then. A group is accepted
whole or, if one member is refused, not at all.

Instead of a tensor, every function takes an array of another library that has
__dlpack__ or __cuda_array_interface__ (NumPy, CuPy, Numba, JAX, ...). The
function makes a tensor that shares the array's memory: an in-place operation
writes into the array, so the array must be mutable (JAX arrays are not).
Results are torch tensors. A read-only NumPy array is refused.

CUDA tensors: an operation reads its input in the order of the current stream of
the thread that submits it, and its result is ready in the order of the current
stream of the thread that calls synchronize(). These streams may differ. While
synchronize() waits for the copy of the result, signals do not interrupt it. All
ranks must give CUDA tensors, or all CPU tensors.

process_set: the ranks that take part; all of them must submit the operation.

Thread contract: any thread. Errors of the call itself (not initialized, name
pending, dtype, layout, root, splits, a process set that this rank is not in)
raise ValueError; tensors that are neither on the CPU nor on a CUDA device and
other unsupported arguments raise NotImplementedError; objects that are neither
tensors nor arrays raise TypeError. synchronize() raises the errors of the
operation.
"""

from collections.abc import Sequence
from typing import Any, Optional

import torch

from maypole.common import collectives, operations
from maypole.common.collectives import member_names, reduction
from maypole.common.constants import Average, ReduceOp
from maypole.common.process_sets import ProcessSet, global_process_set, id_of
from maypole.torch import _submissions
from maypole.torch._compiling import not_compiled

__all__ = [
    "allgather_async", "allreduce_async", "allreduce_async_", "alltoall_async", "barrier", "broadcast_async",
    "broadcast_async_", "grouped_allgather_async", "grouped_allreduce_async", "grouped_allreduce_async_",
    "grouped_reducescatter_async", "join", "poll", "reducescatter_async", "synchronize",
]


def _start(pending: operations.Pending) -> int:
    return operations.add(operations.start(pending))


def _start_group(members: list[operations.Pending]) -> int:
    return operations.add(operations.start_group(members))


@not_compiled
def allreduce_async(tensor: torch.Tensor,
                    average: Optional[bool] = None,
                    name: Optional[str] = None,
                    op: Optional[ReduceOp] = None,
                    prescale_factor: float = 1.0,
                    postscale_factor: float = 1.0,
                    process_set: ProcessSet = global_process_set) -> int:
    """Starts reducing `tensor` over the ranks of a set; returns a handle.

    Args:
        tensor: any shape, the same on all ranks; it is not changed.
        average: older form of op: True for Average, False for Sum.
        name: ranks match the operation by this name; None: by the order of submission.
        op: Average (default), Sum, Min, Max, Product, Adasum (floating dtypes only).
            Integer averages truncate toward zero; integers wrap around on overflow. For bool, Sum and Max mean
            OR, Product and Min mean AND. If an input of Min or Max is NaN, so is the result.
        prescale_factor: factor for the inputs; not for bool. Integers are multiplied in float64, rounded toward
            zero and limited to the dtype's range.
        postscale_factor: factor for the result, likewise.
        process_set: the ranks that take part; all of them must make the call.

    Returns:
        A handle, of which synchronize() returns a new tensor of the same shape, bit-equal on all ranks.
    """
    return _allreduce(tensor, average, name, op, prescale_factor,
                      postscale_factor, process_set, False)


def _allreduce(tensor: torch.Tensor, average: Optional[bool],
               name: Optional[str], op: Optional[ReduceOp], prescale: float,
               postscale: float, process_set: Any, in_place: bool) -> int:
    pending = _submissions.allreduce(tensor, name, reduction(average, op),
                                     prescale, postscale, id_of(process_set),
                                     in_place)
    return _start(_submissions.changes(pending, tensor) if in_place else pending)


def reduce_gradient(tensor: torch.Tensor, name: str, op: ReduceOp, prescale: float,
                    postscale: float, process_set: Any) -> int:
    """allreduce_async_ of a tensor whose former values autograd does not need."""
    return _start(
        _submissions.allreduce(tensor, name, op, prescale, postscale,
                               id_of(process_set), True))


@not_compiled
def allreduce_async_(tensor: torch.Tensor,
                     average: Optional[bool] = None,
                     name: Optional[str] = None,
                     op: Optional[ReduceOp] = None,
                     prescale_factor: float = 1.0,
                     postscale_factor: float = 1.0,
                     process_set: ProcessSet = global_process_set) -> int:
    """allreduce_async in place: the result is written to `tensor`.

    A tensor that is not contiguous gets its result at synchronize(). After an error its contents are undefined.
    """
    return _allreduce(tensor, average, name, op, prescale_factor,
                      postscale_factor, process_set, True)


def _grouped_allreduce(tensors: Sequence[torch.Tensor],
                       average: Optional[bool], name: Optional[str],
                       op: Optional[ReduceOp], prescale: float, postscale: float,
                       process_set: Any, in_place: bool) -> int:
    op, number = reduction(average, op), id_of(process_set)
    members = [
        _submissions.allreduce(tensor, member, op, prescale, postscale, number,
                               in_place)
        for tensor, member in zip(tensors, member_names(name, len(tensors)))
    ]
    if in_place:
        for member, tensor in zip(members, tensors):
            _submissions.changes(member, tensor)
    return _start_group(members)


@not_compiled
def grouped_allreduce_async(tensors: Sequence[torch.Tensor],
                            average: Optional[bool] = None,
                            name: Optional[str] = None,
                            op: Optional[ReduceOp] = None,
                            prescale_factor: float = 1.0,
                            postscale_factor: float = 1.0,
                            process_set: ProcessSet = global_process_set) -> int:
    """Starts reducing each of `tensors`; one handle for all.

    Arguments are those of allreduce_async; synchronize() returns the list of results. Members are named
    `<name>.<i>of<n>`.
    """
    return _grouped_allreduce(tensors, average, name, op, prescale_factor,
                              postscale_factor, process_set, False)


@not_compiled
def grouped_allreduce_async_(tensors: Sequence[torch.Tensor],
                             average: Optional[bool] = None,
                             name: Optional[str] = None,
                             op: Optional[ReduceOp] = None,
                             prescale_factor: float = 1.0,
                             postscale_factor: float = 1.0,
                             process_set: ProcessSet = global_process_set) -> int:
    """grouped_allreduce_async in place: results are written to `tensors`."""
    return _grouped_allreduce(tensors, average, name, op, prescale_factor,
                              postscale_factor, process_set, True)


@not_compiled
def allgather_async(tensor: torch.Tensor,
                    name: Optional[str] = None,
                    process_set: ProcessSet = global_process_set) -> int:
    """Starts concatenating the ranks' `tensor`s along dimension 0.

    The first dimension may differ between ranks (and may be 0), the others must not. A scalar counts as one
    element.

    Args:
        tensor: [rows, ...]: the number of rows may differ between ranks (and may be 0), the rest must not.
        name: ranks match the operation by this name; None: by the order of submission.
        process_set: the ranks that take part; all of them must make the call.

    Returns:
        A handle, of which synchronize() returns a tensor of shape [sum of the first dimensions, ...], in rank
        order.
    """
    return _start(_submissions.allgather(tensor, name, id_of(process_set)))


@not_compiled
def grouped_allgather_async(tensors: Sequence[torch.Tensor],
                            name: Optional[str] = None,
                            process_set: ProcessSet = global_process_set) -> int:
    """Starts gathering each of `tensors`; one handle for all.

    Members are named `<name>.<i>of<n>`.

    Args:
        tensors: a sequence of tensors, each as in the function of one.
        name: ranks match the operation by this name; None: by the order of submission.
        process_set: the ranks that take part; all of them must make the call.

    Returns:
        A handle, of which synchronize() returns the list of results.
    """
    number = id_of(process_set)
    return _start_group([
        _submissions.allgather(tensor, member, number)
        for tensor, member in zip(tensors, member_names(name, len(tensors)))
    ])


@not_compiled
def broadcast_async(tensor: torch.Tensor,
                    root_rank: int,
                    name: Optional[str] = None,
                    process_set: ProcessSet = global_process_set) -> int:
    """Starts sending `tensor` of rank `root_rank` to all; returns a handle.

    Args:
        tensor: any shape and dtype, the same on all ranks.
        root_rank: a rank of the job (not an index in the process set); it must be in the set. Shape and dtype
            must be the same on all ranks.
        name: ranks match the operation by this name; None: by the order of submission.
        process_set: the ranks that take part; all of them must make the call.

    Returns:
        A handle, of which synchronize() returns a new tensor with the root's values.
    """
    return _start(
        _submissions.broadcast(tensor, root_rank, name, id_of(process_set),
                               False))


@not_compiled
def broadcast_async_(tensor: torch.Tensor,
                     root_rank: int,
                     name: Optional[str] = None,
                     process_set: ProcessSet = global_process_set) -> int:
    """broadcast_async in place: the root's values are written to `tensor`."""
    return _start(
        _submissions.changes(
            _submissions.broadcast(tensor, root_rank, name, id_of(process_set),
                                   True), tensor))


@not_compiled
def alltoall_async(tensor: torch.Tensor,
                   splits: Any = None,
                   name: Optional[str] = None,
                   process_set: ProcessSet = global_process_set) -> int:
    """Starts sending each rank some rows of `tensor`; returns a handle.

    Args:
        tensor: all dimensions except the first must be the same on all ranks.
        splits: how many rows go to each rank of the set, in rank order: a list or an int32 or int64 tensor;
            None: equal parts. Reading a CUDA tensor waits for the current stream.
        name: ranks match the operation by this name; None: by the order of submission.
        process_set: the ranks that take part; all of them must make the call.

    Returns:
        A handle, of which synchronize() returns two tensors: the rows from all ranks, in rank order, and how
        many came from each rank (int32 on the CPU, or the dtype and device of `splits`).
    """
    return _start(
        _submissions.alltoall(tensor, splits, name, id_of(process_set)))


@not_compiled
def reducescatter_async(tensor: torch.Tensor,
                        name: Optional[str] = None,
                        op: ReduceOp = Average,
                        process_set: ProcessSet = global_process_set,
                        prescale_factor: float = 1.0,
                        postscale_factor: float = 1.0) -> int:
    """Starts reducing `tensor` and scattering the result; returns a handle.

    With r rows and n ranks, each rank gets r // n rows, and the first r % n ranks one more.

    Args:
        tensor: has at least one dimension, and the same shape on all ranks.
        name: ranks match the operation by this name; None: by the order of submission.
        op: Average or Sum.
        process_set: the ranks that take part; all of them must make the call.
        prescale_factor: factor for the inputs.
        postscale_factor: factor for the result.

    Returns:
        A handle, of which synchronize() returns this rank's rows of the result.
    """
    return _start(
        _submissions.reducescatter(tensor, name, reduction(None, op),
                                   prescale_factor, postscale_factor,
                                   id_of(process_set)))


@not_compiled
def grouped_reducescatter_async(tensors: Sequence[torch.Tensor],
                                name: Optional[str] = None,
                                op: ReduceOp = Average,
                                process_set: ProcessSet = global_process_set,
                                prescale_factor: float = 1.0,
                                postscale_factor: float = 1.0) -> int:
    """Starts a reducescatter of each of `tensors`; one handle for all.

    Members are named `<name>.<i>of<n>`.

    Args:
        tensors: a sequence of tensors, each as in the function of one.
        name: ranks match the operation by this name; None: by the order of submission.
        op: Average or Sum.
        process_set: the ranks that take part; all of them must make the call.
        prescale_factor: factor for the inputs.
        postscale_factor: factor for the result.

    Returns:
        A handle, of which synchronize() returns the list of results.
    """
    op, number = reduction(None, op), id_of(process_set)
    return _start_group([
        _submissions.reducescatter(tensor, member, op, prescale_factor,
                                   postscale_factor, number)
        for tensor, member in zip(tensors, member_names(name, len(tensors)))
    ])


# These take no tensor.
barrier = not_compiled(collectives.barrier)
join = not_compiled(collectives.join)
poll = not_compiled(operations.poll)
synchronize = not_compiled(operations.synchronize)
