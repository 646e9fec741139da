"""Describes operations on torch tensors, for operations.start() or start_group().

Each function checks this rank's tensor and describes the operation. `tensor` may
also be an array of another library (_tensors.as_tensor). A tensor that is not
contiguous is copied first, and an in-place result is copied back when the caller
waits for the operation. Here `process_set` is a set's id.

A CUDA tensor is read in the order of the submitting thread's current stream;
the result is written in the order of the current stream of the thread that
waits.

Thread contract: any thread. Errors are ValueError, TypeError and
NotImplementedError, which name the tensor.
"""

from typing import Any, Callable, Optional

import torch

from maypole import _native
from maypole.common import collectives, operations
from maypole.common.collectives import title
from maypole.common.constants import ReduceOp
from maypole.common.exceptions import from_status
from maypole.torch import _tensors
from maypole.torch._carriers import Carrier, carrier_of
from maypole.torch._tensors import DTYPES, as_tensor, dtype_code

# A Pending's `finish`.
_Finish = Optional[Callable[[int], Any]]


def _contiguous(tensor: torch.Tensor) -> torch.Tensor:
    """Returns `tensor`, or a contiguous copy of its values."""
    if tensor.is_neg():  # a view that negates when it is read
        tensor = tensor.resolve_neg()
    return tensor.contiguous()


def _copy_back(target: torch.Tensor,
               work: torch.Tensor) -> Callable[[int], torch.Tensor]:
    """A `finish` that copies `work` to the non-contiguous `target`."""

    def finish(_: int) -> torch.Tensor:
        with torch.no_grad():
            _copy(target, work)
        return target

    return finish


def _copy(target: torch.Tensor, work: torch.Tensor) -> None:
    """Copies `work` to `target`, several elements of which may share memory (expand()).

    Raises ValueError if elements that share memory would get different values.
    """
    if target.is_inference() and not torch.is_inference_mode_enabled():
        # Only there torch stores in tensors that were made there.
        with torch.inference_mode():
            return _copy(target, work)
    whole = work
    for dim, stride in enumerate(target.stride()):
        if stride == 0 and target.shape[dim] > 1:
            target, work = target.narrow(dim, 0, 1), work.narrow(dim, 0, 1)
    if work is not whole:
        same = work.expand_as(whole)
        if not ((same == whole) | ((same != same) & (whole != whole))).all():
            raise ValueError(
                f"an in-place operation on a tensor of shape {list(whole.shape)} "
                "of which several elements are one in memory (expand()): they "
                "would get different values; pass a copy (tensor.clone())")
    target.copy_(work)


def _then(pending: operations.Pending,
          function: Callable[[Any], Any]) -> operations.Pending:
    """Makes `pending` end with function(its result)."""
    before, output = pending.finish, pending.output

    def finish(native: int) -> Any:
        return function(output if before is None else before(native))

    pending.finish = finish
    return pending


def _carried(pending: operations.Pending, carrier: Carrier,
             tensor: Optional[torch.Tensor]) -> operations.Pending:
    """Turns an operation on a carrier into one on the tensor that it carries.

    tensor: what is to get the result; None: a new tensor.
    """

    def end(result: Any) -> Any:
        if isinstance(result, tuple):  # of alltoall, with splits
            return (carrier.result(result[0]),) + result[1:]
        if tensor is None:
            return carrier.result(result)
        if not carrier.in_memory:
            with torch.no_grad():
                _copy(tensor, carrier.result(result))
        return tensor

    return _then(pending, end)


def changes(pending: operations.Pending,
            tensor: Any) -> operations.Pending:
    """Tells autograd that `pending` changes `tensor` in place; returns `pending`.

    Autograd raises an error if it needs the former values, as for torch's own
    in-place operations.
    """
    if not isinstance(tensor, torch.Tensor):
        return pending
    _tensors.note_change(tensor)

    def end(result: Any) -> Any:
        _tensors.note_change(tensor)
        return result

    return _then(pending, end)


def _target_of(tensor: torch.Tensor, source: torch.Tensor, in_place: bool,
               stream: Optional[int]) -> tuple[torch.Tensor, _Finish]:
    """Returns (tensor for the result, `finish`); `source` is contiguous.

    stream: the one that the operation is submitted on; None: host memory.
    """
    if not in_place:
        target, finish = torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device), None
    else:
        target = source
        finish = None if source is tensor else _copy_back(tensor, source)
    if stream is not None:
        finish = _fetch(source, target, stream, finish)
    return target, finish


