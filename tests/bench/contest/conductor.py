"""The conductor: gives the contestants their turns, one after the other.

All contestants' ranks are connected, and sleep in a read of their socket;
contest.h has the protocol. A contestant that fails is dropped from the setting, with the
reason; the others continue.
"""

import os
import select
import shutil
import socket
import tempfile
import time
from typing import Dict, List, Sequence

import harness
from contest import contestants
from contest.plan import CasePlan, Column, Setting
from contest.processes import Group, cpu_seconds

_MAX_MESSAGE = 1 << 16
_START_SECONDS = 60
_TURN_SECONDS = 180


class Failed(Exception):
    """The failure of a contestant, as a text."""


class Contestant:
    """The ranks of one contestant in one setting."""

    def __init__(self, name: str, setting: Setting, tree: str, net):
        self.name = name
        self.setting = setting
        # Short: unix sockets lie in here.
        self._dir = tempfile.mkdtemp(prefix="mpb", dir="/tmp")
        self._line = os.memfd_create("bench-start-line")
        os.truncate(self._line, 4096)
        self.group = Group(os.path.join(self._dir, "log"))
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(os.path.join(self._dir, "conductor"))
        self._listener.listen(setting.ranks)
        self._ranks: List[socket.socket] = []
        self._storages: List[List[str]] = []
        place = os.path.join(self._dir, "p")
        os.mkdir(place)
        self._place = contestants.Place(setting, tree, place,
                                        self._environment(tree), net)
        self._pids: Sequence[int] = ()
        self._born = 0.0  # seconds since which waiting is counted
        self._busy = [0.0, 0.0]  # own turns: wall seconds, CPU seconds
        self._cpu_at_birth = 0.0
        self._stopped = False

    def _environment(self, tree: str) -> Dict[str, str]:
        env = harness.environment(root=tree)
        paths = [contestants.BENCH, env["PYTHONPATH"]]
        env.update(
            PYTHONPATH=os.pathsep.join(paths),
            BENCH_CONTESTANT=self.name,
            BENCH_CONDUCTOR=os.path.join(self._dir, "conductor"),
            BENCH_START_LINE=f"/proc/{os.getpid()}/fd/{self._line}")
        return env

    def start(self) -> None:
        contestants.start(self.name, self._place, self.group)

    def await_ranks(self) -> None:
        """Waits until all ranks have said hello."""
        deadline = time.monotonic() + _START_SECONDS
        ranks: Dict[int, socket.socket] = {}
        self._listener.settimeout(0.2)
        while len(ranks) < self.setting.ranks:
            try:
                connection, _ = self._listener.accept()
            except socket.timeout:
                if time.monotonic() > deadline:
                    raise self._failure(f"only {len(ranks)} of "
                                        f"{self.setting.ranks} ranks came within "
                                        f"{_START_SECONDS} s")
                if any(self.group.ended()):
                    raise self._failure("it ended while starting")
                continue
            words = connection.recv(_MAX_MESSAGE).decode().split()
            ranks[int(words[2])] = connection
            self._storages.append(words[4:])
        self._ranks = [ranks[r] for r in sorted(ranks)]
        self._pids = sorted(self.group.look())
        self._born = time.monotonic()
        self._cpu_at_birth = cpu_seconds(self._pids)

    def has(self, storage: str) -> bool:
        return all(storage in storages for storages in self._storages)

    def open(self, number: int, column: Column, case: CasePlan) -> None:
        self._tell(f"open {number} {case.what} {column.storage} "
                   f"{case.operations}")

    def close_case(self, number: int) -> float:
        """Returns the part of all reductions that ran in the arena, without copies."""
        parts = []
        for answer in self._tell(f"close {number}"):
            reduced, in_arena = (int(w) for w in answer.split()[1:])
            parts.append(in_arena / reduced if reduced else 0.0)
        return min(parts)

    def turn(self, number: int, first_round: int, warmups: int,
             measured: int) -> List[float]:
        """Runs a turn; returns the slowest rank's microseconds of each round."""
        wall, cpu = time.monotonic(), cpu_seconds(self._pids)
        answers = self._tell(f"turn {number} {first_round} {warmups} {measured}")
        self._busy[0] += time.monotonic() - wall
        self._busy[1] += cpu_seconds(self._pids) - cpu
        times = [[float(w) for w in answer.split()[1:]] for answer in answers]
        return [max(round_) for round_ in zip(*times)]

    def cpu_seconds(self) -> float:
        """The CPU time of all its processes."""
        return cpu_seconds(self._pids)

    def waiting(self) -> float:
        """The part of a core that all its processes used between its turns."""
        wall = time.monotonic() - self._born - self._busy[0]
        cpu = cpu_seconds(self._pids) - self._cpu_at_birth - self._busy[1]
        return max(0.0, cpu) / wall if wall > 0 else 0.0

    def _tell(self, line: str) -> List[str]:
        for rank in self._ranks:
            try:
                rank.send(line.encode())
            except OSError as e:
                raise self._failure(f"a rank is gone before '{line}': {e}")
        return self._answers(line)

    def _answers(self, line: str) -> List[str]:
        answers: Dict[int, str] = {}
        poller = select.poll()
        numbers = {}
        for number, rank in enumerate(self._ranks):
            poller.register(rank, select.POLLIN)
            numbers[rank.fileno()] = number
        deadline = time.monotonic() + _TURN_SECONDS
        while len(answers) < len(self._ranks):
            ready = poller.poll(1000)
            if not ready and time.monotonic() > deadline:
                raise self._failure(f"no answer to '{line}' within "
                                    f"{_TURN_SECONDS} s")
            for descriptor, _ in ready:
                number = numbers[descriptor]
                answer = self._receive(number, line)
                answers[number] = answer
                poller.unregister(descriptor)
        return [answers[n] for n in range(len(self._ranks))]

    def _receive(self, number: int, line: str) -> str:
        try:
            answer = self._ranks[number].recv(_MAX_MESSAGE).decode()
        except OSError as e:
            raise self._failure(f"rank {number} is gone in '{line}': {e}")
        if not answer or answer.startswith("error"):
            raise self._failure(f"rank {number} in '{line}': "
                                f"{answer or 'it ended'}")
        return answer

    def _failure(self, text: str) -> Failed:
        return Failed(f"{self.name}: {text}; its log ends with: "
                      + self.group.log_tail())

    def stop(self) -> None:
        """Ends all started processes; a second call does nothing."""
        if self._stopped:
            return
        self._stopped = True
        for rank in self._ranks:
            try:
                rank.send(b"quit")
            except OSError:
                pass  # its group is stopped below
        if self._ranks:
            self._await_end(5)
        for rank in self._ranks:
            rank.close()
        self.group.stop()
        self._listener.close()
        os.close(self._line)
        shutil.rmtree(self._dir, ignore_errors=True)

    def _await_end(self, seconds: float) -> None:
        """Waits until the ranks have closed their sockets, with a time limit."""
        deadline = time.monotonic() + seconds
        for rank in self._ranks:
            rank.settimeout(max(0.01, deadline - time.monotonic()))
            try:
                while rank.recv(_MAX_MESSAGE):
                    pass
            except OSError:
                return
