"""Statistics of the rounds, and their tables; the twin of report.h.

A round's time is that of its slowest rank. All times are in microseconds.
"""

import dataclasses
import json
from typing import List, Sequence


def percentile(values: Sequence[float], percent: float) -> float:
    """Interpolated between the two nearest; percent 50: the median."""
    ordered = sorted(values)
    at = percent / 100 * (len(ordered) - 1)
    below = int(at)
    above = min(below + 1, len(ordered) - 1)
    part = at - below
    return ordered[below] * (1 - part) + ordered[above] * part


def slowest_rank(times: Sequence[float], ranks: int) -> List[float]:
    """`times`: each rank's rounds, rank after rank."""
    rounds = len(times) // ranks
    return [max(times[i::rounds]) for i in range(rounds)]


@dataclasses.dataclass
class Row:
    """times: of the measured rounds; at least one."""
    label: str
    bytes: int
    tensors: int
    times: List[float]

    @property
    def gigabytes_per_second(self) -> float:
        """A tensor's bytes, once, in the median time."""
        return self.bytes / percentile(self.times, 50) / 1e3


def head_text(api: str, ranks: int, nodes: int) -> str:
    """Two lines: a description of the measurement, and the names of the columns."""
    columns = "%-10s %12s %8s %7s %12s %12s %9s\n" % (
        "case", "bytes", "tensors", "rounds", "median us", "p90 us", "GB/s")
    return (f"allreduce, sum of float32, in place; {api} API, {ranks} ranks "
            f"on {nodes} nodes\n{columns}")


def row_text(row: Row) -> str:
    return "%-10s %12d %8d %7d %12.1f %12.1f %9.3f\n" % (
        row.label, row.bytes, row.tensors, len(row.times),
        percentile(row.times, 50), percentile(row.times, 90),
        row.gigabytes_per_second)


def json_text(api: str, ranks: int, nodes: int, rows: List[Row]) -> str:
    cases = [{
        "label": row.label,
        "bytes": row.bytes,
        "tensors": row.tensors,
        "rounds": len(row.times),
        "median_us": round(percentile(row.times, 50), 3),
        "p90_us": round(percentile(row.times, 90), 3),
        "gb_per_s": round(row.gigabytes_per_second, 6),
        "times_us": [round(t, 3) for t in row.times],
    } for row in rows]
    return json.dumps(
        {"api": api, "ranks": ranks, "nodes": nodes, "cases": cases},
        indent=2) + "\n"
