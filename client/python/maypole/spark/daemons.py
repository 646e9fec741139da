"""Starts a job's coordinator, and agents of elastic jobs. Each ends with the process that has started it.

Thread contract: the thread that starts a daemon must live as long as the daemon is to.
"""

import os
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from typing import Any, Optional

from maypole.common import guard, program
from maypole.common.hosts import parse_announcement

_READY_SECONDS = 60.0
_END_SECONDS = 10.0


class Daemon:
    """A running maypole-coordinator or maypole-worker. said: what it announced ("listen", "socket", ...)."""

    def __init__(self, name: str, arguments: list[str], secret: str, place_socket: bool = False):
        """secret: the cluster secret, which goes to a file that only this user can read.

        Raises RuntimeError if the daemon is not ready in time, FileNotFoundError if it is not installed.
        """
        binary = program.find_program(name)
        directory = tempfile.mkdtemp(prefix="maypole-spark-")  # has mode 0700
        try:
            path = os.path.join(directory, "secret")
            with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as f:
                f.write(secret + "\n")
            arguments = [*arguments, f"--secret_file={path}"]
            if place_socket:
                arguments.append(f"--socket={directory}/agent.sock")
            self._process, self.said = _start(directory, binary, arguments)
        except BaseException:
            shutil.rmtree(directory, ignore_errors=True)
            raise

    def ended(self) -> Optional[int]:
        """Its exit status; None: it runs."""
        return self._process.poll()

    def end(self) -> None:
        """Ends it and waits for its end."""
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def _start(directory: str, binary: str, arguments: list[str]) -> Any:
    ours, theirs = os.pipe()
    try:
        process = subprocess.Popen([
            sys.executable, "-S", "-E", guard.__file__,
            str(os.getpid()), directory, binary, f"--announce_fd={theirs}", *arguments
        ],
                                   stdin=subprocess.DEVNULL,
                                   pass_fds=(theirs,))
    except BaseException:
        os.close(ours)
        raise
    finally:
        os.close(theirs)
    try:
        return process, _announcement(ours, os.path.basename(binary), process)
    except BaseException:
        process.terminate()
        process.wait()
        raise
    finally:
        os.close(ours)


def _announcement(pipe: int, name: str, process: Any) -> dict[str, str]:
    line = b""
    deadline = time.monotonic() + _READY_SECONDS
    with selectors.DefaultSelector() as selector:
        selector.register(pipe, selectors.EVENT_READ)
        while not line.endswith(b"\n"):
            if not selector.select(max(0.0, deadline - time.monotonic())):
                raise RuntimeError(f"{name} was not ready after {_READY_SECONDS:.0f} s")
            part = os.read(pipe, 4096)
            if not part:
                raise RuntimeError(
                    f"{name} ended with status {process.wait()} before it was ready; its message is above "
                    "(of a Spark task: in the executor's stderr)")
            line += part
    return parse_announcement(line.decode())


def _common(start_timeout: int) -> list[str]:
    return [f"--start_timeout={start_timeout}s", "--metrics=", "--log_level=warning"]


def start_coordinator(listen: str, secret: str, start_timeout: int) -> Daemon:
    """listen: HOST:PORT, or HOST:0 for any port."""
    return Daemon("maypole-coordinator", [f"--listen={listen}", *_common(start_timeout)], secret)


def start_agent(coordinator: str, node: str, secret: str, start_timeout: int) -> Daemon:
    """An agent for one Spark task, with a socket of its own (said["socket"])."""
    return Daemon("maypole-worker", [f"--coordinator={coordinator}", f"--node={node}", *_common(start_timeout)],
                  secret,
                  place_socket=True)