def _fetch(source: torch.Tensor, target: torch.Tensor, submitted_on: int,
           then: _Finish) -> _Finish:
    """Returns a `finish` that writes the result to `target`, on the stream that is current at its call.

    After that it calls `then`.

    NCCL in this process may read `source` until then: that stream waits for it,
    so the memory must not be reused before.
    """

    def finish(native: int) -> torch.Tensor:
        stream = _tensors.stream_of(target)
        if stream != submitted_on:
            for used in {id(t): t for t in (source, target)}.values():
                _tensors.bring_to_current_stream(used, submitted_on)
        _copy_result(native, 0, stream)
        return target if then is None else then(native)

    return finish


def _copy_result(native: int, address: int, stream: Optional[int]) -> None:
    while True:  # signal handlers run between the calls
        try:
            return _native.library().copy_result(native, address, stream)
        except _native.StatusError as error:
            if error.code != _native.CANCELLED:
                raise from_status(error.code, str(error)) from None


def allreduce(tensor: torch.Tensor,
              name: Optional[str],
              op: ReduceOp,
              prescale: float,
              postscale: float,
              process_set: int,
              in_place: bool,
              awaited: bool = False) -> operations.Pending:
    """Reduces `tensor` into a new tensor, or into itself."""
    prescale, postscale = collectives.check_factors("allreduce", name, prescale,
                                                    postscale)
    return _of_its_shape(_native.ALLREDUCE, "allreduce", tensor, op, 0, prescale, postscale, name, process_set,
                         in_place, awaited)


def broadcast(tensor: torch.Tensor,
              root_rank: int,
              name: Optional[str],
              process_set: int,
              in_place: bool,
              awaited: bool = False) -> operations.Pending:
    """Copies the root's `tensor` to a new tensor, or to `tensor` itself."""
    return _of_its_shape(_native.BROADCAST, "broadcast", tensor, 0, collectives.check_root(name, root_rank),
                         1.0, 1.0, name, process_set, in_place, awaited)


def _of_its_shape(kind: int, what: str, tensor: torch.Tensor, op: int, root: int, prescale: float,
                  postscale: float, name: Optional[str], process_set: int, in_place: bool,
                  awaited: bool) -> operations.Pending:
    """Describes an operation whose result has the shape of its input."""
    tensor = as_tensor(tensor, what, name)
    carrier = carrier_of(tensor, what, name, op)
    if carrier is not None:
        return _carried(
            _of_its_shape(kind, what, carrier.tensor, op, root, prescale, postscale, name, process_set, in_place,
                          awaited), carrier, tensor if in_place else None)
    dtype = dtype_code(tensor, what, name)
    source, stream = _contiguous(tensor), _tensors.stream_of(tensor)
    target, finish = _target_of(tensor, source, in_place, stream)
    return operations.prepare(kind, dtype, op, root, source.shape, prescale, postscale, name, source.data_ptr(),
                              target.data_ptr(), source, target, finish, awaited=awaited, process_set=process_set,
                              stream=stream)


def allgather(tensor: torch.Tensor,
              name: Optional[str],
              process_set: int,
              awaited: bool = False) -> operations.Pending:
    """Concatenates the ranks' `tensor`s; a scalar counts as one element."""
    tensor = as_tensor(tensor, "allgather", name)
    if tensor.dtype not in DTYPES:
        tensor = tensor.reshape(1) if tensor.dim() == 0 else tensor
        carrier = carrier_of(tensor, "allgather", name)
        if carrier is not None:
            return _carried(
                allgather(carrier.tensor, name, process_set, awaited), carrier,
                None)
    dtype = dtype_code(tensor, "allgather", name)
    stream = _tensors.stream_of(tensor)
    source = _contiguous(tensor.reshape(1) if tensor.dim() == 0 else tensor)
    return operations.prepare(_native.ALLGATHER, dtype, 0, 0, source.shape, 1.0,
                              1.0, name, source.data_ptr(), 0, source, None,
                              lambda native: _rows(native, source, stream),
                              finish_releases=stream is None, awaited=awaited,
                              process_set=process_set, stream=stream)


