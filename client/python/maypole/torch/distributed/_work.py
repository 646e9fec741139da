"""torch.distributed's Work: handles the end of a process group's operations.

A Work has one or several of Maypole's operations, and a function that stores their results. The first thread that needs
the end runs it: a thread in wait(), or, if the future was requested, Maypole's completion thread. Results of CUDA
tensors are written in the order of that thread's current streams; wait() makes the streams of its caller wait for them.

C++ that gets a Work from Python (DDP's join, and before torch 2.15 whatever calls a method of a group) holds only the
C++ part. Without the Python part there is no wait() of ours, and C++'s own never returns. So a Work that Python drops
before anything has waited for its end is kept, among the last _KEPT of these. C++ asks for no large results of them.
"""

import collections
import contextlib
import datetime
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any, Callable, Optional

import torch
import torch.distributed as dist

from maypole.common.exceptions import HorovodInternalError
from maypole.common.operations import Pending
from maypole.torch._compiling import not_compiled, skip_code
from maypole.torch.distributed._futures import Future, Order
from maypole.torch.distributed._point_to_point import Matched

_NOTHING: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()
# Copies the results (in the order of the operations) to the caller's tensors.
Finish = Callable[[list[Any]], None]
# Called when an operation has failed with an error, or is late (None); returns what to append to the error's text.
Failed = Callable[[Optional[HorovodInternalError]], str]


_KEPT = 1000
_MOST_KEPT_BYTES = 65536
_dropped: "collections.deque[Work]" = collections.deque(maxlen=_KEPT)
# Whether C++ that calls a method of a group may ask a Work for its future after Python has dropped it.
_ASKED_LATER = tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 15)


class Postponed:
    """One operation of a call whose names an earlier call has, which has not ended; callers wait for it as a Pending.

    Args:
        pending: the operation, which is submitted at the end of the earlier call.
        start: its call's start.
    """

    def __init__(self, pending: Pending, start: "PostponedStart"):
        self._pending = pending
        self._start = start

    def done(self) -> bool:
        """As Pending.done()."""
        return self._start.over() and (self._start.error is not None or self._pending.done())

    def wait_until(self, deadline: float, comes_back: bool = False) -> Optional[str]:
        """As Pending.wait_until()."""
        late = self._start.wait_until(deadline, comes_back)
        if late is not None or self._start.error is not None:
            return late
        return self._pending.wait_until(deadline, comes_back)

    def wait(self) -> Any:
        """As Pending.wait()."""
        self._start.await_over()
        if self._start.error is not None:
            raise self._start.error
        return self._pending.wait()

    def call_when_done(self, function: Callable[[], None]) -> None:
        """As Pending.call_when_done()."""

        def started() -> None:
            if self._start.error is not None:
                function()
            else:
                self._pending.call_when_done(function)

        self._start.then(started)


class PostponedStart:
    """Submits the operations of a call at the end of an earlier one.

    Args:
        earlier: the earlier call's Work.
        submit: submits all operations.
    """

    def __init__(self, earlier: "Work", submit: Callable[[], None]):
        self.error: Optional[Exception] = None
        self._earlier: Optional[Work] = earlier  # None when it has ended
        self._submit: Optional[Callable[[], None]] = submit
        self._lock = threading.Lock()
        self._event = threading.Event()
        self._calls: list[Callable[[], None]] = []
        earlier.call_when_done(self._run)

    def _run(self) -> None:
        with self._lock:
            submit, self._submit, self._earlier = self._submit, None, None
        if submit is None:
            return
        try:
            submit()
        except Exception as error:
            self.error = error
        with self._lock:
            self._event.set()
            calls, self._calls = self._calls, []
        for function in calls:
            function()

    def over(self) -> bool:
        """Whether the operations have been submitted, or could not be."""
        earlier = self._earlier
        if earlier is not None and earlier.done():
            self._run()
        return self._event.is_set()

    def await_over(self) -> None:
        """Waits for over(), after wait_until() or in the completion thread."""
        self._event.wait()

    def wait_until(self, deadline: float, comes_back: bool) -> Optional[str]:
        """Waits for over(); returns what it still waits for at `deadline`."""
        earlier = self._earlier
        late = None if earlier is None else earlier.wait_until(deadline, comes_back)
        if late is None:
            self._run()  # not the completion thread, which may be in a callback that waits for this
            self.await_over()
        return late

    def then(self, function: Callable[[], None]) -> None:
        """Calls the function when the operations have been submitted, or could not be."""
        with self._lock:
            if not self._event.is_set():
                self._calls.append(function)
                return
        function()


