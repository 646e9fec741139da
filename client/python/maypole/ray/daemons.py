"""The program that runs a job's daemons on one Ray node: they end with it, and it with the actor that started it.

The actor (nodes.py) may be killed at any moment, and Ray then also kills its
children. So this program leaves the actor's process tree, and watches the pipe
from it: at its end, however that came, it ends the daemons and removes their
files. If this program is killed itself, the daemons get SIGTERM from the kernel.

Lines of JSON on stdin:  {"program": "maypole-worker", "flags": [...], "seconds": 30}
                         {"secret": "..."}, before the first program that needs it
On stdout, one for each program, in that order:
                         {"ready": "maypole-worker", "announced": {"socket": "/path", ...}}
                         {"failed": "maypole-worker", "why": "..."}
and, at any time:        {"lost": "maypole-worker", "why": "..."}
In flags, {directory} stands for a directory of mode 0700, in which the secret is the file `secret`.

Thread contract: a process of one thread.
"""

import fcntl
import glob
import json
import os
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from typing import Any, Optional

from maypole.common.guard import end_with_parent
from maypole.common.hosts import parse_announcement
from maypole.common.program import find_program

_END_SECONDS = 5.0  # docs/design.md: a daemon ends at once at SIGTERM
_NEW_SECONDS = 60  # a directory that is younger may not be locked yet
_PREFIX = "maypole-ray-%d-"


def _end_with_parent(parent: int) -> None:
    """In the child, before exec: this program has one thread, so it may run Python there."""
    if not end_with_parent(parent, signal.SIGTERM):
        os._exit(1)


class _Daemon:
    """One program, from its start on."""

    def __init__(self, program: str, flags: list[str], seconds: float):
        self.program = program
        self.seconds = seconds
        self.deadline: Optional[float] = time.monotonic() + seconds  # None: it is ready
        self.announced = b""
        self.last_line = ""
        self._part = b""
        self.announcement, write = os.pipe()
        parent = os.getpid()
        # The executors serve all ranks of the node, not those that see this actor's GPUs.
        environ = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
        try:
            self.process = subprocess.Popen(
                [find_program(program), *flags, f"--announce_fd={write}"], stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, pass_fds=[write], env=environ,
                preexec_fn=lambda: _end_with_parent(parent))
        finally:
            os.close(write)
        assert self.process.stderr is not None  # it is a pipe
        self.log = self.process.stderr
        self.exit = os.pidfd_open(self.process.pid)

    def take_log(self, data: bytes) -> None:
        """Passes its log on to stderr, whole lines at a time; keeps the last line."""
        lines, _, self._part = (self._part + data).rpartition(b"\n")
        if lines:
            sys.stderr.write(lines.decode(errors="replace") + "\n")
            sys.stderr.flush()
            self.last_line = lines.rpartition(b"\n")[2].decode(errors="replace")

    def ended(self) -> str:
        """How it has ended, for messages; waits for it."""
        os.set_blocking(self.log.fileno(), False)
        try:
            self.take_log(os.read(self.log.fileno(), 65536))
        except BlockingIOError:  # its executors have it open
            pass
        if self._part:
            self.take_log(b"\n")
        status = self.process.wait()
        how = f"was killed by signal {-status}" if status < 0 else f"exited with status {status}"
        return f"{self.program} (pid {self.process.pid}) {how}" + (f": {self.last_line}" if self.last_line else "")


