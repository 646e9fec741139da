"""Operations of two ranks, on the process set of these two, which their first operation makes.

Only the two ranks make that set, and the request does not block (a rank that waited for it could keep others from
making theirs). Operations that are started before the set exists wait for it, in order.
"""

import contextlib
import threading
import time
from typing import Any, Callable, Optional

import torch

from maypole.common import operations, process_sets
from maypole.common.operations import Pending
from maypole.torch import _submissions


class Deferred:
    """An operation that is submitted once its process set exists; callers wait for it as for a Pending.

    Thread contract: any thread.
    """

    def __init__(self, pair: "Pair", tensor: torch.Tensor, root: int, name: str):
        self._pair = pair
        # Another thread, with another current stream, may submit it.
        stream = torch.cuda.current_stream(tensor.device) if tensor.is_cuda else None

        def describe(process_set: int) -> Pending:
            with contextlib.nullcontext() if stream is None else torch.cuda.stream(stream):
                return _submissions.broadcast(tensor, root, name, process_set, True)

        self._describe = describe
        self._pending: Optional[Pending] = None
        self._error: Optional[Exception] = None
        self._calls: list[Callable[[], None]] = []
        self._watched = False  # an operation of the library takes one function: _end
        self._over = False

    def submit(self, process_set: Optional[int], error: Optional[Exception]) -> None:
        """Called once by the pair, in order: with the set, or with the error because of which there is none."""
        try:
            if error is not None:
                raise error
            assert process_set is not None
            self._pending = operations.start(self._describe(process_set))
        except Exception as failed:
            self._error = failed

    def attach_calls(self) -> None:
        """Called once by the pair, after submit()."""
        with self._pair.lock:
            if self._watched or not self._calls:
                return
            self._watched = True
        self._watch()

    def done(self) -> bool:
        """As Pending.done()."""
        if not self._pair.open():
            return False
        return self._pending is None or self._pending.done()

    def wait_until(self, deadline: float, comes_back: bool = False) -> Optional[str]:
        """As Pending.wait_until()."""
        late = self._pair.open_until(deadline, comes_back)
        if late is not None or self._pending is None:
            return late
        return self._pending.wait_until(deadline, comes_back)

    def wait(self) -> Any:
        """As Pending.wait()."""
        self._pair.wait()
        if self._error is not None:
            raise self._error
        assert self._pending is not None
        return self._pending.wait()

    def call_when_done(self, function: Callable[[], None]) -> None:
        """As Pending.call_when_done(), but takes several functions."""
        with self._pair.lock:
            over = self._over
            if not over:
                self._calls.append(function)
                if self._watched or self._pending is None and self._error is None:
                    return
                self._watched = True
        if over:
            function()
        else:
            self._watch()

    def _watch(self) -> None:
        if self._pending is not None:
            self._pending.call_when_done(self._end)
        else:
            self._end()

    def _end(self) -> None:
        self._call()

    def _call(self) -> None:
        with self._pair.lock:
            self._over = True
            calls, self._calls = self._calls, []
        for function in calls:
            function()


class InTurn(Deferred):
    """One of several operations of one name: it is submitted only when the one before it has also ended.

    Args:
        next_one: called when this operation has ended.
    """

    def __init__(self, pair: "Pair", tensor: torch.Tensor, root: int, name: str, next_one: Callable[[], None]):
        super().__init__(pair, tensor, root, name)
        self._name = name
        self._next_one = next_one
        self._submitted = threading.Event()

    def submit(self, process_set: Optional[int], error: Optional[Exception]) -> None:
        """As Deferred.submit()."""
        self._watched = True
        super().submit(process_set, error)
        if self._pending is not None:
            self._pending.call_when_done(self._end)  # before another thread can release it
        self._submitted.set()

    def attach_calls(self) -> None:
        """As Deferred.attach_calls()."""
        if self._error is not None:
            self._end()

    def fails(self) -> bool:
        """Whether submit() has failed; if so, calls the functions that wait for the end."""
        if self._error is None:
            return False
        self._call()
        return True

    def done(self) -> bool:
        """As Pending.done()."""
        return self._submitted.is_set() and super().done()

    def wait_until(self, deadline: float, comes_back: bool = False) -> Optional[str]:
        """As Pending.wait_until()."""
        if not self._submitted.wait(max(0.0, deadline - time.monotonic())):
            return f"the operation before it with this tag, '{self._name}', has not ended"
        return super().wait_until(deadline, comes_back)

    def wait(self) -> Any:
        """As Pending.wait()."""
        self._submitted.wait()
        return super().wait()

    def _end(self) -> None:
        self._call()
        self._next_one()


class Pair:
    """Two ranks of the job, and their process set as soon as it exists."""

    def __init__(self, ranks: list[int]):
        self.lock = threading.Lock()  # of the list, and of the order of submission
        self._waiting: list[Deferred] = []
        self._process_set: Optional[int] = None
        self._error: Optional[Exception] = None
        self._request = process_sets.start_of_members(ranks)
        self._request.call_when_done(self.wait)

    def start(self, deferred: Deferred) -> bool:
        """Submits the operation now (returns True), or when the set exists."""
        with self.lock:
            there = self._there()
            if there:
                deferred.submit(self._process_set, self._error)
            else:
                self._waiting.append(deferred)
        return there

    def open(self) -> bool:
        """Whether the operations that were started have been submitted, or have failed."""
        if not self._there() and self._request.done():
            self.wait()
        return self._there()

    def open_until(self, deadline: float, comes_back: bool) -> Optional[str]:
        """Waits until `deadline` for open(); returns None, or what it still waits for."""
        if self._there():
            return None
        late = self._request.wait_until(deadline, comes_back)
        if late is None:
            self.wait()
        return late

    def wait(self) -> None:
        """Waits for the set, and submits the operations that wait for it."""
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
