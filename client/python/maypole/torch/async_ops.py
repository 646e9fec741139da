"""Collectives on torch tensors that return a handle at once.

Operations are matched between ranks by kind and name, in any order; unnamed
ones by the order of submission within their kind. A name is free again when
its operation has ended. None of these blocks. A handle owns its tensors until
synchronize(); the input must not be changed until then.

Thread contract: any thread. Errors of the call itself (not initialized, name
pending, dtype, layout, root) are ValueError; CUDA tensors and what is not there
yet NotImplementedError; errors of the operation come from synchronize().
"""

import ctypes
import weakref
from typing import Any, Callable, List, Optional, Sequence

import torch

from maypole import _native
from maypole.common import basics, operations, process_sets
from maypole.common.constants import OP_NAMES, Average, Sum
from maypole.common.process_sets import global_process_set
from maypole.torch._tensors import DTYPES, REDUCIBLE, copy_back, dtype_code


def reduction(average: Optional[bool], op: Optional[int]) -> int:
    """The operation meant by Horovod's older `average` and newer `op`."""
    if op is None:
        return Average if average is None or average else Sum
    if average is not None:
        raise ValueError("both average and op are given; op supersedes "
                         "average, leave average out")
    if op not in OP_NAMES:
        raise ValueError(f"op={op!r} is not a reduction; use Average, Sum, "
                         "Min, Max or Product")
    return op


def _submit_allreduce(tensor: torch.Tensor, output: torch.Tensor,
                      name: Optional[str], op: int, prescale: float,
                      postscale: float,
                      awaited: bool = False) -> operations.Pending:
    """Reduces `tensor` into `output`, which may be `tensor` itself."""
    dtype = dtype_code(tensor, "allreduce", name, REDUCIBLE)
    source = tensor.contiguous()
    target, finish = output, None
    if output is tensor:
        target = source
        if source is not tensor:
            finish = copy_back(output, target)
    return operations.submit(_native.ALLREDUCE, dtype, op, 0, source.shape,
                             prescale, postscale, name, source.data_ptr(),
                             target.data_ptr(), source, target, finish,
                             awaited=awaited)


def _new_output(tensor: torch.Tensor) -> torch.Tensor:
    if not isinstance(tensor, torch.Tensor):
        return tensor  # dtype_code() will refuse it, with its name
    return torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)


def allreduce_async(tensor: torch.Tensor,
                    average: Optional[bool] = None,
                    name: Optional[str] = None,
                    op: Optional[int] = None,
                    prescale_factor: float = 1.0,
                    postscale_factor: float = 1.0,
                    process_set: Any = global_process_set) -> int:
    """Starts reducing `tensor` over all ranks; returns a handle.

    tensor: any shape, the same on all ranks; it is not changed.
    average: older form of op: True for Average, False for Sum.
    op: Average (default), Sum. Integers are averaged truncating toward zero.
    prescale_factor, postscale_factor: the inputs, the result are multiplied by
    it (floating dtypes).
    synchronize() returns a new tensor of the same shape, bit-equal on all
    ranks.
    """
    process_sets.check(process_set)
    return operations.add(
        _submit_allreduce(tensor, _new_output(tensor), name,
                          reduction(average, op), prescale_factor,
                          postscale_factor))


def allreduce_async_(tensor: torch.Tensor,
                     average: Optional[bool] = None,
                     name: Optional[str] = None,
                     op: Optional[int] = None,
                     prescale_factor: float = 1.0,
                     postscale_factor: float = 1.0,
                     process_set: Any = global_process_set) -> int:
    """allreduce_async in place: the result is written to `tensor`.

    A tensor that is not contiguous gets its result at synchronize(). After an
    error its contents are undefined.
    """
    process_sets.check(process_set)
    return operations.add(
        _submit_allreduce(tensor, tensor, name, reduction(average, op),
                          prescale_factor, postscale_factor))


def allreduce_now(tensor: torch.Tensor, output: Optional[torch.Tensor],
                  name: Optional[str], op: int, prescale: float,
                  postscale: float) -> torch.Tensor:
    """Reduces `tensor` into `output` (None: a new tensor) and waits for it."""
    if output is None:
        output = _new_output(tensor)
    return synchronize(
        operations.add(
            _submit_allreduce(tensor, output, name, op, prescale, postscale,
                              awaited=True)))


def member_name(name: Optional[str], i: int, n: int) -> Optional[str]:
    """The name of member `i` of a group of `n`."""
    return None if name is None else f"{name}.{i}of{n}"


def _submit_group(
        submit_member: Callable[[int], operations.Pending],
        count: int) -> int:
    members: List[operations.Pending] = []
    try:
        for i in range(count):
            members.append(submit_member(i))
    except Exception:
        # The other ranks will run those that went out; keep their memory.
        for member in members:
            operations.abandon(member)
        raise
    return operations.add(operations.PendingGroup(members))


def grouped_allreduce_async(tensors: Sequence[torch.Tensor],
                            average: Optional[bool] = None,
                            name: Optional[str] = None,
                            op: Optional[int] = None,
                            prescale_factor: float = 1.0,
                            postscale_factor: float = 1.0,
                            process_set: Any = global_process_set) -> int:
    """Starts reducing each of `tensors`; one handle for all.

    Arguments are those of allreduce_async; synchronize() returns the list of
    results. Members are submitted one by one as `<name>.<i>of<n>`: if one is
    refused, those before it were accepted nevertheless. (That a group is
    accepted or refused as a whole comes in a later version.)
    """
    process_sets.check(process_set)
    op = reduction(average, op)
    n = len(tensors)
    return _submit_group(
        lambda i: _submit_allreduce(
            tensors[i], _new_output(tensors[i]), member_name(name, i, n), op,
            prescale_factor, postscale_factor), n)


