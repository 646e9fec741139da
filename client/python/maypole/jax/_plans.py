"""A `Plan`: what a collective on a pytree must do, apart from the values.

A plan is part of the compiled program, so it must be hashable.
"""

import dataclasses
import zlib

from maypole import _native

_MAX_BYTES = 511  # of a name in the library


@dataclasses.dataclass(frozen=True)
class Plan:
    """The arguments of all operations of a call, one operation for each leaf.

    kind, op, root, prescale, postscale: as in maypole.h. process_set: its id.
    names: one for each leaf. paths: the leaves' paths in the pytree, for errors if they
    have no names. rows: the first dimension of each result of an allgather; empty:
    as if all ranks had as many rows as this one. check: what the last leaf compares (_checks.py); empty: nothing.
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
    check: tuple[str, ...] = ()

    def label(self, i: int) -> str:
        """Returns the name of leaf i in errors; "" if it has no name, and is the whole tree."""
        return self.names[i] or (self.paths[i] if self.paths else "")

    def named(self, suffix: str) -> "Plan":
        """Returns the same plan with a suffix appended to each name."""
        return dataclasses.replace(
            self, names=tuple(limited(name + suffix) for name in self.names))


def limited(name: str) -> str:
    """Returns `name` in a form that the library accepts."""
    name = name.replace("\n", " ")
    encoded = name.encode("utf-8")
    if len(encoded) <= _MAX_BYTES:
        return name
    kept = encoded[:_MAX_BYTES - 9].decode("utf-8", "ignore")
    return f"{kept}.{zlib.crc32(encoded):08x}"


KIND_NAMES = {
    _native.ALLREDUCE: "allreduce",
    _native.ALLGATHER: "allgather",
    _native.BROADCAST: "broadcast",
    _native.ALLTOALL: "alltoall",
    _native.REDUCESCATTER: "reducescatter",
}
