"""Process sets: ranks that run collectives among themselves.

    evens = add_process_set(range(0, size(), 2))   # every rank of the job
    if evens.included():
        allreduce(x, process_set=evens)

All ranks of the job, whether in the set or not, must add and remove sets in the
same order. Sets live until shutdown(). Several objects may stand for one set;
`_registered` lists them by the set's id.

Thread contract: any thread. One thread at a time may add and remove sets,
because these calls are matched between ranks by their order.
"""

import operator
from collections.abc import Sequence
from typing import Any, Optional, Union

from maypole import _native
from maypole.common import operations
from maypole.common.exceptions import not_initialized


class ProcessSet:
    """Some ranks of the job; pass it to init() or add_process_set().

    Args:
        ranks_or_comm: ranks of the job, in any order.

    Attributes:
        process_set_id: None before the set is added and after it has ended.
        ranks: ascending; None after remove_process_set().
        mpi_comm: None: Maypole does not use MPI.
    """

    process_set_id: Optional[int] = None
    ranks: Optional[list[int]] = None
    mpi_comm = None

    def __init__(self, ranks_or_comm: Sequence[int]):
        try:
            ranks = sorted(operator.index(rank) for rank in ranks_or_comm)
        except TypeError:
            raise ValueError(
                f"ProcessSet({ranks_or_comm!r}): expected a list of ranks "
                "(Maypole does not use MPI communicators)") from None
        self.ranks = ranks

    def size(self) -> Optional[int]:
        """Number of ranks in the set; None while it has no id."""
        return None if self.process_set_id is None else len(self.ranks or ())

    def rank(self) -> Optional[int]:
        """This process's index in the set; None while the set has no id.

        Raises:
            ValueError: this process is not in the set.
        """
        if self.process_set_id is None:
            return None
        ranks, rank = self.ranks or [], _native.library().rank()
        if rank not in ranks:
            raise ValueError(
                f"rank {rank} is not in process set "
                f"{self.process_set_id}, whose ranks are {self.ranks}")
        return ranks.index(rank)

    def included(self) -> Optional[bool]:
        """Whether this process is in the set; None while the set has no id."""
        if self.process_set_id is None:
            return None
        return _native.library().rank() in (self.ranks or ())

    def __deepcopy__(self, memo: Any) -> "ProcessSet":
        return self

    def __reduce__(self) -> Any:
        return _found, (self.ranks,)

    def __repr__(self) -> str:
        return (f"ProcessSet(process_set_id={self.process_set_id}, "
                f"ranks={self.ranks})")


class _GlobalProcessSet(ProcessSet):
    """All ranks of the job; always there, never added."""

    process_set_id = 0

    def __init__(self) -> None:
        pass

    @property
    def ranks(self) -> Optional[list[int]]:  # type: ignore[override]
        size = self.size()
        return None if size is None else list(range(size))

    def __reduce__(self) -> Any:
        return "global_process_set"

    def size(self) -> Optional[int]:
        size = _native.library().size()
        return None if size < 0 else size

    def rank(self) -> Optional[int]:
        rank = _native.library().rank()
        return None if rank < 0 else rank

    def included(self) -> Optional[bool]:
        return None if self.rank() is None else True


global_process_set = _GlobalProcessSet()

_registered: dict[int, list[ProcessSet]] = {}


def _found(ranks: Optional[list[int]]) -> ProcessSet:
    """Returns the registered set of these ranks, in place of a pickled one.

    If there is none, returns a new one, which is not registered.
    """
    for objects in _registered.values():
        if objects and objects[0].ranks == ranks:
            return objects[0]
    found = ProcessSet(ranks or [])
    found.ranks = ranks
    return found


def id_of(process_set: Any) -> int:
    """Returns the id of a process set.

    Raises TypeError if it is not a ProcessSet, ValueError if the set has not
    been added or has ended.
    """
    if process_set is global_process_set:
        return 0
    if not isinstance(process_set, ProcessSet):
        raise TypeError(f"process_set={process_set!r}: expected a ProcessSet, "
                        "as add_process_set() returns")
    if process_set.process_set_id is None:
        if not _native.library().is_initialized():
            raise ValueError(not_initialized())
        raise ValueError(
            f"process_set={process_set!r}: it has not been added, or has been "
            "removed; all ranks must add it with add_process_set() or init()")
    return process_set.process_set_id