def grouped_allreduce_async_(tensors: Sequence[torch.Tensor],
                             average: Optional[bool] = None,
                             name: Optional[str] = None,
                             op: Optional[int] = None,
                             prescale_factor: float = 1.0,
                             postscale_factor: float = 1.0,
                             process_set: Any = global_process_set) -> int:
    """grouped_allreduce_async in place: results are written to `tensors`."""
    process_sets.check(process_set)
    op = reduction(average, op)
    n = len(tensors)
    return _submit_group(
        lambda i: _submit_allreduce(
            tensors[i], tensors[i], member_name(name, i, n), op,
            prescale_factor, postscale_factor), n)


def _adopt_gathered(native: int, tensor: torch.Tensor) -> torch.Tensor:
    """A tensor over the library's memory; releases `native` with itself."""
    library = _native.library()
    address, size, first_dim = library.result(native)
    shape = (first_dim,) + tuple(tensor.shape[1:])
    if size == 0:
        library.release(native)
        return torch.empty(shape, dtype=tensor.dtype)
    memory = (ctypes.c_ubyte * size).from_address(address)
    release = weakref.finalize(memory, library.release, native)
    # At exit tensors may still be read; the memory ends with the process.
    release.atexit = False
    return torch.frombuffer(memory, dtype=tensor.dtype).view(shape)


def allgather_async(tensor: torch.Tensor,
                    name: Optional[str] = None,
                    process_set: Any = global_process_set) -> int:
    """Starts concatenating all ranks' `tensor`s along dimension 0.

    The first dimension may differ between ranks (and be 0), the others not. A
    scalar counts as one element. synchronize() returns a tensor of shape
    [sum of the first dimensions, ...], in rank order.
    """
    process_sets.check(process_set)
    return operations.add(_submit_allgather(tensor, name))


def _submit_allgather(tensor: torch.Tensor, name: Optional[str],
                      awaited: bool = False) -> operations.Pending:
    dtype = dtype_code(tensor, "allgather", name, DTYPES)
    source = (tensor.reshape(1) if tensor.dim() == 0 else tensor).contiguous()
    return operations.submit(_native.ALLGATHER, dtype, 0, 0, source.shape, 1.0,
                             1.0, name, source.data_ptr(), 0, source, None,
                             lambda native: _adopt_gathered(native, source),
                             finish_releases=True, awaited=awaited)


def allgather_now(tensor: torch.Tensor, name: Optional[str]) -> torch.Tensor:
    """allgather_async(), waited for."""
    return synchronize(
        operations.add(_submit_allgather(tensor, name, awaited=True)))


def _submit_broadcast(tensor: torch.Tensor, output: torch.Tensor,
                      root_rank: int, name: Optional[str],
                      awaited: bool = False) -> operations.Pending:
    """Brings the root's `tensor` into `output`, which may be `tensor`."""
    dtype = dtype_code(tensor, "broadcast", name, DTYPES)
    source = tensor.contiguous()
    target, finish = output, None
    if output is tensor:
        target = source
        if source is not tensor:
            finish = copy_back(output, target)
    return operations.submit(_native.BROADCAST, dtype, 0, root_rank,
                             source.shape, 1.0, 1.0, name, source.data_ptr(),
                             target.data_ptr(), source, target, finish,
                             awaited=awaited)


def broadcast_async(tensor: torch.Tensor,
                    root_rank: int,
                    name: Optional[str] = None,
                    process_set: Any = global_process_set) -> int:
    """Starts sending `tensor` of rank `root_rank` to all; returns a handle.

    Shape and dtype are the same on all ranks. synchronize() returns a new
    tensor with the root's values.
    """
    process_sets.check(process_set)
    return operations.add(
        _submit_broadcast(tensor, _new_output(tensor), root_rank, name))


def broadcast_async_(tensor: torch.Tensor,
                     root_rank: int,
                     name: Optional[str] = None,
                     process_set: Any = global_process_set) -> int:
    """broadcast_async in place: the root's values are written to `tensor`."""
    process_sets.check(process_set)
    return operations.add(_submit_broadcast(tensor, tensor, root_rank, name))


def broadcast_now(tensor: torch.Tensor, output: Optional[torch.Tensor],
                  root_rank: int, name: Optional[str]) -> torch.Tensor:
    """Brings the root's values into `output` (None: a new tensor); waits."""
    if output is None:
        output = _new_output(tensor)
    return synchronize(
        operations.add(
            _submit_broadcast(tensor, output, root_rank, name, awaited=True)))


def barrier(process_set: Any = global_process_set) -> None:
    """Blocks until all ranks have called barrier()."""
    process_sets.check(process_set)
    basics.size()  # a barrier outside a job is an error
    operations.submit(_native.BARRIER, _native.UINT8, 0, 0, (), 1.0, 1.0, None,
                      0, 0, awaited=True).wait()


def poll(handle: int) -> bool:
    """Whether the operation of `handle` has ended; never blocks.

    Raises ValueError for a handle that is unknown or was synchronized.
    """
    return operations.poll(handle)


def synchronize(handle: int) -> Any:
    """Waits until the operation of `handle` has ended; returns its result.

    Raises HorovodInternalError if the operation failed: ranks disagreed on it,
    or a rank was lost. The handle is spent then. Signals (Ctrl-C) interrupt
    the wait within 0.2 s and leave the handle valid. None if it is unknown.
    """
    return operations.synchronize(handle)
