"""Reads the file of a timeline into objects.

    trace = load("timeline.json")
    for late in trace.late: print(late.rank, late.tensor, late.seconds)

The file is a Chrome trace that Maypole has written. An incomplete file (the job
was killed) is read as far as it goes. All times are seconds since the first
event.
"""

import json
import re
from dataclasses import dataclass, field
from typing import Any, Optional

_RANK = re.compile(r"rank (\d+) \((.*)\)$")
_EXECUTOR = "executor "


class NotATimeline(ValueError):
    """Maypole has not written this file; the text names it."""


@dataclass
class Phase:
    """A part of an operation; times are in seconds."""

    name: str
    begin: float
    end: float


@dataclass
class Operation:
    """A rank's part of an operation; an executor's order or network run."""
    track: str
    lane: int
    name: str
    begin: float
    end: float
    args: dict[str, Any]
    phases: list[Phase] = field(default_factory=list)

    @property
    def waited(self) -> float:
        """How long this rank waited for the last one to arrive."""
        return self.args.get("waited_ms", 0.0) / 1000


@dataclass
class Late:
    """From `begin` to `end` all others waited for this rank alone."""
    rank: int
    tensor: str
    kind: str
    begin: float
    end: float
    waiting: int

    @property
    def seconds(self) -> float:
        """How long they waited."""
        return self.end - self.begin


@dataclass
class Trace:
    """The contents of a timeline's file."""

    tracks: list[str]  # in the order in which they are drawn
    operations: list[Operation]  # of ranks
    executors: list[Operation]
    late: list[Late]
    lost: int  # records

    @property
    def end(self) -> float:
        """When the last operation ended."""
        return max((o.end for o in self.operations + self.executors), default=0.0)


def load(path: str) -> Trace:
    """Reads the file. Raises OSError, or NotATimeline."""
    with open(path, encoding="utf-8", errors="replace") as f:
        events = _events(f.read(), path)
    names = {e["pid"]: e["args"]["name"] for e in events if e.get("name") == "process_name" and e["ph"] == "M"}
    known = {pid: name for pid, name in names.items() if _RANK.match(name) or name.startswith(_EXECUTOR)}
    if events and not known:
        raise NotATimeline(f"{path}: no rank of a Maypole job is in this trace")
    start = min((e["ts"] for e in events if e["ph"] == "X"), default=0.0)
    trace = Trace([known[pid] for pid in sorted(known)], [], [], [], 0)
    open_on: dict[tuple[int, int], Operation] = {}
    for event in events:
        track = known.get(event.get("pid"))
        if track is not None:
            _take(event, track, start, trace, open_on)
    return trace


def _events(text: str, path: str) -> list[dict[str, Any]]:
    text = text.strip()
    for whole in (text, text.rstrip(",") + "]", text[:text.rfind("\n")].rstrip().rstrip(",") + "]"):
        try:
            events = json.loads(whole)
        except ValueError:
            continue
        if isinstance(events, list) and all(isinstance(e, dict) and "ph" in e for e in events):
            return events
    raise NotATimeline(f"{path}: this is not a Chrome trace as Maypole writes it (a JSON array of events)")


def _take(event: dict[str, Any], track: str, start: float, trace: Trace,
          open_on: dict[tuple[int, int], Operation]) -> None:
    category = event.get("cat")
    args = event.get("args", {})
    if category == "lost":
        trace.lost += args.get("lost", 0)
    if event["ph"] != "X":
        return
    begin = (event["ts"] - start) / 1e6
    end = begin + event["dur"] / 1e6
    at = (event["pid"], event["tid"])
    if category == "critical_path":
        trace.late.append(Late(args["rank"], args["tensor"], args["kind"], begin, end, args["waiting"]))
    elif category == "phase":
        # A phase follows its operation, on the same track.
        if at in open_on:
            open_on[at].phases.append(Phase(event["name"], begin, end))
    else:
        operation = Operation(track, event["tid"], event["name"], begin, end, args)
        open_on[at] = operation
        (trace.operations if category == "operation" else trace.executors).append(operation)


def rank_of(track: str) -> Optional[int]:
    """The number of the rank whose track this is; None: an executor's."""
    match = _RANK.match(track)
    return int(match.group(1)) if match else None
