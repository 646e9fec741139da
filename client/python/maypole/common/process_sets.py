"""Process sets: ranks that run collectives among themselves.

    evens = add_process_set(range(0, size(), 2))   # every rank of the job
    if evens.included():
        allreduce(x, process_set=evens)

Sets are made and removed by all ranks of the job together, members or not, in
the same order. They live until shutdown(). Several objects may stand for one
set; `_registered` has them by the set's id.

Thread contract: any thread; making and removing, one thread at a time, as it is
matched between ranks by order.
"""

import operator
from typing import Any, Dict, List, Optional, Sequence, Union

from maypole import _native
from maypole.common import operations
from maypole.common.exceptions import not_initialized


class ProcessSet:
    """Some ranks of the job; pass it to init() or add_process_set().

    process_set_id: None until it is made and after it has ended.
    ranks: ascending; None after remove_process_set().
    """

    process_set_id: Optional[int] = None
    ranks: Optional[List[int]] = None
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
        """Number of ranks in the set; None when it is not made."""
        return None if self.process_set_id is None else len(self.ranks)

    def rank(self) -> Optional[int]:
        """This process's number in the set; None when it is not made.

        ValueError if this process is not in it.
        """
        if self.process_set_id is None:
            return None
        if not self.included():
            raise ValueError(
                f"rank {_native.library().rank()} is not in process set "
                f"{self.process_set_id}, whose ranks are {self.ranks}")
        return self.ranks.index(_native.library().rank())

    def included(self) -> Optional[bool]:
        """Whether this process is in the set; None when it is not made."""
        if self.process_set_id is None:
            return None
        return _native.library().rank() in self.ranks

    def __repr__(self) -> str:
        return (f"ProcessSet(process_set_id={self.process_set_id}, "
                f"ranks={self.ranks})")


class _GlobalProcessSet(ProcessSet):
    """All ranks of the job; it needs not be made."""

    process_set_id = 0

    def __init__(self) -> None:  # pylint: disable=super-init-not-called
        pass

    @property
    def ranks(self) -> Optional[List[int]]:  # type: ignore[override]
        size = self.size()
        return None if size is None else list(range(size))

    def size(self) -> Optional[int]:
        size = _native.library().size()
        return None if size < 0 else size

    def rank(self) -> Optional[int]:
        rank = _native.library().rank()
        return None if rank < 0 else rank

    def included(self) -> Optional[bool]:
        return None if self.rank() is None else True


global_process_set = _GlobalProcessSet()

_registered: Dict[int, List[ProcessSet]] = {}


def id_of(process_set: Any) -> int:
    """The number of a set that operations are for.

    Raises TypeError for what is no ProcessSet, ValueError for one that is not
    made or has ended.
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
            f"process_set={process_set!r}: it is not made, or has been "
            "removed; all ranks make it by add_process_set() or init()")
    return process_set.process_set_id


def add_process_set(
        process_set: Union[ProcessSet, Sequence[int]]) -> ProcessSet:
    """Makes a process set; every rank of the job must call this alike.

    process_set: ranks, or a ProcessSet that is not made. It is returned with
    its process_set_id. Nothing need be set in the environment for this.
    Raises ValueError for ranks that are not in the job or twice in the list,
    and if there is a set of the same ranks (all ranks are the global one);
    HorovodInternalError if the ranks ask for different sets.
    """
    if not isinstance(process_set, ProcessSet):
        process_set = ProcessSet(process_set)
    if process_set.process_set_id is not None:
        raise ValueError(f"{process_set!r} is made already")
    if process_set.ranks is None:
        raise ValueError(f"{process_set!r} was removed; make a new one")
    ranks = process_set.ranks
    _register(process_set,
              operations.request(lambda lib: lib.process_set_add(ranks)))
    return process_set


def remove_process_set(process_set: ProcessSet) -> bool:
    """Removes a process set; every rank of the job must call this alike.

    Returns True; False for the global set, which stays. Afterwards the object
    and all that stand for the same set have no id and no ranks. Raises
    ValueError for a set that is not made, HorovodInternalError if the ranks
    ask for different things or operations of the set are pending.
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


def check_new(process_sets: Any) -> List[ProcessSet]:
    """The sets that init(process_sets=...) is to make; ValueError."""
    if process_sets is None or process_sets == "dynamic":
        return []
    if isinstance(process_sets, str) or not all(
            isinstance(process_set, ProcessSet)
            for process_set in process_sets):
        raise ValueError(f"init(process_sets={process_sets!r}): expected a "
                         "list of ProcessSet, or 'dynamic'")
    return list(process_sets)


def add_all(process_sets: Sequence[ProcessSet]) -> None:
    """Makes those that are not made, in this order; see init().

    ValueError, before any is made, if two of them have the same ranks or one
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
        tuple(sets[0].ranks): process_set_id
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
    """The epoch is over, and all sets with it; they keep their ranks."""
    for sets in _registered.values():
        for process_set in sets:
            process_set.process_set_id = None
    _registered.clear()
