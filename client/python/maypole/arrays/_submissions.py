"""Describes operations on arrays in host memory, for operations.start().

Each function checks this rank's array and describes the operation. An array
that is not contiguous is copied first; an in-place result is then copied back
when the caller waits for the operation. Here `process_set` is a set's id.

Thread contract: any thread. Errors are ValueError and TypeError, which name the
tensor.
"""

from typing import Any, Callable, Optional

import numpy as np

from maypole import _native
from maypole.arrays import _dlpack
from maypole.common import collectives, operations
from maypole.common.collectives import title
from maypole.common.constants import ReduceOp


def as_array(value: Any, kind: str, name: Optional[str],
              in_place: bool) -> np.ndarray:
    """Returns a NumPy array with the memory of `value`, or, out of place, with its values."""
    collectives.check_name(kind, name)
    what = title(kind, name)
    try:
        array = _shared(value, in_place)
    except Exception as error:
        # The protocols run code of other libraries, which may raise anything.
        raise ValueError(f"{what}: the memory of this {type(value).__name__} "
                         f"cannot be shared: {error}") from error
    if array is None:
        expected = ("a NumPy array or an object with __dlpack__, whose memory "
                    "can be changed" if in_place else
                    "a number, a NumPy array or an object with __dlpack__")
        raise TypeError(f"{what}: expected {expected}, got "
                        f"{type(value).__name__}")
    if in_place and not array.flags.writeable:
        raise ValueError(f"{what}: this {type(value).__name__} is read-only; "
                         "use the function without '_' at its end, which "
                         "returns a new array")
    if array.dtype.name not in _native.DTYPES or not array.dtype.isnative:
        raise ValueError(f"{what}: dtype {array.dtype} is not supported; "
                         f"supported are {', '.join(_native.DTYPES)}, in this "
                         "machine's byte order")
    if array.ndim > _native.MAX_DIMS:
        raise ValueError(f"{what}: it has {array.ndim} dimensions, but at most "
                         f"{_native.MAX_DIMS} are supported; reshape it")
    return array


def _shared(value: Any, in_place: bool) -> Optional[np.ndarray]:
    if isinstance(value, np.ndarray):
        return value
    if hasattr(value, "__dlpack__"):
        return _dlpack.view(value)
    if hasattr(value, "__cuda_array_interface__"):
        raise ValueError("it is on a GPU; pass a copy in host memory, or use "
                         "maypole.torch, which takes it")
    if not in_place and (isinstance(value, (bool, int, float))
                         or hasattr(value, "__array__")):
        return np.asarray(value)
    return None


def contiguous(array: np.ndarray) -> np.ndarray:
    """Returns the array, or a contiguous copy of it."""
    # Not by np.ascontiguousarray, which makes a scalar one-dimensional.
    return array if array.flags.c_contiguous else array.copy(order="C")


def address(array: np.ndarray) -> int:
    """Returns the address of the array's memory."""
    return array.__array_interface__["data"][0]


def _prepare(kind: int, op: int, root: int, source: np.ndarray,
             target: Optional[np.ndarray], name: Optional[str], result: Any,
             finish: Optional[Callable[[int], Any]], process_set: int,
             awaited: bool, prescale: float = 1.0, postscale: float = 1.0,
             **more: Any) -> operations.Pending:
    """operations.prepare() on arrays. result: returned by the wait, if there is no `finish`."""
    return operations.prepare(
        kind, _native.DTYPES[source.dtype.name], op, root, source.shape, prescale,
        postscale, name, address(source),
        0 if target is None else address(target), (source, target), result,
        finish, awaited=awaited, process_set=process_set, **more)


def _target(value: Any, array: np.ndarray, source: np.ndarray,
            in_place: bool) -> tuple[np.ndarray, Any, Any]:
    """Returns (memory for the result, result, `finish`)."""
    if not in_place:
        target = np.empty(source.shape, source.dtype)
        return target, target, None
    if source is array:
        return source, value, None

    def copy_back(_: int) -> Any:
        array[...] = source
        return value

    return source, value, copy_back


