"""What the collectives of all bindings have in common, for every kind of array.

The rules for arguments and names, results in the library's memory, and the
calls that need no array: join() and barrier().

Thread contract: any thread.
"""

import ctypes
import itertools
import operator
import weakref
from collections.abc import Sequence
from typing import Any, Optional

from maypole import _native
from maypole.common import basics, operations
from maypole.common.constants import Adasum, Average, ReduceOp, Sum
from maypole.common.process_sets import ProcessSet, global_process_set, id_of


def title(kind: str, name: Optional[str]) -> str:
    """The name in errors of an operation that was not submitted."""
    return f"{kind} of " + (f"tensor {name!r}" if name else "an unnamed tensor")


def check_name(kind: str, name: Optional[str]) -> None:
    """Raises TypeError or ValueError if an operation cannot have this name.

    C's strings end at NUL: names that differ only after it would be the same.
    """
    if name is None:
        return
    if not isinstance(name, str):
        raise TypeError(f"{kind}: name={name!r}, expected a string or None")
    if "\0" in name:
        raise ValueError(f"{kind}: name={name!r} contains a NUL character; "
                         "leave it out")
    if not name.isascii():
        try:
            name.encode("utf-8")
        except UnicodeEncodeError:
            raise ValueError(f"{kind}: name={name!r} contains half a character "
                             "(a surrogate), which UTF-8 does not have; leave "
                             "it out") from None


def check_factors(kind: str, name: Optional[str], prescale: Any,
                  postscale: Any) -> tuple[float, float]:
    """Returns the two factors as floats; raises TypeError if one is not a number."""
    if type(prescale) is float and type(postscale) is float:  # pylint: disable=unidiomatic-typecheck
        return prescale, postscale
    return (_factor(kind, name, "prescale_factor", prescale),
            _factor(kind, name, "postscale_factor", postscale))


def _factor(kind: str, name: Optional[str], argument: str, value: Any) -> float:
    # Text is not a number, although float() reads it.
    if hasattr(type(value), "__float__") or hasattr(type(value), "__index__"):
        try:
            return float(value)
        except (TypeError, ValueError):
            pass  # an array of several numbers, a tensor of a graph
    raise TypeError(f"{title(kind, name)}: {argument}={value!r}, expected a "
                    "number")


def check_root(name: Optional[str], root_rank: Any) -> int:
    """Returns a broadcast's root_rank as an int; raises TypeError if it is not an integer."""
    try:
        return operator.index(root_rank)
    except TypeError:
        raise TypeError(f"{title('broadcast', name)}: root_rank={root_rank!r}, "
                        "expected an integer") from None


def reduction(average: Optional[bool], op: Optional[ReduceOp]) -> ReduceOp:
    """The reduction given by Horovod's older `average` or newer `op`.

    Raises:
        ValueError: both are given, or `op` is not a ReduceOp's number.
    """
    if op is None:
        return Average if average is None or average else Sum
    if average is not None:
        raise ValueError("both average and op are given; op replaces the older "
                         "average, so leave average out")
    try:
        return ReduceOp(op)
    except ValueError:
        raise ValueError(f"op={op!r} is not a reduction; use Average, Sum, "
                         "Adasum, Min, Max or Product") from None


def check_scattered(name: Optional[str], dims: int, op: ReduceOp) -> None:
    """Raises ValueError if a tensor of `dims` dimensions has no rows to scatter, or `op` is Adasum."""
    if dims == 0:
        raise ValueError(f"{title('reducescatter', name)}: a scalar cannot be "
                         "scattered; reshape it to [1]")
    if op == Adasum:
        raise ValueError(f"{title('reducescatter', name)}: Adasum is a "
                         "reduction of allreduce; use Average or Sum")


def member_names(name: Optional[str], count: int) -> list[Optional[str]]:
    """The names of the members of a group."""
    check_name("group", name)
    return [
        None if name is None else f"{name}.{i}of{count}" for i in range(count)
    ]


# Counters for the names of unnamed operations, by epoch, kind and set.
_unnamed: dict[tuple[int, str, int], Any] = {}


def next_name(kind: str, process_set: int) -> str:
    """Returns a name for an unnamed operation, the same on all ranks.

    For operations that reach the library in another order than the program's,
    so that the library cannot match them by order.
    """
    count = _unnamed.setdefault((basics.joins(), kind, process_set),
                                itertools.count())
    return f"{kind}.unnamed.{next(count)}"


def ranks_of(process_set: int) -> Sequence[int]:
    """Returns the ranks of the set with this id; an empty sequence if there is no such set."""
    return _native.library().process_set_ranks(process_set) or ()


def scattered_rows(rows: int, process_set: int) -> int:
    """Returns this rank's number of rows of a reducescatter on this set: the first rows % n ranks get one more."""
    ranks, rank = ranks_of(process_set), _native.library().rank()
    if rank not in ranks:
        return 0  # the library will refuse the operation with an error
    position = ranks.index(rank)
    return rows // len(ranks) + (position < rows % len(ranks))


def splits_of(splits: Optional[Sequence[int]],
              name: Optional[str]) -> Optional[list[int]]:
    """Returns an alltoall's splits as integers; None means equal parts.

    Raises ValueError if they are not integers.
    """
    try:
        return [operator.index(split) for split in splits or ()] or None
    except TypeError:
        raise ValueError(
            f"{title('alltoall', name)}: splits={splits!r}, expected a tensor "
            "or list of integers, one for each rank") from None


def adopt(native: int) -> tuple[Any, int]:
    """Returns (memory of the result of an allgather or alltoall, its rows).

    The memory is a ctypes array of bytes on the library's memory; None if it is
    empty. When it is no longer referenced, `native` is released.
    """
    library = _native.library()
    address, size, first_dim = library.result(native)
    if size == 0:
        library.release(native)
        return None, first_dim
    memory = (ctypes.c_ubyte * size).from_address(address)
    release = weakref.finalize(memory, library.release, native)
    # Not at exit, when tensors may still be read; the memory ends with the process.
    release.atexit = False
    return memory, first_dim


def _submit_without_tensor(kind: int, process_set: int,
                           finish: Any = None) -> operations.Pending:
    return operations.submit(kind, _native.UINT8, 0, 0, (), 1.0, 1.0, None, 0,
                             0, None, None, finish, awaited=True,
                             process_set=process_set)


def join(device: int = -1) -> int:
    """Declares that this rank has no more inputs; blocks until all ranks have called it.

    Until then the other ranks can run operations. This rank contributes a neutral input to reductions (Average
    still divides by the number of all ranks), and no rows to allgather and alltoall. A broadcast whose root has
    joined is an error.

    Args:
        device: accepted for compatibility, without effect.

    Returns:
        The rank that joined last.
    """
    last = _submit_without_tensor(
        _native.JOIN, 0,
        lambda native: _native.library().result(native)[2]).wait()
    _native.library().counts["join"] += 1
    return last


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Blocks until all ranks of the set have called this function.

    Args:
        process_set: the ranks that take part; all of them must make the call.
    """
    _submit_without_tensor(_native.BARRIER, id_of(process_set)).wait()
