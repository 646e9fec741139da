"""Operations on torch tensors, ready for operations.start() or start_group().

Each function checks this rank's tensor and describes the operation. A tensor
that is not contiguous is copied first, and an in-place result is copied back in
the wait for the operation. `process_set` is a set's id here.

Thread contract: any thread. Errors are ValueError, TypeError and
NotImplementedError, which name the tensor.
"""

import ctypes
import operator
import weakref
from typing import Any, Callable, List, Optional, Tuple

import torch

from maypole import _native
from maypole.common import operations
from maypole.torch._tensors import dtype_code, title


def _new_output(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)


def _copy_back(target: torch.Tensor,
               work: torch.Tensor) -> Callable[[int], torch.Tensor]:
    """A `finish` that copies `work` to the non-contiguous `target`."""

    def finish(_: int) -> torch.Tensor:
        with torch.no_grad():
            target.copy_(work)
        return target

    return finish


def _target_of(
    tensor: torch.Tensor, source: torch.Tensor, in_place: bool
) -> Tuple[torch.Tensor, Optional[Callable[[int], torch.Tensor]]]:
    """Returns (tensor for the result, `finish`); `source` is contiguous."""
    if not in_place:
        return _new_output(tensor), None
    return source, None if source is tensor else _copy_back(tensor, source)


def allreduce(tensor: torch.Tensor,
              name: Optional[str],
              op: int,
              prescale: float,
              postscale: float,
              process_set: int,
              in_place: bool,
              awaited: bool = False) -> operations.Pending:
    """Reduces `tensor` into a new tensor, or into itself."""
    dtype = dtype_code(tensor, "allreduce", name)
    source = tensor.contiguous()
    target, finish = _target_of(tensor, source, in_place)
    return operations.prepare(_native.ALLREDUCE, dtype, op, 0, source.shape,
                              prescale, postscale, name, source.data_ptr(),
                              target.data_ptr(), source, target, finish,
                              awaited=awaited, process_set=process_set)


def broadcast(tensor: torch.Tensor,
              root_rank: int,
              name: Optional[str],
              process_set: int,
              in_place: bool,
              awaited: bool = False) -> operations.Pending:
    """Copies the root's `tensor` to a new tensor, or to `tensor` itself."""
    dtype = dtype_code(tensor, "broadcast", name)
    source = tensor.contiguous()
    target, finish = _target_of(tensor, source, in_place)
    return operations.prepare(_native.BROADCAST, dtype, 0, root_rank,
                              source.shape, 1.0, 1.0, name, source.data_ptr(),
                              target.data_ptr(), source, target, finish,
                              awaited=awaited, process_set=process_set)


def allgather(tensor: torch.Tensor,
              name: Optional[str],
              process_set: int,
              awaited: bool = False) -> operations.Pending:
    """Concatenates the ranks' `tensor`s; a scalar counts as one element."""
    dtype = dtype_code(tensor, "allgather", name)
    source = (tensor.reshape(1) if tensor.dim() == 0 else tensor).contiguous()
    return operations.prepare(_native.ALLGATHER, dtype, 0, 0, source.shape, 1.0,
                              1.0, name, source.data_ptr(), 0, source, None,
                              lambda native: _adopt_rows(native, source),
                              finish_releases=True, awaited=awaited,
                              process_set=process_set)


def reducescatter(tensor: torch.Tensor,
                  name: Optional[str],
                  op: int,
                  prescale: float,
                  postscale: float,
                  process_set: int,
                  awaited: bool = False) -> operations.Pending:
    """Reduces `tensor`; the result is this rank's part of the rows."""
    dtype = dtype_code(tensor, "reducescatter", name)
    if tensor.dim() == 0:
        raise ValueError(f"{title('reducescatter', name)}: a scalar cannot be "
                         "scattered; reshape it to [1]")
    source = tensor.contiguous()
    shape = (_scattered_rows(tensor.shape[0], process_set),) + tuple(
        tensor.shape[1:])
    target = torch.empty(shape, dtype=tensor.dtype)
    return operations.prepare(_native.REDUCESCATTER, dtype, op, 0, source.shape,
                              prescale, postscale, name, source.data_ptr(),
                              target.data_ptr(), source, target,
                              awaited=awaited, process_set=process_set)


def _scattered_rows(rows: int, process_set: int) -> int:
    """This rank's part of `rows`: the first rows % n ranks get one more."""
    library = _native.library()
    ranks = library.process_set_ranks(process_set) or ()
    if library.rank() not in ranks:
        return 0  # the library will refuse the operation with an error
    position = ranks.index(library.rank())
    return rows // len(ranks) + (position < rows % len(ranks))


def alltoall(tensor: torch.Tensor,
             splits: Any,
             name: Optional[str],
             process_set: int,
             awaited: bool = False) -> operations.Pending:
    """Sends each rank its rows; the result is (rows, received splits)."""
    dtype = dtype_code(tensor, "alltoall", name)
    source = tensor.contiguous()
    numbers, splits_dtype = _read_splits(splits, name)
    ranks = _native.library().process_set_ranks(process_set) or ()

    def finish(native: int) -> Tuple[torch.Tensor, torch.Tensor]:
        received = _native.library().received_splits(native, len(ranks))
        rows = _adopt_rows(native, source)
        return rows, torch.tensor(received, dtype=splits_dtype)

    return operations.prepare(_native.ALLTOALL, dtype, 0, 0, source.shape, 1.0,
                              1.0, name, source.data_ptr(), 0, source, None,
                              finish, finish_releases=True, awaited=awaited,
                              process_set=process_set, splits=numbers)


def _read_splits(
        splits: Any,
        name: Optional[str]) -> Tuple[Optional[List[int]], torch.dtype]:
    """Returns (splits or None for equal parts, dtype of the received splits)."""
    dtype = torch.int32
    if isinstance(splits, torch.Tensor):
        if splits.dim() != 1 or splits.dtype not in (torch.int32, torch.int64):
            raise ValueError(
                f"{title('alltoall', name)}: splits is a {splits.dtype} tensor "
                f"of shape {list(splits.shape)}, expected one dimension of "
                "int32 or int64")
        dtype = splits.dtype
        splits = splits.tolist()
    try:
        numbers = [operator.index(split) for split in splits or ()]
    except TypeError:
        raise ValueError(
            f"{title('alltoall', name)}: splits={splits!r}, expected a tensor "
            "or list of integers, one for each rank") from None
    return numbers or None, dtype


def _adopt_rows(native: int, tensor: torch.Tensor) -> torch.Tensor:
    """Returns a tensor over the result's memory, which is the library's.

    When the memory is no longer referenced, `native` is released.
    """
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
