"""One rank of a contestant of the comparison; the twin of contest.h.

contest.h has the protocol. A `Reducer` reduces tensors.
"""

import mmap
import os
import socket
import sys
import time
from typing import Dict, List, Protocol, Sequence

import torch

import cases
from pattern import Pattern

_CELL_WORDS = 8  # a cell of the start line is 64 bytes
_LINE_BYTES = 4096
_MAX_MESSAGE = 1 << 16


class Reducer(Protocol):

    rank: int
    size: int
    # "private" and, if it has one, "arena"; also ways of its own, see open().
    storages: Sequence[str]

    def arena_operations(self) -> int:
        """The number of tensors reduced so far in the arena, without a copy."""

    def make(self, storage: str, shapes: Sequence[Sequence[int]]
            ) -> List[torch.Tensor]:
        """The tensors of a case."""

    def allreduce(self, names: Sequence[str],
                  tensors: Sequence[torch.Tensor]) -> None:
        """Same as runner.Library.allreduce."""


class StartLine:
    """The barrier of a contestant's ranks; the twin of start_line.h."""

    def __init__(self, path: str, rank: int, ranks: int):
        descriptor = os.open(path, os.O_RDWR)
        self._cells = memoryview(mmap.mmap(descriptor, _LINE_BYTES)).cast("Q")
        os.close(descriptor)
        self._mine = rank * _CELL_WORDS
        self._all = range(0, ranks * _CELL_WORDS, _CELL_WORDS)
        self._arrivals = 0

    def meet(self) -> None:
        self._arrivals += 1
        cells, arrivals = self._cells, self._arrivals
        cells[self._mine] = arrivals
        for cell in self._all:
            while cells[cell] < arrivals:
                os.sched_yield()


class WrongResult(Exception):
    """Names tensor, round, index and both values."""


class _Case:

    def __init__(self, reducer: Reducer, what: str, storage: str,
                 operations: int):
        resnet = what == "resnet"
        case, = cases.make_cases("" if resnet else what, resnet=resnet)
        self.tensors = reducer.make(storage, [s for _, s in case.tensors])
        self.names = [
            f"{storage}.{what}.{number}" for number in range(len(self.tensors))
        ]
        self.operations = operations
        self.reduced = 0  # tensors
        self.in_arena = 0  # of them


class Contest:

    def __init__(self, reducer: Reducer):
        self._reducer = reducer
        self._pattern = Pattern(reducer.size)
        self._cases: Dict[str, _Case] = {}
        self._line = StartLine(os.environ["BENCH_START_LINE"], reducer.rank,
                               reducer.size)
        self._conductor = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._conductor.connect(os.environ["BENCH_CONDUCTOR"])
        self._send("hello %s %d %d %s" % (
            os.environ["BENCH_CONTESTANT"], reducer.rank, os.getpid(),
            " ".join(reducer.storages)))

    def run(self) -> None:
        """Runs until the conductor says quit or closes the connection."""
        while True:
            words = self._conductor.recv(_MAX_MESSAGE).decode().split()
            if not words:
                return
            try:
                answer = self._obey(words)
            except Exception as e:
                self._send("error " + " ".join(str(e).split()))
                raise
            self._send(answer)
            if words[0] == "quit":
                return

    def _send(self, line: str) -> None:
        self._conductor.send(line.encode())

    def _obey(self, words: List[str]) -> str:
        if words[0] == "open":
            _, number, what, storage, operations = words
            self._cases[number] = _Case(self._reducer, what, storage,
                                        int(operations))
        elif words[0] == "turn":
            case = self._cases[words[1]]
            first, warmups, rounds = (int(w) for w in words[2:])
            times = [self._round(case, first + i)
                     for i in range(warmups + rounds)][warmups:]
            return "times " + " ".join("%.9g" % t for t in times)
        elif words[0] == "close":
            case = self._cases.pop(words[1])
            return f"closed {case.reduced} {case.in_arena}"
        elif words[0] != "quit":
            raise ValueError("unknown command " + words[0])
        return "ok"

    def _round(self, case: _Case, number: int) -> float:
        """Runs a round; returns the microseconds of one operation."""
        reducer, names, tensors = self._reducer, case.names, case.tensors
        for index, tensor in enumerate(tensors):
            self._pattern.fill(reducer.rank, number, index, tensor)
        operations = range(case.operations)
        in_arena = reducer.arena_operations()
        self._line.meet()
        start = time.perf_counter_ns()
        for _ in operations:
            reducer.allreduce(names, tensors)
        took = time.perf_counter_ns() - start
        case.reduced += case.operations * len(tensors)
        case.in_arena += reducer.arena_operations() - in_arena
        self._check(case, number)
        return took / 1e3 / case.operations

    def _check(self, case: _Case, number: int) -> None:
        factor = float(self._reducer.size)**(case.operations - 1)
        for index, tensor in enumerate(case.tensors):
            wrong = self._pattern.check(number, index, tensor, factor)
            if wrong is None:
                continue
            raise WrongResult(
                f"wrong result: tensor {case.names[index]}, round {number}, "
                f"index {wrong.index} of {tensor.numel()}: got "
                f"{wrong.got:.9g}, expected {wrong.expected:.9g}")


def run(reducer: Reducer) -> None:
    """The main() of a contestant; ends the process."""
    try:
        Contest(reducer).run()
    except Exception as e:
        print(f"contest: rank {reducer.rank} of {reducer.size}: {e}",
              file=sys.stderr, flush=True)
        # Not by sys.exit: peers may leave the interpreter in a state in which it cannot end.
        os._exit(1)
