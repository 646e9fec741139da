"""torch.distributed's Work: handles the end of a process group's operations.

A Work has one or several of Maypole's operations, and a function that stores their results. The first thread that needs
the end runs it: a thread in wait(), or, if the future was requested, Maypole's completion thread. Results of CUDA
tensors are written in the order of that thread's current streams; wait() makes the streams of its caller wait for them.
"""

import datetime
import threading
import time
from collections.abc import Sequence
from typing import Any, Callable, Optional

import torch
import torch.distributed as dist

from maypole.common.exceptions import HorovodInternalError
from maypole.torch._compiling import not_compiled
from maypole.torch.distributed._point_to_point import Matched

# Copies the results (in the order of the operations) to the caller's tensors.
Finish = Callable[[list[Any]], None]
# Called when an operation has failed with an error, or is late (None); returns what to append to the error's text.
Failed = Callable[[Optional[HorovodInternalError]], str]


class _Future(torch.futures.Future):
    """The future of a Work; a thread that waits for it completes it, unless that was done before.

    The completion thread calls the callbacks of futures. So while a callback waits for the future of another
    operation, as in DDP's PowerSGD hook, the completion thread cannot complete that future.
    """

    def __init__(self, work: "Work", tensors: list[torch.Tensor], devices: list[torch.device]):
        super().__init__(devices=devices)
        self._work: Optional[Work] = work  # None when completed: no cycle keeps the tensors alive
        self._tensors = tensors

    @not_compiled
    def wait(self) -> Any:
        """As torch.futures.Future's; raises DistBackendError after the operation's timeout."""
        work = self._work
        if work is not None:
            work.wait()
            self.complete()
        return super().wait()

    def complete(self) -> None:
        """Sets the result, once, when all operations have ended."""
        work = self._work
        if work is None:
            return
        work._end()
        with work._lock:
            if self._work is None:
                return  # another thread has
            self._work = None
        tensors, self._tensors = self._tensors, []
        if work._error is not None:
            self.set_exception(work._error)
        else:
            self.set_result(tensors)
        work._forget_tensors()


class Work(dist._Work):
    """Operations under way, whose results go to `tensors` when they have ended.

    Args:
        what: names the call in errors, by str(): "all_reduce, call 5 of group 'world'".
        pendings: the operations (common.operations.Pending, _point_to_point.Deferred or Matched).
        tensors: the value of the future.
        finish: see Finish; None: the operations write to `tensors` themselves.
        timeout: how long wait() waits by default.
        failed: see Failed.

    Thread contract: any thread.
    """

    _keeps_tensors = True
    _ended = False
    _error: Optional[Exception] = None
    _future: Optional[_Future] = None
    _received: Optional[Matched] = None
    # For each CUDA device: the stream on which results were written, and the event after them.
    _written: Sequence[tuple[torch.cuda.Stream, torch.cuda.Event]] = ()

    def __init__(self, what: object, pendings: list[Any], tensors: list[torch.Tensor],
                 finish: Optional[Finish], timeout: datetime.timedelta, failed: Failed = lambda error: ""):
        super().__init__()
        self._what = what
        self._failed = failed
        self._pendings = pendings  # replaced at the end, never changed
        self._tensors = tensors
        self._finish = finish
        self._timeout = timeout
        self._lock = threading.RLock()

    @classmethod
    def together(cls, what: str, works: Sequence["Work"], timeout: datetime.timedelta) -> "Work":
        """Returns one Work for several, which ends when all of them have."""

        def finish(results: list[Any]) -> None:
            for work in works:
                work._end()
                if work._error is not None:
                    raise work._error
                work._bring_results()

        pendings = [pending for work in works for pending in work._pendings]
        return cls(what, pendings, [t for work in works for t in work._tensors], finish, timeout)

    def outlive_python(self) -> None:
        """For a Work that only C++ uses and the group keeps: drops the tensors once a wait has seen the end."""
        self._keeps_tensors = False

    @not_compiled
    def wait(self, timeout: Optional[datetime.timedelta] = None) -> bool:
        """Waits for the end; raises DistBackendError if the operation failed or has not ended in time."""
        limit = timeout or self._timeout
        deadline = time.monotonic() + limit.total_seconds()
        for pending in self._pendings:
            late = pending.wait_until(deadline)
            if late is not None:
                raise dist.DistBackendError(f"{self._what} has not ended in {limit.total_seconds():g} s: {late}"
                                            f"{self._failed(None)}")
        self._end()
        self._forget_tensors()
        if self._error is not None:
            raise self._error
        self._bring_results()
        return True

    def synchronize(self) -> None:
        """As wait()."""
        self.wait()

    @not_compiled
    def is_completed(self) -> bool:
        """Whether wait() would return at once; if so, the results have been stored."""
        if not self._ended and all(pending.done() for pending in self._pendings):
            self._end()
        return self._ended

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
        """A future of the tensors, which Maypole's completion thread completes."""
        with self._lock:
            if self._future is not None:
                return self._future
            self._future = future = _Future(self, self._tensors, self._devices())
        pendings = self._pendings
        missing = len(pendings)
        if missing == 0:
            future.complete()
        for pending in pendings:

            def done() -> None:
                nonlocal missing
                with self._lock:
                    missing -= 1
                    last = missing == 0
                if last:
                    future.complete()

            pending.call_when_done(done)
        return future

    def _end(self) -> None:
        """Stores the results of the operations, which must have ended."""
        with self._lock:
            if self._ended:
                return
            results = []
            try:
                for pending in self._pendings:
                    results.append(pending.wait())
                if self._finish is not None:
                    with torch.no_grad():
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

    def _forget_tensors(self) -> None:
        if not self._keeps_tensors:
            self._tensors, self._future = [], None
