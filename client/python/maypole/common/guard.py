"""The program that runs one daemon for Ray's and Spark's processes, and ends it with the process that started it.

    python -S -E guard.py PARENT_PID SECONDS PROGRAM FLAG...

That process (daemons.py) may be killed at any moment, and Ray then also kills its children. So the guard leaves the
process tree, and watches the process: when it ends, for whatever reason, or closes our stdin, the guard ends the
daemon and removes its files. If the guard itself is killed, the kernel sends the daemon SIGTERM, and the next guard
on this host removes the files.

The daemon has a directory of mode 0700; {directory} in its flags stands for it. stdin begins with a line with the
secret (or an empty one), for the file `secret` there. stdout gets one line at the daemon's start, and one at its end if
the end was not requested:

    ready ANNOUNCEMENT      the line that the daemon has written to --announce_fd
    failed WHY              it has ended, or has announced nothing within SECONDS; then no other line follows
    lost WHY                it has ended

Thread contract: a process of one thread. It imports nothing of Maypole, so that it starts fast.
"""

import ctypes
import fcntl
import glob
import math
import os
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Optional

_PR_SET_PDEATHSIG = 1
_END_SECONDS = 5.0  # docs/design.md: a daemon ends at once at SIGTERM
_NEW_SECONDS = 60  # a younger directory may not be locked yet
_LOOK_SECONDS = 0.5
_PREFIX = "maypole-daemon-%d-"


def end_with_parent(parent: int, number: int) -> bool:
    """Sends this process the signal when the thread that started it ends. False: it has ended already."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)
    return os.getppid() == parent


def _start(parent: int) -> None:
    """Runs in the daemon, before exec; it may run Python because the guard has one thread."""
    if not end_with_parent(parent, signal.SIGTERM):
        os._exit(1)


class _Parent:
    """The process that started us.

    descriptors become readable when it has ended. There are none before Linux 5.3, in sandboxes that refuse
    pidfd_open(), or in a Python that was built for such a kernel: then has_ended() must be called every look_seconds.
    """

    def __init__(self, pid: int):
        self._pid = pid
        self.descriptors: list[int] = []
        self.look_seconds = math.inf
        try:
            self.descriptors.append(os.pidfd_open(pid))
        except (AttributeError, OSError):
            self.look_seconds = _LOOK_SECONDS
        self._started = self._start_time()

    def has_ended(self) -> bool:
        return self._start_time() != self._started

    def _start_time(self) -> Optional[bytes]:
        """Distinguishes it from a later process of this number. None: it has ended, or we may not know."""
        try:
            with open(f"/proc/{self._pid}/stat", "rb") as f:
                fields = f.read().rpartition(b")")[2].split()
        except OSError:
            return None
        return None if fields[0] in (b"Z", b"X") else fields[19]


class _Guard:
    """Watches the daemon from its start on. what: what its end would be, a failure or a loss."""

    def __init__(self, parent: "_Parent", command: list[str], seconds: float):
        self._parent = parent
        self._name = os.path.basename(command[0])
        self._seconds = seconds
        self._deadline = time.monotonic() + seconds
        self.what = "failed"
        self._announced = self._part = b""
        self._last_line = ""
        self._announcement, write = os.pipe()
        guard = os.getpid()
        try:
            self.process = subprocess.Popen([*command, f"--announce_fd={write}"], stdin=subprocess.DEVNULL,
                                            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, pass_fds=[write],
                                            preexec_fn=lambda: _start(guard))
        finally:
            os.close(write)
        assert self.process.stderr is not None  # it is a pipe
        self._log = self.process.stderr.fileno()
        self._selector = selectors.DefaultSelector()
        self._signals = _pipe_of_signals()
        # Each returns why the guard's work is over, empty if the daemon is not needed any more; None: it is not over.
        handlers: list[tuple[int, Callable[[], Optional[str]]]] = [
            (0, lambda: None if os.read(0, 65536) else ""), *((fd, lambda: "") for fd in parent.descriptors),
            (self._log, self._on_log), (self._announcement, self._on_announcement), (self._signals, self._on_signal)]
        for file, handler in handlers:
            self._selector.register(file, selectors.EVENT_READ, handler)

    def watch(self) -> str:
        """Returns why the daemon is lost; empty if it is not needed any more."""
        over = self._on_exit()  # it may have ended already
        while over is None:
            left = math.inf if self.what == "lost" else max(0.0, self._deadline - time.monotonic())
            pause = min(left, self._parent.look_seconds)
            for key, _ in self._selector.select(None if pause == math.inf else pause):
                over = key.data() if over is None else over
            if over is None and self._parent.has_ended():
                over = ""
            if left == 0.0 and self.what != "lost" and over is None:
                over = self._with_log(f"{self._name} was not ready within {self._seconds:g} s")
        return over

    def end(self) -> None:
        """Ends the daemon, if it runs."""
        self.process.terminate()
        try:
            self.process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def _on_log(self) -> None:
        """Passes whole lines of the daemon's log on to stderr; keeps the last line."""
        data = os.read(self._log, 65536)
        if not data:
            self._selector.unregister(self._log)
        lines, _, self._part = (self._part + data).rpartition(b"\n")
        if lines:
            os.write(2, lines + b"\n")
            self._last_line = lines.rpartition(b"\n")[2].decode(errors="replace")

    def _on_announcement(self) -> None:
        data = os.read(self._announcement, 4096)
        self._announced += data
        if data and b"\n" not in self._announced:
            return
        self._selector.unregister(self._announcement)
        if self._announced:  # otherwise it has ended, which SIGCHLD reports
            self.what = "lost"
            report("ready", self._announced.decode().partition("\n")[0])

    def _on_signal(self) -> Optional[str]:
        os.read(self._signals, 4096)
        return self._on_exit()

    def _on_exit(self) -> Optional[str]:
        if self.process.poll() is None:
            return None
        os.set_blocking(self._log, False)
        try:
            self._on_log()
        except (BlockingIOError, KeyError):  # its executors still have the log open; or it was closed before
            pass
        status = self.process.returncode
        how = f"was killed by signal {-status}" if status < 0 else f"exited with status {status}"
        return self._with_log(f"{self._name} (pid {self.process.pid}) {how}")

    def _with_log(self, text: str) -> str:
        last = self._part.decode(errors="replace") or self._last_line
        return f"{text}: {last}" if last else text


