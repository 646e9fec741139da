"""The end of operations of a process group: torch.distributed's Work.

A Work has one or several of Maypole's operations, and what is to be done with their results. Whoever needs the end
first does that: a thread in wait(), or, for who has asked for the future, Maypole's completion thread.
"""

import datetime
import threading
import time
from collections.abc import Sequence
from typing import Any, Callable, Optional

import torch
import torch.distributed as dist

from maypole.common.exceptions import HorovodInternalError

# What copies the results (in the order of the operations) to the caller's tensors.
Finish = Callable[[list[Any]], None]


class _Future(torch.futures.Future):
    """The future of a Work, which whoever waits for it completes, if nobody has yet.

    The completion thread calls the callbacks of futures. A callback that waits for the future of another operation, as
    DDP's PowerSGD hook has them, keeps the completion thread from completing that one.
    """

    def __init__(self, work: "Work", devices: list[torch.device]):
        super().__init__(devices=devices)
        self._work: Optional[Work] = work  # None when completed: no cycle keeps the tensors alive

    def wait(self) -> Any:
        """As torch.futures.Future's; raises DistBackendError after the operation's timeout."""
        work = self._work
        if work is not None:
            work.wait()
            work._complete()
        return super().wait()

    def complete(self, tensors: list[torch.Tensor], error: Optional[Exception]) -> None:
        """Called once."""
        self._work = None
        if error is not None:
            self.set_exception(error)
        else:
            self.set_result(tensors)


class Work(dist._Work):
    """Operations that run, and whose results go to `tensors` when they have ended.

    Args:
        what: how errors name it: "all_reduce number 5 of group 'default'".
        pendings: the operations (common.operations.Pending, _point_to_point.Deferred).
        tensors: the value of the future.
        finish: see Finish; None: the operations write to `tensors` themselves.
        timeout: how long wait() waits if its caller does not say.

    Thread contract: any thread.
    """

    def __init__(self, what: str, pendings: Sequence[Any], tensors: list[torch.Tensor],
                 finish: Optional[Finish], timeout: datetime.timedelta):
        super().__init__()
        self._what = what
        self._pendings = list(pendings)
        self._tensors = tensors
        self._finish = finish
        self._timeout = timeout
        self._lock = threading.RLock()
        self._ended = False
        self._error: Optional[Exception] = None
        self._future: Optional[_Future] = None
        self._completed = False

    @classmethod
    def together(cls, what: str, works: Sequence["Work"], timeout: datetime.timedelta) -> "Work":
        """One Work for several, which ends when all have."""

        def finish(results: list[Any]) -> None:
            for work in works:
                work._end()
                if work._error is not None:
                    raise work._error

        pendings = [pending for work in works for pending in work._pendings]
        return cls(what, pendings, [t for work in works for t in work._tensors], finish, timeout)

    def wait(self, timeout: Optional[datetime.timedelta] = None) -> bool:
        """Waits for the end; raises DistBackendError if the operation failed or has not ended in time."""
        limit = timeout or self._timeout
        deadline = time.monotonic() + limit.total_seconds()
        for pending in list(self._pendings):
            late = pending.wait_until(deadline)
            if late is not None:
                raise dist.DistBackendError(f"{self._what} has not ended in {limit.total_seconds():g} s: {late}")
        self._end()
        if self._error is not None:
            raise self._error
        return True

    def synchronize(self) -> None:
        """As wait()."""
        self.wait()

    def is_completed(self) -> bool:
        """Whether wait() would return at once; the results are there then."""
        if not self._ended and all(pending.done() for pending in list(self._pendings)):
            self._end()
        return self._ended

    def is_success(self) -> bool:
        """Whether it has ended without an error."""
        return self.is_completed() and self._error is None

    def exception(self) -> Optional[Exception]:
        """The error with which it has ended; None otherwise."""
        return self._error if self.is_completed() else None

    def result(self) -> list[torch.Tensor]:
        """The tensors that got the results."""
        self.wait()
        return self._tensors

    def get_future(self) -> torch.futures.Future:
        """A future of the tensors, which Maypole's completion thread completes."""
        with self._lock:
            if self._future is not None:
                return self._future
            devices = sorted({t.device for t in self._tensors if t.device.type == "cuda"}, key=str)
            self._future = _Future(self, devices)
        missing = len(self._pendings)
        if missing == 0:
            self._complete()
        for pending in list(self._pendings):

            def done() -> None:
                nonlocal missing
                with self._lock:
                    missing -= 1
                    last = missing == 0
                if last:
                    self._complete()

            pending.call_when_done(done)
        return self._future

    def _complete(self) -> None:
        self._end()
        assert self._future is not None
        with self._lock:
            first, self._completed = not self._completed, True
        if first:
            self._future.complete(self._tensors, self._error)

    def _end(self) -> None:
        """Takes the results of the operations, which have ended."""
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
            except HorovodInternalError as error:
                self._error = dist.DistBackendError(f"{self._what}: {error}")
            except Exception as error:
                self._error = error
            self._pendings, self._finish = [], None
            self._ended = True
