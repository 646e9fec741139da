"""From raw rounds to figures: kinds of rounds, medians, ratios, targets.

The figure of a turn is the median of its rounds; the figure of a column is the median of its turns.
The flag ping-pong before and after its round says whether a turn is near or far; if the
two differ, the turn counts only in "all".
"""

import dataclasses
import json
import statistics
from typing import Dict, List, Optional, Tuple

from contest.plan import RESNET, SETTINGS, SIZES, bytes_of

ALL, NEAR, FAR = "all", "near", "far"
_FAR_FACTOR = 1.8
# If a kind has fewer than this part of all rounds, it comes from interruptions.
_LEAST_PART = 0.05


@dataclasses.dataclass
class Case:
    raw: Dict
    kinds: List[str]  # of each round; "" if it changed within

    def rounds(self, kind: str) -> List[int]:
        return [i for i, k in enumerate(self.kinds) if kind in (ALL, k)]

    def has(self, column: str) -> bool:
        return column in self.raw["us"]

    def median(self, column: str, kind: str = ALL) -> Optional[float]:
        """Microseconds of an operation; None if there are no such rounds."""
        turns = self.raw["us"].get(column, [])
        found = [statistics.median(turns[i]) for i in self.rounds(kind)
                 if i < len(turns)]
        return statistics.median(found) if found else None

    def memcpy(self, kind: str = ALL) -> Optional[float]:
        found = [self.raw["memcpy_gbs"][i] for i in self.rounds(kind)]
        return statistics.median(found) if found else None


@dataclasses.dataclass
class Results:
    run: Dict
    cases: Dict[Tuple[str, str], Case]  # by setting and what
    missing: Dict[str, Dict[str, str]]  # by setting: contestant, reason
    skipped: Dict[str, str]
    waiting: Dict[str, Dict[str, float]]
    wire: Dict[str, List[float]]
    example: Optional[Dict]
    nearest: float  # nanoseconds of the flag
    threshold: float

    def case(self, setting: str, what: str) -> Optional[Case]:
        return self.cases.get((setting, what))

    def kinds(self) -> List[str]:
        """Those seen; [ALL] if only one was."""
        seen = [k for c in self.cases.values() for k in c.kinds]
        enough = all(seen.count(k) > _LEAST_PART * len(seen)
                     for k in (NEAR, FAR))
        return [NEAR, FAR] if enough else [ALL]

    def flags(self, kind: str) -> List[float]:
        return [max(c.raw["pingpong_ns"][i:i + 2])
                for c in self.cases.values() for i in c.rounds(kind)]