def _pipe_of_signals() -> int:
    """A descriptor that is readable after a signal, for example SIGCHLD."""
    read, write = os.pipe()
    os.set_blocking(write, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(write)
    return read


def report(what: str, text: str) -> None:
    """Writes a line for the process that started this one, if it still reads."""
    try:
        os.write(1, f"{what} {text}".replace("\n", " ").encode() + b"\n")
    except BrokenPipeError:
        pass


def _base() -> str:
    """As for ranks of other launchers: MAYPOLE_RUNTIME_DIR, else the user's XDG_RUNTIME_DIR, else /tmp."""
    chosen = os.environ.get("MAYPOLE_RUNTIME_DIR")
    if chosen:
        return chosen
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    try:
        return runtime if runtime and os.stat(runtime).st_uid == os.geteuid() else "/tmp"
    except OSError:
        return "/tmp"


def _sweep(pattern: str) -> None:
    """Removes directories that killed guards have left."""
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


def _secret() -> bytes:
    """The first line of stdin."""
    line = b""
    while not line.endswith(b"\n"):
        part = os.read(0, 1)
        if not part:
            sys.exit(0)  # the process that started us is gone
        line += part
    return line


def _run(parent: _Parent, directory: str, command: list[str], seconds: float) -> None:
    secret = _secret()
    if secret != b"\n":
        with open(os.open(os.path.join(directory, "secret"), os.O_WRONLY | os.O_CREAT, 0o600), "wb") as f:
            f.write(secret)
    guard = _Guard(parent, [part.replace("{directory}", directory) for part in command], seconds)
    try:
        why = guard.watch()
        if why:
            report(guard.what, why)
    finally:
        guard.end()


def main() -> None:
    """Runs in the background. The calling process ends at once."""
    pid, seconds, command = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3:]
    parent = _Parent(pid)
    if os.getppid() != pid or os.fork() != 0:
        os._exit(0)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    prefix = _PREFIX % os.geteuid()
    _sweep(os.path.join(_base(), prefix))
    try:
        directory = tempfile.mkdtemp(prefix=prefix, dir=_base())
    except OSError as error:
        report("failed", f"{error}; set MAYPOLE_RUNTIME_DIR to a directory of this machine that you may write to")
        return
    lock = os.open(directory, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    try:
        _run(parent, directory, command, seconds)
    except OSError as error:
        report("failed", str(error))
    finally:
        shutil.rmtree(directory, ignore_errors=True)
        os.close(lock)


if __name__ == "__main__":
    main()