class _Supervisor:

    def __init__(self, directory: str):
        self._directory = directory
        self._selector = selectors.DefaultSelector()
        self._daemons: list[_Daemon] = []
        self._input = b""

    def run(self) -> None:
        """Returns when stdin has ended."""
        self._selector.register(0, selectors.EVENT_READ, self._on_input)
        while True:
            deadlines = [daemon.deadline for daemon in self._daemons if daemon.deadline is not None]
            timeout = max(0.0, min(deadlines) - time.monotonic()) if deadlines else None
            for key, _ in self._selector.select(timeout):
                if self._selector.get_map().get(key.fileobj) == key and key.data() is False:
                    return
            for daemon in list(self._daemons):
                if daemon.deadline is not None and time.monotonic() >= daemon.deadline:
                    self._give_up(daemon, f"{daemon.program} was not ready within {daemon.seconds:g} s")

    def end(self) -> None:
        """Ends the daemons: the last one first, so that agents do not miss their coordinator."""
        for daemon in reversed(self._daemons):
            _end(daemon)

    def _on_input(self) -> bool:
        data = os.read(0, 65536)
        *lines, self._input = (self._input + data).split(b"\n")
        for line in lines:
            self._command(json.loads(line))
        return bool(data)

    def _command(self, command: dict[str, Any]) -> None:
        if "secret" in command:
            path = os.path.join(self._directory, "secret")
            with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="ascii") as f:
                f.write(command["secret"] + "\n")
            return
        flags = [flag.replace("{directory}", self._directory) for flag in command["flags"]]
        try:
            daemon = _Daemon(command["program"], flags, command["seconds"])
        except OSError as error:
            _report(failed=command["program"], why=str(error))
            return
        self._daemons.append(daemon)
        self._selector.register(daemon.log, selectors.EVENT_READ, lambda: self._on_log(daemon))
        self._selector.register(daemon.announcement, selectors.EVENT_READ, lambda: self._on_announcement(daemon))
        self._selector.register(daemon.exit, selectors.EVENT_READ, lambda: self._on_exit(daemon))

    def _on_log(self, daemon: _Daemon) -> None:
        data = os.read(daemon.log.fileno(), 65536)
        daemon.take_log(data)
        if not data:
            self._selector.unregister(daemon.log)

    def _on_announcement(self, daemon: _Daemon) -> None:
        data = os.read(daemon.announcement, 4096)
        daemon.announced += data
        if data and b"\n" not in daemon.announced:
            return
        self._selector.unregister(daemon.announcement)
        os.close(daemon.announcement)
        if daemon.announced:  # else it has ended, which its pidfd says
            daemon.deadline = None
            _report(ready=daemon.program, announced=parse_announcement(daemon.announced.decode()))

    def _on_exit(self, daemon: _Daemon) -> None:
        self._forget(daemon)
        what = {"failed" if daemon.deadline is not None else "lost": daemon.program}
        _report(**what, why=daemon.ended())

    def _give_up(self, daemon: _Daemon, why: str) -> None:
        self._forget(daemon)
        _end(daemon)
        _report(failed=daemon.program, why=why + (f": {daemon.last_line}" if daemon.last_line else ""))

    def _forget(self, daemon: _Daemon) -> None:
        self._daemons.remove(daemon)
        files: tuple[Any, ...] = (daemon.exit, daemon.log, daemon.announcement)
        for file in files:
            try:
                self._selector.unregister(file)
            except (KeyError, ValueError):  # it has ended before
                pass
        os.close(daemon.exit)


def _report(**line: Any) -> None:
    os.write(1, json.dumps(line).encode() + b"\n")


def _end(daemon: _Daemon) -> None:
    daemon.process.terminate()
    try:
        daemon.process.wait(_END_SECONDS)
    except subprocess.TimeoutExpired:
        daemon.process.kill()
        daemon.process.wait()


def _base() -> str:
    """As ranks of other launchers have it: MAYPOLE_RUNTIME_DIR, else the user's XDG_RUNTIME_DIR, else /tmp."""
    chosen = os.environ.get("MAYPOLE_RUNTIME_DIR")
    if chosen:
        return chosen
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    try:
        return runtime if runtime and os.stat(runtime).st_uid == os.geteuid() else "/tmp"
    except OSError:
        return "/tmp"


def _sweep(pattern: str) -> None:
    """Removes directories that programs like this one have left which were killed."""
    for path in glob.glob(glob.escape(pattern) + "*"):
        try:
            if os.stat(path).st_uid != os.geteuid() or time.time() - os.stat(path).st_mtime < _NEW_SECONDS:
                continue
            lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path)
            finally:
                os.close(lock)
        except OSError:  # it is in use, or has just gone
            pass


def _on_sigterm(number: int, frame: Any) -> None:
    del number, frame
    sys.exit(0)


def main() -> None:
    """Runs in the background until stdin ends. The calling process ends at once."""
    if os.fork() != 0:
        os._exit(0)
    signal.signal(signal.SIGTERM, _on_sigterm)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    prefix = _PREFIX % os.geteuid()
    _sweep(os.path.join(_base(), prefix))
    try:
        directory = tempfile.mkdtemp(prefix=prefix, dir=_base())
    except OSError as error:
        _report(failed="the supervisor of daemons", why=f"{error}; set MAYPOLE_RUNTIME_DIR to a directory of this "
                                                        "machine that you may write to")
        return
    lock = os.open(directory, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    supervisor = _Supervisor(directory)
    try:
        supervisor.run()
    except BrokenPipeError:
        pass  # the actor has gone while we reported something
    finally:
        supervisor.end()
        shutil.rmtree(directory, ignore_errors=True)
        os.close(lock)