def allreduce(value: Any, name: Optional[str], op: ReduceOp, prescale: float,
              postscale: float, process_set: int, in_place: bool,
              awaited: bool = False) -> operations.Pending:
    """Reduces `value` into a new array, or into itself."""
    array = as_array(value, "allreduce", name, in_place)
    prescale, postscale = collectives.check_factors("allreduce", name, prescale,
                                                    postscale)
    source = contiguous(array)
    target, result, finish = _target(value, array, source, in_place)
    return _prepare(_native.ALLREDUCE, op, 0, source, target, name, result,
                    finish, process_set, awaited, prescale, postscale)


def broadcast(value: Any, root_rank: int, name: Optional[str],
              process_set: int, in_place: bool,
              awaited: bool = False) -> operations.Pending:
    """Copies the root's array to a new one, or to `value` itself."""
    array = as_array(value, "broadcast", name, in_place)
    root_rank = collectives.check_root(name, root_rank)
    source = contiguous(array)
    target, result, finish = _target(value, array, source, in_place)
    return _prepare(_native.BROADCAST, 0, root_rank, source, target, name,
                    result, finish, process_set, awaited)


def allgather(value: Any, name: Optional[str], process_set: int,
              awaited: bool = False) -> operations.Pending:
    """Concatenates the ranks' arrays; a scalar counts as one element."""
    array = as_array(value, "allgather", name, False)
    source = contiguous(array.reshape(1) if array.ndim == 0 else array)
    return _prepare(_native.ALLGATHER, 0, 0, source, None, name, None,
                    rows_of(source, process_set), process_set, awaited,
                    finish_releases=True)


def rows_of(source: np.ndarray, process_set: int, splits_dtype: Any = None) -> Callable[[int], Any]:
    """Returns a `finish` that returns the gathered rows, as an array on the result's memory in the library.

    splits_dtype: the dtype of a second array, with the number of rows from each rank; None: no such array.
    """
    ranks = () if splits_dtype is None else collectives.ranks_of(process_set)

    def finish(native: int) -> Any:
        received = None if splits_dtype is None else np.array(
            _native.library().received_splits(native, len(ranks)), splits_dtype)
        memory, first_dim = collectives.adopt(native)
        shape = (first_dim,) + source.shape[1:]
        rows = np.empty(shape, source.dtype) if memory is None else np.ndarray(shape, source.dtype, buffer=memory)
        return rows if received is None else (rows, received)

    return finish


def reducescatter(value: Any, name: Optional[str], op: ReduceOp, prescale: float,
                  postscale: float, process_set: int,
                  awaited: bool = False) -> operations.Pending:
    """Reduces the ranks' arrays; the result is this rank's part of the rows."""
    array = as_array(value, "reducescatter", name, False)
    prescale, postscale = collectives.check_factors("reducescatter", name,
                                                    prescale, postscale)
    collectives.check_scattered(name, array.ndim, op)
    shape = (collectives.scattered_rows(array.shape[0], process_set),)
    target = np.empty(shape + array.shape[1:], array.dtype)
    return _prepare(_native.REDUCESCATTER, op, 0, contiguous(array), target,
                    name, target, None, process_set, awaited, prescale,
                    postscale)


def alltoall(value: Any, splits: Any, name: Optional[str], process_set: int,
             awaited: bool = False) -> operations.Pending:
    """Sends each rank its rows; the result is (rows, received splits)."""
    source = contiguous(as_array(value, "alltoall", name, False))
    dtype: Any = np.int32
    if hasattr(splits, "__array__") or hasattr(splits, "__dlpack__"):
        splits = as_array(splits, "alltoall's splits", name, False)
        if splits.ndim != 1 or splits.dtype not in (np.int32, np.int64):
            raise ValueError(
                f"{title('alltoall', name)}: splits has dtype {splits.dtype} "
                f"and shape {list(splits.shape)}, expected one dimension of "
                "int32 or int64")
        dtype = splits.dtype
        splits = splits.tolist()
    return _prepare(_native.ALLTOALL, 0, 0, source, None, name, None, rows_of(source, process_set, dtype),
                    process_set, awaited, finish_releases=True,
                    splits=collectives.splits_of(splits, name))