def reducescatter(tensor: torch.Tensor,
                  name: Optional[str],
                  op: ReduceOp,
                  prescale: float,
                  postscale: float,
                  process_set: int,
                  awaited: bool = False) -> operations.Pending:
    """Reduces `tensor`; the result is this rank's part of the rows."""
    tensor = as_tensor(tensor, "reducescatter", name)
    prescale, postscale = collectives.check_factors("reducescatter", name,
                                                    prescale, postscale)
    if tensor.dim() > 0:
        carrier = carrier_of(tensor, "reducescatter", name, op)
        if carrier is not None:
            return _carried(
                reducescatter(carrier.tensor, name, op, prescale, postscale,
                              process_set, awaited), carrier, None)
    dtype = dtype_code(tensor, "reducescatter", name)
    collectives.check_scattered(name, tensor.dim(), op)
    source, stream = _contiguous(tensor), _tensors.stream_of(tensor)
    shape = (collectives.scattered_rows(tensor.shape[0], process_set),) + tuple(
        tensor.shape[1:])
    target = torch.empty(shape, dtype=tensor.dtype, device=tensor.device)
    finish = None if stream is None else _fetch(source, target, stream, None)
    return operations.prepare(_native.REDUCESCATTER, dtype, op, 0, source.shape,
                              prescale, postscale, name, source.data_ptr(),
                              target.data_ptr(), source, target, finish,
                              awaited=awaited, process_set=process_set,
                              stream=stream)


def alltoall(tensor: torch.Tensor,
             splits: Any,
             name: Optional[str],
             process_set: int,
             awaited: bool = False) -> operations.Pending:
    """Sends each rank its rows; the result is (rows, received splits)."""
    tensor = as_tensor(tensor, "alltoall", name)
    if tensor.dim() > 0:
        carrier = carrier_of(tensor, "alltoall", name)
        if carrier is not None:
            return _carried(
                alltoall(carrier.tensor, splits, name, process_set, awaited),
                carrier, None)
    dtype = dtype_code(tensor, "alltoall", name)
    source, stream = _contiguous(tensor), _tensors.stream_of(tensor)
    numbers, splits_dtype, splits_device = _read_splits(splits, name)
    ranks = collectives.ranks_of(process_set)

    def finish(native: int) -> tuple[torch.Tensor, torch.Tensor]:
        received = _native.library().received_splits(native, len(ranks))
        received = torch.tensor(received, dtype=splits_dtype,
                                device=splits_device)
        return _rows(native, source, stream), received

    return operations.prepare(_native.ALLTOALL, dtype, 0, 0, source.shape, 1.0,
                              1.0, name, source.data_ptr(), 0, source, None,
                              finish, finish_releases=stream is None,
                              awaited=awaited, process_set=process_set,
                              splits=numbers, stream=stream)


def _read_splits(
    splits: Any, name: Optional[str]
) -> tuple[Optional[list[int]], torch.dtype, torch.device]:
    """Returns (splits or None for equal parts, dtype and device of the received splits).

    Waits for the current stream if `splits` is a CUDA tensor.
    """
    dtype, device = torch.int32, torch.device("cpu")
    if _tensors.shares_memory(splits):
        splits = as_tensor(splits, "alltoall", name)
        if splits.dim() != 1 or splits.dtype not in (torch.int32, torch.int64):
            raise ValueError(
                f"{title('alltoall', name)}: splits is a {splits.dtype} tensor "
                f"of shape {list(splits.shape)}, expected one dimension of "
                "int32 or int64")
        dtype, device = splits.dtype, splits.device
        splits = splits.tolist()
    return collectives.splits_of(splits, name), dtype, device


def _rows(native: int, source: torch.Tensor,
          submitted_on: Optional[int]) -> torch.Tensor:
    """Returns the result of an operation that gathers, on `source`'s device."""
    if submitted_on is None:
        return _adopt_rows(native, source)
    return _copy_rows(native, source, submitted_on)


def _copy_rows(native: int, source: torch.Tensor,
               submitted_on: int) -> torch.Tensor:
    """Returns a tensor, on the device of `source`, with a copy of the result.

    NCCL in this process may read `source` until copy_result() has returned,
    even if the result is empty: see _fetch().
    """
    stream = _tensors.stream_of(source)
    if stream != submitted_on:
        _tensors.bring_to_current_stream(source, submitted_on)
    _, _, first_dim = _native.library().result(native)
    rows = torch.empty((first_dim,) + tuple(source.shape[1:]),
                       dtype=source.dtype, device=source.device)
    _copy_result(native, rows.data_ptr(), stream)
    return rows


def _adopt_rows(native: int, tensor: torch.Tensor) -> torch.Tensor:
    """Returns a tensor on the result's memory, which belongs to the library."""
    memory, first_dim = collectives.adopt(native)
    shape = (first_dim,) + tuple(tensor.shape[1:])
    if memory is None:
        return torch.empty(shape, dtype=tensor.dtype, device=tensor.device)
    return torch.frombuffer(memory, dtype=tensor.dtype).view(shape)
