"""What a collective on a pytree is to do, apart from the values: a `Plan`.

A plan is part of the compiled program, so it must be hashable.
"""

import dataclasses

from maypole import _native


@dataclasses.dataclass(frozen=True)
class Plan:
    """Arguments of all operations of a call, one for each leaf.

    kind, op, root, prescale, postscale: as in maypole.h. process_set: its id.
    names: one for each leaf. paths: of the leaves in the pytree, where they have no
    names: for errors. rows: the first dimension of each result of an
    allgather; empty: as if all ranks gave as many rows as this one.
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
        """What errors call leaf i; "" if it has no name, and is the whole tree."""
        return self.names[i] or (self.paths[i] if self.paths else "")

    def named(self, suffix: str) -> "Plan":
        """The same with a suffix behind each name."""
        return dataclasses.replace(
            self, names=tuple(name + suffix for name in self.names))


KIND_NAMES = {
    _native.ALLREDUCE: "allreduce",
    _native.ALLGATHER: "allgather",
    _native.BROADCAST: "broadcast",
    _native.ALLTOALL: "alltoall",
    _native.REDUCESCATTER: "reducescatter",
}
