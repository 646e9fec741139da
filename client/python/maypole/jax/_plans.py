"""A `Plan`: what a collective on a pytree must do, apart from the values.

A plan is part of the compiled program, so it must be hashable.
"""

import dataclasses

from maypole import _native


@dataclasses.dataclass(frozen=True)
class Plan:
    """The arguments of all operations of a call, one operation for each leaf.

    kind, op, root, prescale, postscale: as in maypole.h. process_set: its id.
    names: one for each leaf. paths: the leaves' paths in the pytree, for errors if they
    have no names. rows: the first dimension of each result of an allgather; empty:
    as if all ranks had as many rows as this one.
    """

    kind: int
    names: tuple[str, ...]
    op: int = 0
    root: int = 0
    process_set: int = 0
    prescale: float = 1.0
    postscale: float = 1.0
    rows: tuple[int, ...] = ()
    paths: tuple[str, ...] = ()

    def label(self, i: int) -> str:
        """Returns the name of leaf i in errors; "" if it has no name, and is the whole tree."""
        return self.names[i] or (self.paths[i] if self.paths else "")

    def named(self, suffix: str) -> "Plan":
        """Returns the same plan with a suffix appended to each name."""
        return dataclasses.replace(
            self, names=tuple(name + suffix for name in self.names))


KIND_NAMES = {
    _native.ALLREDUCE: "allreduce",
    _native.ALLGATHER: "allgather",
    _native.BROADCAST: "broadcast",
    _native.ALLTOALL: "alltoall",
    _native.REDUCESCATTER: "reducescatter",
}
