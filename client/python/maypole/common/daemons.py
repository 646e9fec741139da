"""Daemons that maypole.ray and maypole.spark start on a host. Each ends with the process that started it."""

import os
import queue
import subprocess
import sys
import threading
from collections.abc import Mapping
from typing import Callable

from maypole.common import guard
from maypole.common.hosts import parse_announcement
from maypole.common.program import find_program

# Added to the program's own limit, because on a busy machine its answer may be late.
_ANSWER_SECONDS = 10.0
_STOP_SECONDS = 15.0


class Daemon:
    """A running maypole-coordinator or maypole-worker, under guard.py.

    Thread contract: any thread, one at a time; on_lost is called by a thread of this object.

    Attributes:
        said: what it has announced ("listen", "socket", ...).
        lost: how it has ended, if that was not asked for; empty if it runs.
    """

    def __init__(self, name: str, flags: list[str], secret: str, seconds: float,
                 environ: Mapping[str, str] = os.environ, on_lost: Callable[[str], None] = lambda _: None):
        """flags: {directory} stands for the daemon's own directory, in which the secret, if any, is the file `secret`.

        Raises a RuntimeError that says why, if the daemon is not ready within `seconds`.
        """
        self.lost = ""
        self._name = name
        self._on_lost = on_lost
        self._answers: queue.Queue = queue.Queue()
        try:
            command = [sys.executable, "-S", "-E", guard.__file__, str(os.getpid()), str(seconds),
                       find_program(name, environ), *flags]
            self._guard = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=dict(environ),
                                           start_new_session=True)
        except OSError as error:
            raise RuntimeError(f"{name} could not be started: {error}") from error
        assert self._guard.stdin is not None  # Popen was told to make it
        self._stdin = self._guard.stdin
        self._reader = threading.Thread(target=self._read, name="maypole-daemon", daemon=True)
        self._reader.start()
        try:
            self._stdin.write(secret.encode() + b"\n")
            self._stdin.flush()
            what, text = self._answers.get(timeout=seconds + _ANSWER_SECONDS)
        except (BrokenPipeError, queue.Empty):
            what, text = "failed", "the program that runs it does not answer"
        if what != "ready":
            self.end()
            raise RuntimeError(f"{name} could not be started: {text}")
        self.said = parse_announcement(text)

    def end(self) -> None:
        """Ends the daemon; returns when it has ended and its files are removed."""
        self._stdin.close()
        self._reader.join(_STOP_SECONDS)

    def _read(self) -> None:
        what = ""
        assert self._guard.stdout is not None
        with self._guard.stdout as lines:
            for line in lines:
                what, _, text = line.decode().rstrip("\n").partition(" ")
                self._take(what, text)
        self._guard.wait()  # the started process leaves one in the background, and ends
        if what in ("", "ready") and not self._stdin.closed:
            self._take("lost", f"the program that runs {self._name} has ended")

    def _take(self, what: str, text: str) -> None:
        if what == "lost":
            self.lost = text
            self._on_lost(text)
        self._answers.put((what, text))