def load(path: str) -> Results:
    with open(path, encoding="utf-8") as f:
        lines = [json.loads(line) for line in f]
    of = lambda kind: [l for l in lines if l["kind"] == kind]
    flags = sorted(ns for l in of("case") for ns in l["pingpong_ns"])
    # Not the least: one lucky measurement would make all others far.
    nearest = flags[len(flags) // 20] if flags else 0.0
    threshold = _FAR_FACTOR * nearest
    missing = {l["setting"]: dict(l["missing"]) for l in of("setting")}
    for l in of("failed"):
        missing[l["setting"]][l["contestant"]] = l["reason"]
    run, = of("run")
    return Results(
        run=run,
        cases={(l["setting"], l["what"]): Case(l, _kinds(l, threshold))
               for l in of("case")},
        missing=missing,
        skipped={l["setting"]: l["reason"] for l in of("skipped")},
        waiting={l["setting"]: l["cores"] for l in of("waiting")},
        wire={l["setting"]: l["iperf3_bps"] for l in of("wire")},
        example=next(iter(of("example")), None), nearest=nearest,
        threshold=threshold)


def _kinds(raw: Dict, threshold: float) -> List[str]:
    far = [ns > threshold for ns in raw["pingpong_ns"]]
    return ["" if before != after else FAR if before else NEAR
            for before, after in zip(far, far[1:])]


def bound_us(ranks: int, size: int, memcpy_gbs: float) -> float:
    """The time to read and write each rank's buffer once at that rate."""
    return ranks * size / memcpy_gbs / 1e3


def bus_bandwidth(nodes: int, size: int, microseconds: float) -> float:
    """Bits per second: what each node must send, in that time."""
    return 2 * (nodes - 1) / nodes * size * 8 / (microseconds / 1e6)


@dataclasses.dataclass
class Check:
    """A figure and its target."""
    setting: str
    what: str
    text: str  # "staged against torch.distributed"
    kind: str
    value: Optional[float]  # None: not measured
    target: Optional[float]  # None: reported only
    at_most: bool = False
    unit: str = "x"

    @property
    def met(self) -> Optional[bool]:
        if self.value is None or self.target is None:
            return None
        return (self.value <= self.target if self.at_most
                else self.value >= self.target)


# (setting, whats, ours, peers of which the best counts, {kind: target}, text)
_BIG = ("1MiB", "16MiB", "64MiB", "256MiB")
_TORCH, _MPI = ("torch",), ("openmpi",)
_RESNET_PEERS = ("torch", "torch_buckets")
_RATIOS = (
    ("1x2", SIZES, "maypole", _TORCH, {NEAR: 3, FAR: 2},
     "staged against torch.distributed"),
    ("1x2", ("64KiB",), "maypole", _MPI, {ALL: 1}, "staged against Open MPI"),
    ("1x2", ("1MiB",), "maypole", _MPI, {NEAR: 2, FAR: 1},
     "staged against Open MPI"),
    ("1x2", ("16MiB",), "maypole", _MPI, {NEAR: 2.5}, "staged against Open MPI"),
    ("1x2", ("64MiB", "256MiB"), "maypole", _MPI, {ALL: 3},
     "staged against Open MPI"),
    ("1x4", _BIG, "maypole", _MPI, {ALL: 3}, "staged against Open MPI"),
    ("1x4", ("4", "1KiB", "64KiB", "1MiB"), "maypole", _TORCH, {ALL: 10},
     "staged against torch.distributed"),
    ("1x2", (RESNET,), "maypole_py", _RESNET_PEERS, {ALL: 2.8},
     "staged, Python, against the better torch.distributed"),
    ("1x2", (RESNET,), "maypole_py_arena", _RESNET_PEERS, {ALL: 2.8},
     "arena, Python, against the better torch.distributed"),
    ("1x4", (RESNET,), "maypole_py", _RESNET_PEERS, {ALL: 4},
     "staged, Python, against the better torch.distributed"),
    ("1x4", (RESNET,), "maypole_py_arena", _RESNET_PEERS, {ALL: 4},
     "arena, Python, against the better torch.distributed"),
)


def checks(results: Results) -> List[Check]:
    found = [c for row in _RATIOS for c in _ratios(results, *row)]
    return found + _latencies(results) + _arena(results) + _wire(
        results) + _example(results)


def _ratios(results, setting, whats, ours, peers, targets, text):
    for what in whats:
        case = results.case(setting, what)
        if case is None:
            continue
        for kind, target in targets.items():
            # A run of one kind cannot know which: the sterner target counts.
            if kind != ALL and results.kinds() == [ALL]:
                if kind == FAR:
                    continue
                yield Check(setting, what, text, ALL,
                            _ratio(case, ours, peers, ALL), target)
            else:
                yield Check(setting, what, text, kind,
                            _ratio(case, ours, peers, kind), target)


def _ratio(case: Case, ours: str, peers, kind: str) -> Optional[float]:
    mine = case.median(ours, kind)
    others = [case.median(p, kind) for p in peers]
    others = [o for o in others if o is not None]
    return min(others) / mine if mine is not None and others else None


def _latencies(results: Results) -> List[Check]:
    case = results.case("1x2", "4")
    if case is None:
        return []
    return [Check("1x2", "4", text, kind, case.median(column, kind), target,
                  at_most=True, unit="µs")
            for column, target, text in (("maypole", 3, "staged, C++"),
                                         ("maypole_py", 20, "staged, Python"))
            for kind in results.kinds()]


def _arena(results: Results) -> List[Check]:
    found = []
    for what, target in (("1MiB", None), ("16MiB", 70), ("64MiB", 70)):
        case = results.case("1x2", what)
        if case is None:
            continue
        for kind in results.kinds():
            took, rate = case.median("maypole_arena", kind), case.memcpy(kind)
            part = None
            if took is not None and rate is not None:
                part = 100 * bound_us(2, bytes_of(what), rate) / took
            found.append(Check("1x2", what, "arena, part of the memcpy bound",
                               kind, part, target, unit="%"))
    return found


def _wire(results: Results) -> List[Check]:
    case = results.case("2x2-1g", "64MiB")
    if case is None or "2x2-1g" not in results.wire:
        return []
    took = case.median("maypole")
    part = None
    if took is not None:
        part = 100 * bus_bandwidth(2, bytes_of("64MiB"), took) / max(
            results.wire["2x2-1g"])
    return [Check("2x2-1g", "64MiB", "staged, bus bandwidth, part of iperf3's "
                  "rate", ALL, part, 95, unit="%")]


def _example(results: Results) -> List[Check]:
    if results.example is None:
        return []
    steps = {name: statistics.median(us)
             for name, us in results.example["us_per_step"].items()}
    return [Check("1x2", "Fashion-MNIST", "time per step, part of "
                  "DistributedDataParallel's", ALL,
                  100 * steps["maypole"] / steps["ddp"], 100, at_most=True,
                  unit="%")]


def setting_keys(results: Results) -> List[str]:
    """Those with a case, in the plan's order."""
    return [s.key for s in SETTINGS if any(k == s.key for k, _ in results.cases)]
