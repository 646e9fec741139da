"""The plan of the comparison: settings, columns, cases, and the number of rounds."""

import dataclasses
import math
from typing import List, Optional, Tuple

import cases

RESNET = "resnet"
SIZES = ("4", "1KiB", "64KiB", "1MiB", "16MiB", "64MiB", "256MiB")
SMALL = ("4", "1KiB", "64KiB", "1MiB")

_MIB = 1 << 20


@dataclasses.dataclass(frozen=True)
class Setting:
    key: str
    title: str
    ranks: int
    nodes: int
    rate: Optional[str] = None  # of the wire between nodes, as tc writes it

    @property
    def local_ranks(self) -> int:
        return self.ranks // self.nodes


SETTINGS = (
    Setting("1x2", "1 node, 2 ranks", 2, 1),
    Setting("1x4", "1 node, 4 ranks", 4, 1),
    Setting("2x2-1g", "2 nodes, 2 ranks each, 1 Gbit/s", 4, 2, "1gbit"),
    Setting("2x2", "2 nodes, 2 ranks each, unlimited wire", 4, 2),
)


@dataclasses.dataclass(frozen=True)
class Column:
    """A column of the table: a contestant, with its kind of storage and its cases."""
    key: str
    title: str
    contestant: str
    storage: str
    whats: Tuple[str, ...]


COLUMNS = (
    Column("maypole", "Maypole staged, C++", "maypole_cpp", "private", SIZES),
    Column("maypole_arena", "Maypole arena, C++", "maypole_cpp", "arena", SIZES),
    Column("maypole_py", "Maypole staged, Python", "maypole_py", "private",
           SMALL + (RESNET,)),
    Column("maypole_py_arena", "Maypole arena, Python", "maypole_py", "arena",
           SMALL + (RESNET,)),
    Column("torch", "torch.distributed Gloo", "torch", "private",
           SIZES + (RESNET,)),
    Column("torch_buckets", "torch.distributed Gloo, 25 MB buckets", "torch",
           "buckets", (RESNET,)),
    Column("openmpi", "Open MPI", "openmpi", "private", SIZES),
    Column("gloo", "Gloo (ring)", "gloo", "private", SIZES),
)
CONTESTANTS = tuple(dict.fromkeys(c.contestant for c in COLUMNS))


@dataclasses.dataclass(frozen=True)
class CasePlan:
    """A turn is `warmups` + `measured` rounds of `operations` operations."""
    what: str
    bytes: int
    operations: int
    turns: int
    warmups: int
    measured: int


def bytes_of(what: str) -> int:
    case, = cases.make_cases("" if what == RESNET else what,
                             resnet=what == RESNET)
    return case.bytes


def label(what: str) -> str:
    return "ResNet-50" if what == RESNET else cases.bytes_text(bytes_of(what))


def _operations(size: int, setting: Setting) -> int:
    """Enough operations to make the cost of the clock and the start line negligible."""
    # A sum that is reduced n times more is ranks^n of it: float32 ends at 2^127.
    # And crowded ranks take long: 100 operations for 2 ranks, 25 for 4.
    most = int(100 / math.log2(setting.ranks)**2)
    total = _MIB if setting.rate else 8 * _MIB
    return max(1, min(most, total // size))


def _turns(size: int, setting: Setting) -> int:
    by_size = ((_MIB, 25), (16 * _MIB, 25), (102 * _MIB, 15), (256 * _MIB, 9))
    turns = next(count for limit, count in by_size if size <= limit)
    if setting.ranks > 2:
        turns = (turns + 1) // 2
    if setting.rate and size > _MIB:
        turns = max(3, turns // 3)
    return turns


def case_plan(what: str, setting: Setting, quick: bool = False) -> CasePlan:
    size = bytes_of(what)
    small = size <= _MIB
    turns = 2 if quick else _turns(size, setting)
    measured = 3 if small else 1
    # Large buffers keep nothing in the caches from the previous round.
    return CasePlan(what, size, _operations(size, setting), turns,
                    1 if small else 0, measured)


QUICK = {"1x2": ("4", "64KiB", "1MiB", RESNET), "2x2-1g": ("4", "1MiB")}


def whats(setting: Setting, quick: bool) -> Tuple[str, ...]:
    return QUICK[setting.key] if quick else SIZES + (RESNET,)


def chosen(names: Optional[str], known: List[str], kind: str) -> List[str]:
    """The comma-separated `names` in the order of `known`; all if None."""
    if names is None:
        return list(known)
    wanted = names.split(",")
    for name in wanted:
        if name not in known:
            raise ValueError(f"'{name}' is no {kind}; there are "
                             + ", ".join(known))
    return [k for k in known if k in wanted]
