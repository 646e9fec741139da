"""Futures of a process group's operations: in which order they are completed, and what their callbacks call.

Operations end in another order on each rank, but the callbacks of their futures may call operations, as DDP's
PowerSGD hook does, and all ranks must call these in one order. So

* the futures of a group's collective operations are completed in the order in which the program has asked for them, as
  on a stream of NCCL, by the thread that finds the first one's operations ended (mostly Maypole's completion thread);
* what callbacks call is matched apart from what the program's threads call: it has a level of its own, level() 1; what
  is called by the callbacks of these operations has level 2, and so on.

wait() waits for the operation only, so neither a callback nor the program can wait for its own turn.
"""

import collections
import contextlib
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Callable, Optional

import torch

from maypole.torch._compiling import not_compiled

if TYPE_CHECKING:
    from maypole.torch.distributed._work import Work

_thread = threading.local()


def level() -> int:
    """How many callbacks of futures this thread is in; 0: it runs the program."""
    return getattr(_thread, "level", 0)


@contextlib.contextmanager
def _calling_back(from_level: int) -> Iterator[None]:
    before, _thread.level = level(), from_level + 1
    try:
        yield
    finally:
        _thread.level = before


class Order:
    """The futures of one group and level that are not completed yet.

    Thread contract: any thread; one at a time completes futures.
    """

    def __init__(self, at_level: int = 0):
        self.level = at_level
        self._lock = threading.Lock()
        self._waiting: collections.deque[Future] = collections.deque()
        self._thread: Optional[int] = None  # that completes one now

    def add(self, future: "Future") -> None:
        """Makes `future` the last one."""
        with self._lock:
            self._waiting.append(future)

    def advance(self) -> None:
        """Completes the first futures whose operations have ended, unless another thread does so."""
        this = threading.get_ident()
        while True:
            with self._lock:
                if self._thread not in (None, this) or not self._waiting or not self._waiting[0].ended:
                    return
                future, before = self._waiting.popleft(), self._thread
                self._thread = this
            try:
                future.complete()
            finally:
                with self._lock:
                    self._thread = before


class _Failure:
    """The value of a future that has failed, for C++, which knows no exceptions of Python as values.

    DDP's reducer takes the tensors out of a value by pickling it, or, if the future is a hook's, converts it. Both fail
    with a text, which has that of the exception. The first pickling is that of set_result(), if the future has devices.
    """

    def __init__(self, error: Exception, has_devices: bool):
        self.error = error
        self._lenient = has_devices

    def __str__(self) -> str:
        return f"{type(self.error).__name__}: {self.error}"

    def __reduce_ex__(self, protocol: Any) -> Any:
        if self._lenient:
            self._lenient = False
            return str, ()
        raise self.error


def _unwrap(value: Any) -> None:
    if isinstance(value, _Failure):
        raise value.error


class Future(torch.futures.Future):
    """The future of a Work, or one that then() of another has returned.

    Args:
        devices: the CUDA devices of its tensors.
        order: completes it, and gives its callbacks their level; None: it is completed when its operations have ended.
        work: None: then()'s.
        tensors: the value of a Work's.

    Attributes:
        ended: whether the operations have ended.
    """

    def __init__(self, devices: list[torch.device], order: Optional[Order], work: Optional["Work"] = None,
                 tensors: Optional[list[torch.Tensor]] = None):
        super().__init__(devices=devices)
        self._devices = devices
        self._order = order
        self._work = work  # None when completed: no cycle keeps the tensors alive
        self._tensors = tensors
        self._lock = threading.Lock()
        self.ended = False
        if order is not None and work is not None:
            order.add(self)

    def end(self) -> None:
        """The operations have ended: completes it, or leaves that to its turn."""
        self.ended = True
        if self._order is None:
            self.complete()
        else:
            self._order.advance()

    def complete(self) -> None:
        """Sets the result, once, when all operations have ended."""
        with self._lock:
            work, self._work = self._work, None
        if work is None:
            return
        error = work.outcome()
        tensors, self._tensors = self._tensors, None
        if error is not None:
            self._fail(error)
        else:
            self.set_result(tensors)
        work.forget_tensors()

    def _fail(self, error: Exception) -> None:
        self._set_unwrap_func(_unwrap)
        self.set_result(_Failure(error, bool(self._devices)))

    def _has_value(self) -> bool:
        """Whether a wait has seen the end of the operations before this future had its turn."""
        work = self._work
        return work is not None and work.awaited

    @not_compiled
    def wait(self) -> Any:
        """As torch.futures.Future's; raises DistBackendError after the operation's timeout."""
        work, tensors = self._work, self._tensors
        if work is None:
            return super().wait()
        work.wait()
        return tensors

    @not_compiled
    def done(self) -> bool:
        """As torch.futures.Future's."""
        return super().done() or self._has_value()

    @not_compiled
    def value(self) -> Any:
        """As torch.futures.Future's."""
        return self.wait() if self._has_value() else super().value()

    @not_compiled
    def then(self, callback: Callable[[Any], Any]) -> Any:
        """As torch.futures.Future's; the future that it returns gives its own callbacks the same level."""
        if self._order is None:
            return super().then(callback)
        following = Future(self._devices, self._order)

        def run(future: Any) -> None:
            try:
                following.set_result(callback(future))
            except Exception as error:
                following._fail(error)

        self.add_done_callback(run)
        return following

    @not_compiled
    def add_done_callback(self, callback: Callable[[Any], Any]) -> None:
        """As torch.futures.Future's."""
        order = self._order
        if order is None:
            super().add_done_callback(callback)
            return

        def run(_: Any) -> None:
            with _calling_back(order.level):
                callback(self)

        super().add_done_callback(run)