class Work(dist._Work):
    """Operations under way, whose results go to `tensors` when they have ended.

    Args:
        what: names the call in errors, by str(): "all_reduce, call 5 of group 'world'".
        pendings: the operations (common.operations.Pending, Postponed, _point_to_point.Deferred or Matched, Work).
        tensors: the value of the future.
        finish: see Finish; None: the operations write to `tensors` themselves.
        timeout: how long wait() waits by default.
        failed: see Failed.
        order: of its future; None: that is completed at the end.

    Attributes:
        awaited: whether a wait has seen the end, or the future has been completed.
        note_late: called with True when a wait is late, with False when a later one has seen the end.

    Thread contract: any thread.
    """

    _keeps_tensors = True
    awaited = False
    note_late: Optional[Callable[[bool], None]] = None
    _ended = False
    _error: Optional[Exception] = None
    _future: Optional[Future] = None
    _received: Optional[Matched] = None
    # For each CUDA device: the stream on which results were written, and the event after them.
    _written: Sequence[tuple[torch.cuda.Stream, torch.cuda.Event]] = ()

    def __init__(self, what: object, pendings: list[Any], tensors: list[torch.Tensor],
                 finish: Optional[Finish], timeout: datetime.timedelta, failed: Failed = lambda error: "",
                 order: Optional[Order] = None):
        super().__init__()
        self._what = what
        self._failed = failed
        self._pendings = pendings  # replaced at the end, never changed
        self._tensors = tensors
        self._finish = finish
        self._timeout = timeout
        self._order = order
        self._lock = threading.RLock()
        self._calls: Optional[list[Callable[[], None]]] = None  # None: the operations have no function yet
        self._over = False  # they have called it

    @classmethod
    def together(cls, what: str, works: Sequence["Work"], timeout: datetime.timedelta) -> "Work":
        """Returns one Work for several, which ends when all of them have."""
        return cls(what, list(works), [t for work in works for t in work._tensors], None, timeout)

    def __del__(self) -> None:
        """Keeps a Work that C++ may hold; large tensors only until a wait or a future has seen the end."""
        if self.awaited or sys.is_finalizing():
            return
        self._keeps_tensors = sum(t.numel() * t.element_size() for t in self._tensors) <= _MOST_KEPT_BYTES
        _dropped.append(self)
        self._order = None  # C++ has no callbacks of the program
        if not _ASKED_LATER:
            self.get_future()

    @not_compiled
    def wait(self, timeout: Optional[datetime.timedelta] = None) -> bool:
        """Waits for the end; raises DistBackendError if the operation failed or has not ended in time."""
        limit = timeout or self._timeout
        late = self.wait_until(time.monotonic() + limit.total_seconds(), comes_back=timeout is not None)
        if late is not None:
            if self.note_late is not None:
                self.note_late(True)
            raise dist.DistBackendError(f"{self._what} has not ended in {limit.total_seconds():g} s: {late}"
                                        f"{self._failed(None)}")
        if self.note_late is not None:
            self.note_late(False)
        self.awaited = True
        self._end()
        self.forget_tensors()
        if self._error is not None:
            raise self._error
        self._bring_results()
        return True

    def wait_until(self, deadline: float, comes_back: bool = False) -> Optional[str]:
        """Waits for the end until `deadline` (time.monotonic()); returns None, or what it still waits for.

        comes_back: as in Pending.wait_until().
        """
        for pending in self._pendings:
            late: Optional[str] = pending.wait_until(deadline, comes_back)
            if late is not None:
                return late
        return None

    def synchronize(self) -> None:
        """As wait()."""
        self.wait()

    @not_compiled
    def is_completed(self) -> bool:
        """Whether wait() would return at once; if so, the results have been stored."""
        if not self._ended and all(pending.done() for pending in self._pendings):
            if self.note_late is not None:
                self.note_late(False)
            self._end()
        return self._ended

    done = is_completed  # as Pending's

    def is_success(self) -> bool:
        """Whether it has ended without an error."""
        return self.is_completed() and self._error is None

    def exception(self) -> Optional[Exception]:
        """The error with which it has ended; None if there is none, or it has not ended."""
        return self._error if self.is_completed() else None

    def result(self) -> list[torch.Tensor]:
        """The tensors that got the results."""
        self.wait()
        return self._tensors

    def source_rank(self) -> int:
        """The rank in the group from which a recv() from any rank has received."""
        if self._received is None or self._received.source is None:
            raise RuntimeError(f"{self._what}: a source rank is of a recv() from any rank that has ended")
        return self._received.source

    _source_rank = source_rank  # torch's functions call this

    @not_compiled
    def get_future(self) -> torch.futures.Future:
        """A future of the tensors (_futures.py); if a wait has seen the end, it is completed."""
        with self._lock:
            future = self._future
            if future is not None:
                if self.awaited and self._order is None:
                    future.complete()
                return future
            order = None if self.awaited else self._order
            self._future = future = Future(self._devices(), order, self, self._tensors)
        self.call_when_done(future.end)
        return future

    def call_when_done(self, function: Callable[[], None]) -> None:
        """Makes the completion thread call `function` when the operations have ended; calls it at once if they have."""
        with self._lock:
            pendings = self._pendings if not self._over else ()
            first = self._calls is None
            if pendings:
                self._calls = [*(self._calls or ()), function]
        if not pendings:
            function()
        elif first:
            missing = len(pendings)

            def done() -> None:
                nonlocal missing
                with self._lock:
                    missing -= 1
                    if missing:
                        return
                    self._over = True
                    calls = self._calls or ()
                for each in calls:
                    each()

            for pending in pendings:
                pending.call_when_done(done)

    def outcome(self) -> Optional[Exception]:
        """For the future, when the operations have ended: stores the results; returns the error, if there is one."""
        self.awaited = True
        self._end()
        return self._error

    def _end(self) -> None:
        """Stores the results of the operations, which must have ended."""
        with self._lock:
            if self._ended:
                return
            results = []
            context = _NOTHING if self._finish is None else torch.no_grad()
            # Only there may results be stored in tensors that were made in inference mode.
            if any(t.is_inference() for t in self._tensors):
                context = torch.inference_mode()
            try:
                with context:
                    for pending in self._pendings:
                        results.append(pending.wait())
                    if self._finish is not None:
                        self._finish(results)
                self._note_streams()
            except HorovodInternalError as error:
                self._error = dist.DistBackendError(f"{self._what}: {error}{self._failed(error)}")
            except Exception as error:
                self._error = error
            for pending in self._pendings:
                if isinstance(pending, Matched):
                    self._received = pending
            self._pendings, self._finish = [], None
            self._ended = True

    def _note_streams(self) -> None:
        """Records that results have been written on the current streams."""
        for tensor in self._tensors:
            if tensor.is_cuda:
                break
        else:
            return
        written = []
        for device in self._devices():
            stream = torch.cuda.current_stream(device)
            for tensor in self._tensors:
                # No effect if the tensor was allocated on this stream; the parts of a sparse tensor are new.
                if tensor.device == device and tensor.layout == torch.strided:
                    tensor.record_stream(stream)
            written.append((stream, stream.record_event()))
        self._written = written

    def _bring_results(self) -> None:
        """Makes the current streams wait for results that were written on others."""
        for stream, event in self._written:
            current = torch.cuda.current_stream(stream.device)
            if current != stream:
                current.wait_event(event)

    def _devices(self) -> list[torch.device]:
        """The CUDA devices of the tensors."""
        return sorted({t.device for t in self._tensors if t.is_cuda}, key=str)

    def forget_tensors(self) -> None:
        """For a Work that is kept: drops large tensors."""
        if not self._keeps_tensors:
            self._tensors, self._future = [], None


skip_code(Work.__del__)  # not not_compiled(), because each call makes a Work
