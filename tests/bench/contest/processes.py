"""Processes of the comparison: starts, observes and ends them by their ids."""

import os
import signal
import subprocess
import time
from typing import Dict, Iterable, List, Set

import harness


class Group:
    """The processes of one contestant, including all descendants."""

    def __init__(self, log_path: str):
        self._log_path = log_path
        self._log = open(log_path, "wb")
        self.started: List[subprocess.Popen] = []
        self._seen: Set[int] = set()

    def start(self, command: List[str], env: Dict[str, str], **kwargs
             ) -> subprocess.Popen:
        kwargs.setdefault("stdin", subprocess.DEVNULL)
        kwargs.setdefault("stdout", self._log)
        process = subprocess.Popen(command, env=env, stderr=self._log, **kwargs)
        self.started.append(process)
        return process

    def log_tail(self) -> str:
        self._log.flush()
        with open(self._log_path, encoding="utf-8", errors="replace") as f:
            return " | ".join(f.read()[-1500:].split("\n")).strip(" |")

    def ended(self) -> List[int]:
        """Exit statuses of processes that have ended."""
        return [p.returncode for p in self.started if p.poll() is not None]

    def look(self) -> Set[int]:
        """Finds all live processes of the group, and remembers them for stop()."""
        alive = set()
        for process in self.started:
            if process.poll() is None:
                alive.add(process.pid)
                alive.update(harness.descendants(process.pid))
        self._seen |= alive
        return alive

    def stop(self, grace: float = 5) -> None:
        """SIGTERM, then SIGKILL for what is left after `grace` seconds."""
        self.look()
        for process in self.started:
            if process.poll() is None:
                process.terminate()
        deadline = time.monotonic() + grace
        for process in self.started:
            try:
                process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        # Children may outlive a killed parent.
        while self._left() and time.monotonic() < deadline:
            time.sleep(0.02)
        for pid in self._left():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        self._log.close()

    def _left(self) -> List[int]:
        return [pid for pid in self._seen if harness.alive(pid)]


def cpu_seconds(pids: Iterable[int]) -> float:
    """The CPU time of all threads of the processes."""
    total = 0
    for pid in pids:
        try:
            threads = os.listdir(f"/proc/{pid}/task")
        except OSError:
            continue
        for thread in threads:
            try:
                with open(f"/proc/{pid}/task/{thread}/schedstat",
                          encoding="ascii") as f:
                    total += int(f.read().split()[0])
            except OSError:
                continue
    return total / 1e9


def machine_seconds() -> float:
    """The CPU time of all programs on all cores, plus the time taken by the hypervisor."""
    with open("/proc/stat", encoding="ascii") as f:
        fields = [int(word) for word in f.readline().split()[1:9]]
    user, nice, system, _, _, irq, softirq, steal = fields
    ticks = user + nice + system + irq + softirq + steal
    return ticks / os.sysconf("SC_CLK_TCK")
