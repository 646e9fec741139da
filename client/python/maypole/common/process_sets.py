"""Process sets: in this version the global one, which holds all ranks."""

from typing import Any, List, Optional

from maypole.common import basics


class ProcessSet:
    """A set of ranks that run collectives among themselves.

    Only `global_process_set` exists so far; making another one raises
    NotImplementedError.
    """

    process_set_id: Optional[int] = None
    mpi_comm = None

    def __init__(self, ranks_or_comm: Any):
        raise NotImplementedError(
            f"ProcessSet({ranks_or_comm!r}): this version of Maypole has the "
            "global process set only")

    @property
    def ranks(self) -> Optional[List[int]]:
        """All ranks of the job; None before init()."""
        return list(range(basics.size())) if basics.is_initialized() else None

    def size(self) -> Optional[int]:
        """Number of ranks in the set; None before init()."""
        return basics.size() if basics.is_initialized() else None

    def rank(self) -> Optional[int]:
        """This process's number in the set; None before init()."""
        return basics.rank() if basics.is_initialized() else None

    def included(self) -> Optional[bool]:
        """Whether this process is in the set; None before init()."""
        return True if basics.is_initialized() else None


class _GlobalProcessSet(ProcessSet):
    process_set_id = 0

    def __init__(self) -> None:  # pylint: disable=super-init-not-called
        pass

    def __repr__(self) -> str:
        return f"ProcessSet(process_set_id=0, ranks={self.ranks})"


global_process_set = _GlobalProcessSet()


def check(process_set: Any) -> None:
    """Raises NotImplementedError for all but the global process set."""
    if process_set is not global_process_set:
        raise NotImplementedError(
            f"process_set={process_set!r}: this version of Maypole has the "
            "global process set only; leave process_set out")


def add_process_set(process_set: Any) -> ProcessSet:
    """Not there yet: raises NotImplementedError."""
    raise NotImplementedError(
        f"add_process_set({process_set!r}): this version of Maypole has the "
        "global process set only")


def remove_process_set(process_set: Any) -> bool:
    """Not there yet: raises NotImplementedError."""
    raise NotImplementedError(
        f"remove_process_set({process_set!r}): this version of Maypole has "
        "the global process set only")