def add_process_set(
        process_set: Union[ProcessSet, Sequence[int]]) -> ProcessSet:
    """Adds a process set; every rank of the job must make the same call.

    Args:
        process_set: ranks, or a ProcessSet that has not been added.

    Returns:
        The ProcessSet, with its process_set_id. No environment variable is needed.

    Raises:
        ValueError: a rank is not in the job or is listed twice, or if there is a set of the same ranks (all
            ranks: the global set).
        HorovodInternalError: the job's ranks request different sets.
    """
    if not isinstance(process_set, ProcessSet):
        process_set = ProcessSet(process_set)
    if process_set.process_set_id is not None:
        raise ValueError(f"{process_set!r} has been added already")
    if process_set.ranks is None:
        raise ValueError(f"{process_set!r} was removed; create a new one")
    ranks = process_set.ranks
    _register(process_set,
              operations.request(lambda lib: lib.process_set_add(ranks)))
    return process_set


def of_members(ranks: Sequence[int]) -> ProcessSet:
    """Returns the process set of these ranks; all of them, including this rank, and only they, must make the call.

    The calls may come in any order. An existing set of the same ranks is reused; it lives until shutdown().

    Raises:
        ValueError: as add_process_set(), or this rank is not among them.
        HorovodInternalError: one of the ranks has left.
    """
    process_set = ProcessSet(ranks)
    number = start_of_members(ranks).wait()
    if number == 0:
        return global_process_set
    known = _registered.get(number)
    if known:
        return known[0]
    _register(process_set, number)
    return process_set


def start_of_members(ranks: Sequence[int]) -> operations.Pending:
    """As of_members(), but does not wait; the result of the operation is the set's id."""
    members = sorted(ranks)
    return operations.start_request(lambda lib: lib.process_set_add_by_members(members))


def remove_process_set(process_set: ProcessSet) -> bool:
    """Removes a process set; every rank of the job must make the same call.

    Args:
        process_set: the set to remove.

    Returns:
        True, or False for the global set, which cannot be removed. Afterwards all objects that stand for the
        set have no id and no ranks.

    Raises:
        ValueError: the set has not been added.
        HorovodInternalError: the job's ranks make different requests or operations of the set are pending.
    """
    process_set_id = id_of(process_set)
    if process_set_id == 0:
        return False
    operations.request(lambda lib: lib.process_set_remove(process_set_id))
    for ended in [process_set, *_registered.pop(process_set_id, ())]:
        ended.process_set_id = ended.ranks = None
    return True


def _register(process_set: ProcessSet, process_set_id: int) -> None:
    process_set.process_set_id = process_set_id
    _registered.setdefault(process_set_id, []).append(process_set)


def check_new(process_sets: Any) -> list[ProcessSet]:
    """Returns the sets that init(process_sets=...) must add.

    Raises ValueError if the argument is malformed.
    """
    if process_sets is None or process_sets == "dynamic":
        return []
    if isinstance(process_sets, str) or not all(
            isinstance(process_set, ProcessSet)
            for process_set in process_sets):
        raise ValueError(f"init(process_sets={process_sets!r}): expected a "
                         "list of ProcessSet, or 'dynamic'")
    return list(process_sets)


def add_all(process_sets: Sequence[ProcessSet]) -> None:
    """Adds the sets that have no id, in this order; see init().

    Raises ValueError, and adds none, if two of them have the same ranks or one
    has all ranks of the job.
    """
    seen = {tuple(global_process_set.ranks or ()): "the global process set"}
    for process_set in process_sets:
        ranks = tuple(process_set.ranks or ())
        if ranks in seen:
            raise ValueError(f"init(process_sets=...): {process_set!r} has the "
                             f"same ranks as {seen[ranks]}")
        seen[ranks] = repr(process_set)
    known = {
        tuple(sets[0].ranks or ()): process_set_id
        for process_set_id, sets in _registered.items()
    }
    for process_set in process_sets:
        if process_set.process_set_id is not None:
            continue
        process_set_id = known.get(tuple(process_set.ranks or ()))
        if process_set_id is not None:
            _register(process_set, process_set_id)
        else:
            add_process_set(process_set)


def forget_all() -> None:
    """Called when the membership epoch is over: all sets lose their ids, but keep their ranks."""
    for sets in _registered.values():
        for process_set in sets:
            process_set.process_set_id = None
    _registered.clear()
