"""Runs a daemon that ends with the process that has started it, also if that is killed.

    python -S -E guard.py PARENT_PID DIRECTORY PROGRAM ARGUMENT...

The guard ends the daemon (SIGTERM, then SIGKILL) when its parent has ended or it gets SIGTERM, and removes DIRECTORY
then. It imports nothing of Maypole, so that it starts fast.
"""

import ctypes
import os
import shutil
import signal
import sys
import time
from typing import Optional

_PR_SET_PDEATHSIG = 1
_PATIENCE = 5.0  # seconds from SIGTERM to SIGKILL
_SIGNALS = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD}


def end_with_parent(parent: int, number: int) -> bool:
    """This process gets the signal when the thread that has started it ends. False: that has happened already."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)
    return os.getppid() == parent


def _start(command: list[str]) -> int:
    guard = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    try:
        os.setpgid(0, 0)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        if end_with_parent(guard, signal.SIGTERM):
            os.execv(command[0], command)
    except OSError as error:
        sys.stderr.write(f"{command[0]}: {error}\n")
    os._exit(127)


def _watch(pid: int) -> int:
    """Returns the daemon's wait status when it has ended."""
    deadline: Optional[float] = None
    while True:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return status
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        if left == 0.0:
            os.kill(pid, signal.SIGKILL)
            return os.waitpid(pid, 0)[1]
        info = signal.sigtimedwait(_SIGNALS, 3600.0 if left is None else left)
        if info is not None and info.si_signo != signal.SIGCHLD and deadline is None:
            deadline = time.monotonic() + _PATIENCE
            os.kill(pid, signal.SIGTERM)


def main() -> None:
    """Runs the command until it or the parent ends: PARENT DIRECTORY COMMAND..."""
    parent, directory, command = int(sys.argv[1]), sys.argv[2], sys.argv[3:]
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    status = 0
    try:
        if end_with_parent(parent, signal.SIGTERM):
            pid = _start(command)
            os.closerange(3, 65536)  # the daemon has them
            status = _watch(pid)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    sys.exit(os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status))


if __name__ == "__main__":
    main()
