"""send and recv: an operation of two ranks is a broadcast on the process set of these two.

Only the two ranks make that set, at their first operation; its request does not block (a rank that waited for it could
keep others from making theirs). What is sent until the set is there waits for it, in order.

As torch.distributed has it, operations match by sender, receiver and tag, each in its own order.
"""

import collections
import threading
from typing import Any, Callable, Optional

import torch

from maypole.common import operations, process_sets
from maypole.common.operations import Pending
from maypole.torch import _submissions


class Deferred:
    """An operation that is submitted when its process set is there; a Pending for who waits for it.

    Thread contract: any thread.
    """

    def __init__(self, pair: "_Pair", tensor: torch.Tensor, root: int, name: str):
        self._pair = pair
        self._describe = lambda process_set: _submissions.broadcast(tensor, root, name, process_set, True)
        self._pending: Optional[Pending] = None
        self._error: Optional[Exception] = None
        self._calls: list[Callable[[], None]] = []

    def submit(self, process_set: Optional[int], error: Optional[Exception]) -> None:
        """Called once by the pair, in order: with the set, or with why there is none."""
        try:
            if error is not None:
                raise error
            assert process_set is not None
            self._pending = operations.start(self._describe(process_set))
        except Exception as failed:
            self._error = failed

    def attach_calls(self) -> None:
        """Called once by the pair, after submit()."""
        calls, self._calls = self._calls, []
        for function in calls:
            self.call_when_done(function)

    def done(self) -> bool:
        """As Pending.done()."""
        if not self._pair.open():
            return False
        return self._pending is None or self._pending.done()

    def wait_until(self, deadline: float) -> Optional[str]:
        """As Pending.wait_until()."""
        late = self._pair.open_until(deadline)
        if late is not None or self._pending is None:
            return late
        return self._pending.wait_until(deadline)

    def wait(self) -> Any:
        """As Pending.wait()."""
        self._pair.wait()
        if self._error is not None:
            raise self._error
        assert self._pending is not None
        return self._pending.wait()

    def call_when_done(self, function: Callable[[], None]) -> None:
        """As Pending.call_when_done()."""
        with self._pair.lock:
            if self._pending is None and self._error is None:
                self._calls.append(function)
                return
        if self._pending is not None:
            self._pending.call_when_done(function)
        else:
            function()


class _Pair:
    """Two ranks of the job, and their process set as soon as it is there."""

    def __init__(self, ranks: list[int]):
        self.lock = threading.Lock()  # of the list, and of what is submitted
        self._waiting: list[Deferred] = []
        self._process_set: Optional[int] = None
        self._error: Optional[Exception] = None
        self._request = process_sets.start_of_members(ranks)
        self._request.call_when_done(self.wait)

    def start(self, tensor: torch.Tensor, root: int, name: str) -> Deferred:
        deferred = Deferred(self, tensor, root, name)
        with self.lock:
            if self._there():
                deferred.submit(self._process_set, self._error)
            else:
                self._waiting.append(deferred)
        return deferred

    def open(self) -> bool:
        """Whether what was started has been submitted, or has failed."""
        if not self._there() and self._request.done():
            self.wait()
        return self._there()

    def open_until(self, deadline: float) -> Optional[str]:
        """Waits for it until then; returns None, or what it waits for."""
        if self._there():
            return None
        late = self._request.wait_until(deadline)
        if late is None:
            self.wait()
        return late

    def wait(self) -> None:
        """Waits for the set, and submits what waits for it."""
        if self._there():
            return
        with self.lock:
            if self._there():
                return
            try:
                process_set: Optional[int] = self._request.wait()
                error: Optional[Exception] = None
            except Exception as failed:
                process_set, error = None, failed
            for deferred in self._waiting:
                deferred.submit(process_set, error)
            started, self._waiting = self._waiting, []
            self._process_set, self._error = process_set, error
        for deferred in started:
            deferred.attach_calls()

    def _there(self) -> bool:
        return self._process_set is not None or self._error is not None


class PointToPoint:
    """What one rank of a process group sends and receives.

    Args:
        group: its name in operations' names.
        ranks: the ranks of the job, by rank in the group.
        rank: this one's rank in the group.
    """

    def __init__(self, group: str, ranks: list[int], rank: int):
        self._group = group
        self._ranks = ranks
        self._rank = rank
        self._pairs: dict[int, _Pair] = {}
        self._counts: collections.Counter = collections.Counter()

    def send(self, tensor: torch.Tensor, to: int, tag: int) -> Deferred:
        """Starts sending a contiguous tensor."""
        return self._start(tensor, to, self._rank, to, tag)

    def receive(self, tensor: torch.Tensor, source: int, tag: int) -> Deferred:
        """Starts receiving into a contiguous tensor."""
        return self._start(tensor, source, source, self._rank, tag)

    def _start(self, tensor: torch.Tensor, peer: int, source: int, target: int, tag: int) -> Deferred:
        if peer == self._rank:
            raise ValueError(f"rank {peer} of group '{self._group}' cannot send to itself")
        if peer not in self._pairs:
            self._pairs[peer] = _Pair([self._ranks[peer], self._ranks[self._rank]])
        what = f"{self._group}.{source}>{target}.{tag}"
        number = self._counts[what]
        self._counts[what] += 1
        return self._pairs[peer].start(tensor.detach().view(-1), self._ranks[source], f"{what}#{number % 1024}")
