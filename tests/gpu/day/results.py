"""The results of a day: lines of JSON, one for each check, and the table of the phases.

    {"phase": "training", "check": "4 ranks, ipc", "state": "passed", "values": {...}}

States: passed, failed; measured (values are figures); skipped (values has the reason); noted (what was found). A check
named "(whole)" says how its phase has ended. Each line of a rehearsal has "rehearsal": true, and no table of the
documentation uses it.

Thread contract: any process appends; a line is written by one write().
"""

import json
import os
from typing import Any, Dict, Iterable, List

STATES = ("passed", "failed", "measured", "skipped", "noted")


def _path() -> str:
    return os.environ["MAYPOLE_DAY_RESULTS"]


def size() -> int:
    return os.path.getsize(_path()) if os.path.exists(_path()) else 0


def mark(rehearsal: bool) -> Dict[str, bool]:
    """What each line of a rehearsal has."""
    return {"rehearsal": True} if rehearsal else {}


def write(**line: Any) -> None:
    data = (json.dumps(line) + "\n").encode()
    descriptor = os.open(_path(), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        os.write(descriptor, data)
    finally:
        os.close(descriptor)


def read(path: str, begin: int = 0) -> List[Dict[str, Any]]:
    """The lines from the byte `begin` on; without a last one that was cut off."""
    with open(path, "rb") as f:
        f.seek(begin)
        whole = f.read().rpartition(b"\n")[0]
    return [json.loads(line) for line in whole.splitlines()]


def read_from(begin: int) -> List[Dict[str, Any]]:
    return read(_path(), begin) if os.path.exists(_path()) else []


class Table:
    """A row for each phase; good: nothing has failed."""

    def __init__(self) -> None:
        self.good = True
        self._rows: List[str] = []
        self._remarks: List[str] = []

    def add(self, name: str, what: str, lines: Iterable[Dict[str, Any]], seconds: float, limit: float,
            ended: str) -> str:
        checks = [line for line in lines if line["phase"] == name and line["check"] != "(whole)"]
        counts = [sum(line["state"] == state for line in checks) for state in STATES]
        self.good &= ended == "ended" and counts[STATES.index("failed")] == 0
        self._remarks += ["%s: %s: %s: %s" % (name, line["check"], line["state"], line["values"].get("reason", ""))
                          for line in checks if line["state"] in ("failed", "skipped")]
        row = "%-12s %6d %6d %8d %7d %5d %7.1f %5g  %-12s %s" % (name, *counts, seconds, limit, ended, what)
        self._rows.append(row)
        return row

    def text(self, rehearsal: bool) -> str:
        head = "%-12s %6s %6s %8s %7s %5s %7s %5s  %-12s %s" % ("phase", *STATES, "seconds", "limit", "end", "what")
        title = "A REHEARSAL, WITHOUT A GPU: no figure means anything.\n" if rehearsal else ""
        remarks = "".join("  " + " ".join(remark.split())[:400] + "\n" for remark in self._remarks)
        return title + head + "\n" + "".join(row + "\n" for row in self._rows) + (
            "Failed and skipped:\n" + remarks if remarks else "")
