"""What maypole.run() shows while its job runs: one line of text, updated in place.

    maypole: 4 of 4 ranks, 12.3 steps/s, 0:01:07

In a notebook the line is a separate display in the cell's output; elsewhere it
is the last line of sys.stderr, and the ranks' output appears above it.

The figures are from the metrics endpoints of the daemons that maypolerun has
started on this machine (docs/metrics.md): the coordinator's maypole_ranks, and
an agent's maypole_steps_total. Figures that are not available, for example of
daemons that run elsewhere, are left out. Thread contract: one thread uses a
Progress.
"""

import collections
import contextlib
import datetime
import http.client
import re
import sys
import time
from typing import Any, Optional

PERIOD = 1.0  # seconds between two queries of the job
_WINDOW = 10.0  # seconds over which steps are averaged
_TIMEOUT = 0.5  # for an answer of a daemon on this machine


def in_notebook() -> bool:
    """Whether this is a kernel of Jupyter, whose cells can be updated; IPython in a terminal is not."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return getattr(shell, "kernel", None) is not None


class _Cell:
    """A display in the output of a notebook's cell."""

    def __init__(self) -> None:
        self._handle: Any = None

    def write(self, text: str) -> None:
        from IPython.display import display
        data = {"text/plain": text}
        if self._handle is None:
            self._handle = display(data, raw=True, display_id=True)
        else:
            self._handle.update(data, raw=True)

    def clear(self) -> None:
        """Does nothing: other output appears below the display."""

    def restore(self, text: str) -> None:
        """Does nothing: the display is still there."""

    def end(self) -> None:
        """Does nothing: the text stays."""


class _Line:
    """The last line of sys.stderr."""

    def __init__(self) -> None:
        self._shown = 0

    def write(self, text: str) -> None:
        sys.stderr.write("\r" + text.ljust(self._shown))
        sys.stderr.flush()
        self._shown = len(text)

    def clear(self) -> None:
        if self._shown:
            sys.stderr.write("\r" + " " * self._shown + "\r")
            sys.stderr.flush()
            self._shown = 0

    def restore(self, text: str) -> None:
        self.write(text)

    def end(self) -> None:
        sys.stderr.write("\n")
        sys.stderr.flush()


class _Figures:
    """Ranks and steps per second of the job."""

    def __init__(self, endpoints_file: str) -> None:
        self._file = endpoints_file
        self._endpoints: dict[str, str] = {}
        self._steps: collections.deque[tuple[float, float]] = collections.deque()
        self.started = False  # whether the daemons run
        self.ranks: Optional[int] = None
        self.steps_per_second: Optional[float] = None

    def look(self, now: float) -> None:
        if not self.started:
            self._find_endpoints()
        ranks = _sum(self._endpoints.get("coordinator"), "maypole_ranks")
        self.ranks = None if ranks is None else int(ranks)
        # All nodes of a job make the same steps.
        agent = next((address for name, address in self._endpoints.items() if name != "coordinator"), None)
        steps = _sum(agent, "maypole_steps_total")
        self._note_steps(now, steps if self.ranks else None)

    def _find_endpoints(self) -> None:
        with contextlib.suppress(OSError), open(self._file, encoding="utf-8") as f:
            lines = [line.strip().partition("=") for line in f]
            self._endpoints = {name: address for name, _, address in lines if name != "admin"}
            self.started = True

    def _note_steps(self, now: float, steps: Optional[float]) -> None:
        if not steps or (self._steps and steps < self._steps[-1][1]):  # no step yet; a new executor
            self._steps.clear()
        if steps:
            self._steps.append((now, steps))
        while self._steps and self._steps[0][0] < now - _WINDOW:
            self._steps.popleft()
        self.steps_per_second = None
        if len(self._steps) > 1:
            (then, before), (now, after) = self._steps[0], self._steps[-1]
            self.steps_per_second = (after - before) / (now - then)


def _sum(address: Optional[str], metric: str) -> Optional[float]:
    """Returns the sum of all series of a metric at a daemon's endpoint; None if there are none."""
    if address is None:
        return None
    host, _, port = address.rpartition(":")
    connection = http.client.HTTPConnection(host.strip("[]"), int(port), timeout=_TIMEOUT)
    try:
        connection.request("GET", "/metrics")
        text = connection.getresponse().read().decode("utf-8", "replace")
    except (OSError, http.client.HTTPException):  # the daemon has ended, or is too busy
        return None
    finally:
        connection.close()
    values = re.findall(rf"^{metric}(?:{{.*}})? (\S+)$", text, re.M)
    return sum(map(float, values)) if values else None


class Progress:
    """Shows the state of a job from its start to its end.

    endpoints_file: the file that maypolerun --endpoints-file writes. wanted:
    the number of ranks; None if it is not known or may change.
    """

    def __init__(self, endpoints_file: str, wanted: Optional[int]) -> None:
        self._figures = _Figures(endpoints_file)
        self._wanted = wanted
        self._began = time.monotonic()
        self._next = self._began
        self._display: Any = _Cell() if in_notebook() else _Line()
        self._text = ""

    def tick(self) -> None:
        """Shows the current state, at most once per PERIOD. Takes up to 1 s if a daemon does not answer."""
        now = time.monotonic()
        if now < self._next:
            return
        self._figures.look(now)
        self._show(self._state())
        self._next = time.monotonic() + PERIOD

    def write(self, stream: Any, text: str) -> None:
        """Writes other output, above the line."""
        self._display.clear()
        stream.write(text)
        stream.flush()
        if text.endswith("\n"):
            self._display.restore(self._text)

    def end(self, how: str) -> None:
        """how: "ended", "failed", "interrupted"."""
        self._show(f"{how} after")
        self._display.end()

    def _state(self) -> str:
        ranks = self._figures.ranks
        if ranks is None:
            return "running," if self._figures.started else "starting,"
        of = "" if self._wanted is None else f" of {self._wanted}"
        speed = self._figures.steps_per_second
        return f"{ranks}{of} ranks," + ("" if speed is None else f" {speed:.3g} steps/s,")

    def _show(self, state: str) -> None:
        elapsed = datetime.timedelta(seconds=int(time.monotonic() - self._began))
        self._text = f"maypole: {state} {elapsed}"
        self._display.write(self._text)
