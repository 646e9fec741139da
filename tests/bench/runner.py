"""Measures one case after the other and checks every result.

The twin of runner.h and library.h. A `Library` reduces tensors: Maypole, or a
faulty one of a test. All ranks call the same functions in the same
order, from one thread.
"""

import time
from typing import List, Protocol, Sequence

import torch

import report
from cases import Case
from pattern import Pattern


class Library(Protocol):

    rank: int
    size: int
    nodes: int

    def barrier(self) -> None:
        ...

    def allreduce(self, names: Sequence[str],
                  tensors: Sequence[torch.Tensor]) -> None:
        """Replaces each tensor by its sum over the ranks.

        Submits all, the last one first as a backward pass does, then waits for
        all.
        """

    def gather(self, mine: List[float]) -> List[float]:
        """Returns `mine` of all ranks, in rank order; it has the same length on all."""


class WrongResult(Exception):
    """Names case, tensor, round, index and both values."""


class Runner:

    def __init__(self, library: Library):
        self._library = library
        self._pattern = Pattern(library.size)
        # Runs on over all cases: stale data of an earlier case is wrong data.
        self._pattern_round = 0

    def run(self, case: Case) -> report.Row:
        """Called by all ranks; the row is the same on all."""
        names = [name for name, _ in case.tensors]
        tensors = [torch.empty(shape) for _, shape in case.tensors]
        mine = [
            self._round(case, turn, names, tensors)
            for turn in range(case.warmup + case.rounds)
        ][case.warmup:]
        times = report.slowest_rank(self._library.gather(mine),
                                    self._library.size)
        return report.Row(case.label, case.bytes, len(names), times)

    def _round(self, case: Case, turn: int, names: List[str],
               tensors: List[torch.Tensor]) -> float:
        """Microseconds; only submit and wait are timed."""
        self._pattern_round += 1
        for number, tensor in enumerate(tensors):
            self._pattern.fill(self._library.rank, self._pattern_round, number,
                               tensor)
        self._library.barrier()
        start = time.perf_counter()
        self._library.allreduce(names, tensors)
        took = time.perf_counter() - start
        self._check(case, turn, names, tensors)
        return took * 1e6

    def _check(self, case: Case, turn: int, names: List[str],
               tensors: List[torch.Tensor]) -> None:
        for number, tensor in enumerate(tensors):
            wrong = self._pattern.check(self._pattern_round, number, tensor)
            if wrong is None:
                continue
            raise WrongResult(
                f"wrong result: case {case.label}, tensor "
                f"{names[number]}, round {turn} (of {case.warmup} + "
                f"{case.rounds}), index {wrong.index} of {tensor.numel()}: "
                f"got {wrong.got:.9g}, expected {wrong.expected:.9g}")
