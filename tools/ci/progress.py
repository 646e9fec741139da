#!/usr/bin/env python3
"""Runs a command of Bazel whose output is no terminal, and says now and then how far it is.

usage: tools/ci/progress.py bazel build ...

Where Bazel cannot move a cursor, it writes a line for nearly every action. Of these, one each 20 seconds is passed on, as

    build: 412 of 1240 steps are done, 828 are left: about 9 min

All other lines of Bazel's standard error pass as they are. The status is Bazel's.
"""

import collections
import re
import signal
import subprocess
import sys
import time

SECONDS = 20  # between two lines
# A build has short and long steps, and some that the cache has: how long the last ones took says most about the rest.
_WINDOW_SECONDS = 180
_STEPS = re.compile(r"\[([\d,]+) / ([\d,]+)\]")
# What Bazel does before the first step, and lines that go on with what the line before names.
_BEFORE = re.compile(r"(Loading|Analyzing):")
_MORE = re.compile(r"(    (currently loading|Fetching)|\.\.\. still trying to connect|Starting local Bazel server)")


def duration(seconds):
    """In the words of a message: at least 1 min, because it is a guess."""
    minutes = max(1, round(seconds / 60))
    return "%d min" % minutes if minutes < 60 else "%d h %d min" % divmod(minutes, 60)


class Progress:
    """Chooses what is written of Bazel's lines."""

    def __init__(self, now):
        self._next = now + SECONDS
        self._seen = collections.deque()  # (time, steps done) of the last lines
        self._said_steps = False

    def line(self, text, now):
        """What is to be written in place of this line at the time `now`; None if nothing."""
        steps = _STEPS.match(text)
        if steps is None:
            if not _BEFORE.match(text) and not _MORE.match(text):
                return text
            return "build: " + text.strip() if _BEFORE.match(text) and self._due(now) else None
        done, total = (int(number.replace(",", "")) for number in steps.groups())
        # Those of the first seconds are mostly no work, and would make the guess too small.
        if self._said_steps:
            self._seen.append((now, done))
        while self._seen and self._seen[0][0] < now - _WINDOW_SECONDS:
            self._seen.popleft()
        if not self._due(now):
            return None
        self._said_steps = True
        left = max(total - done, 0)
        first, done_then = self._seen[0] if self._seen else (now, done)
        guess = ": about " + duration(left * (now - first) / (done - done_then)) if done > done_then else ""
        return "build: %d of %d steps are done, %d are left%s" % (done, total, left, guess)

    def _due(self, now):
        if now < self._next:
            return False
        self._next = now + SECONDS
        return True


def main(argv):
    came = []  # signals to pass on
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: came.append(number))
    process = subprocess.Popen(argv, stderr=subprocess.PIPE, text=True, errors="replace")
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: process.send_signal(number))
    for number in came:
        process.send_signal(number)
    # A terminal's Ctrl-C goes to Bazel as well, which ends then; so does this program, at the end of its output.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    progress = Progress(time.monotonic())
    for text in process.stderr:
        written = progress.line(text.rstrip("\n"), time.monotonic())
        if written is not None:
            print(written, file=sys.stderr, flush=True)
    status = process.wait()
    return status if status >= 0 else 128 - status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
