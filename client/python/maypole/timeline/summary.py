"""The tables that maypole-timeline prints: which ranks were late, for what."""

from collections import defaultdict
from collections.abc import Sequence

from maypole.timeline.trace import Operation, Trace, rank_of

_TENSORS = 10


def text(trace: Trace) -> str:
    """Returns both tables, and a note of what is missing in the file."""
    complete = [o for o in trace.operations if "last_rank" in o.args]
    lines = [f"{len(trace.operations)} parts of operations in {trace.end:.3f} s, "
             f"{sum(rank_of(t) is not None for t in trace.tracks)} ranks"]
    if trace.lost:
        lines.append(f"{trace.lost} records were lost: the ranks were faster than the timeline")
    # No rank can be late for an operation of one rank.
    incomplete = sum("last_rank" not in o.args and o.args.get("ranks") != 1 for o in trace.operations)
    if incomplete:
        lines.append(f"{incomplete} parts are of operations that not all ranks recorded")
    if complete:
        lines += ["", *_ranks(complete), "", *_tensors(complete)]
    return "\n".join(lines)


def _ranks(complete: Sequence[Operation]) -> list[str]:
    """Returns, for each rank, how often it was the last.

    Also how long the others waited for it alone, and how long it waited for others.
    """
    last: dict[int, int] = defaultdict(int)
    alone: dict[int, float] = defaultdict(float)
    waited: dict[int, float] = defaultdict(float)
    for o in complete:
        rank = o.args["rank"]
        waited[rank] += o.waited
        if o.args["last_rank"] == rank:
            last[rank] += 1
            alone[rank] += o.args["late_after_previous_ms"] / 1000
    rows = [(str(r), str(last[r]), f"{alone[r]:.3f}", f"{waited[r]:.3f}")
            for r in sorted(waited, key=lambda r: (-alone[r], r))]
    return _table(("rank", "last", "all waited for it (s)", "it waited (s)"), rows)


def _tensors(complete: Sequence[Operation]) -> list[str]:
    """Returns the tensors for which the other ranks waited longest for the last one."""
    times: dict[str, int] = defaultdict(int)
    alone: dict[str, float] = defaultdict(float)
    blame: dict[str, dict[int, float]] = defaultdict(lambda: defaultdict(float))
    for o in complete:
        if o.args["last_rank"] != o.args["rank"]:
            continue
        seconds = o.args["late_after_previous_ms"] / 1000
        times[o.name] += 1
        alone[o.name] += seconds
        blame[o.name][o.args["rank"]] += seconds
    most = sorted(alone, key=lambda n: (-alone[n], n))[:_TENSORS]
    rows = []
    for name in most:
        worst = max(blame[name], key=lambda r: blame[name][r])
        rows.append((f"{alone[name]:.3f}", str(times[name]), f"rank {worst} ({blame[name][worst]:.3f})", name))
    return _table(("waited (s)", "times", "most for", "operation"), rows)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in [head, *rows]]
