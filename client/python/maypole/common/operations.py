"""Submits operations on raw memory, and waits for them; handles.

A `Pending` is one operation: prepare() describes it, start() or start_group()
submits it. It owns its input and output, which must stay alive until the
operation has ended. Frameworks give their users plain ints for them (Horovod's
handles); the table at the end of this file maps these ints.

Thread contract: any thread may submit, poll and synchronize, but only one
thread at a time per handle. A wait releases the GIL and lets signal handlers
run. If a handler raises (Ctrl-C), the wait ends; the operation continues and
its handle stays valid. (_thread.interrupt_main() sends no signal: after the
first second of a wait it takes effect only when data moves or the wait ends, as
in Python's own blocking calls.)
"""

import itertools
import math
import threading
import time
from collections.abc import Sequence
from typing import Any, Callable, Optional

from maypole import _native
from maypole.common.exceptions import HorovodInternalError, current_epoch, not_initialized, of_operation

# A native wait ends when a signal interrupts its sleep, so that Python's handlers
# run, but not if the signal came just before the sleep, or while data moved.
# Short waits bound the handlers' delay.
WAIT_SLICE_MS = 100
# After this many short waits, the wait has no time limit while nothing moves:
# the library can report a rank as certainly blocked (a deadlock) only if it
# waits without a limit.
BOUNDED_WAITS = 10
# The same while this process has other threads that may be about to use Maypole:
# the library knows only of threads that have used it.
BOUNDED_WAITS_WITH_THREADS = 100

_INTERRUPTED = "a signal interrupted the wait while it fetched the result"


class Pending:
    """One operation: not submitted yet, or submitted and not synchronized.

    arguments: those of the library's submit(); None for a request.
    native: the library's handle; None once wait() has seen the end.
    finish: called with the native handle after the operation has ended
    successfully; returns the result. Without it the result is `output`. If it
    raises an Exception, that is the operation's outcome.
    finish_releases: finish must release the native handle, if it succeeds.

    An ended operation keeps its outcome; a second wait() returns or raises it again.
    """

    __slots__ = ("arguments", "native", "input", "output", "finish",
                 "finish_releases", "error", "status", "epoch")

    def __init__(self, arguments: Optional[_native.Arguments],
                 input_owner: Any, output_owner: Any,
                 finish: Optional[Callable[[int], Any]],
                 finish_releases: bool):
        self.arguments = arguments
        self.native: Optional[int] = None
        self.status: Optional[int] = None  # at the end, if wait_until() has seen it
        self.input = input_owner
        self.output = output_owner
        self.finish = finish
        self.finish_releases = finish_releases
        self.error: Optional[Exception] = None
        self.epoch = current_epoch()

    def ended(self) -> bool:
        """Whether wait() has seen the end."""
        return self.native is None

    def done(self) -> bool:
        """Whether the operation has ended, with success or an error; also moves data."""
        if self.native is None:
            return True
        library = _native.library()
        status, done = library.poll(self.native)
        if self.native is None:  # another thread has seen the end meanwhile, and released the handle
            return True
        if status != _native.OK:
            raise of_operation(status, library.last_error(), self.epoch)
        return done

    def wait(self) -> Any:
        """Waits for the end and returns the result, or raises the error."""
        if self.native is not None:
            self._await_end(self.native)
        if self.error is not None:
            raise self.error
        return self.output

    def wait_until(self, deadline: float, comes_back: bool = False) -> Optional[str]:
        """Waits for the end until `deadline` (time.monotonic()), without taking the result.

        comes_back: the caller may do more in the job when it is late, so this wait is no part of a deadlock.

        Returns None if the operation has ended, otherwise what it waits for; the caller must then do nothing
        more in the job, unless it comes back.
        """
        native = self.native
        if native is None:
            return None
        library = _native.library()
        status = library.wait(native, WAIT_SLICE_MS)
        waits = 1
        while status in (_native.DEADLINE_EXCEEDED, _native.CANCELLED):
            left = math.ceil((deadline - time.monotonic()) * 1000)
            if left <= 0:
                return library.last_error()
            if comes_back or waits < BOUNDED_WAITS_WITH_THREADS and _other_threads():
                status = library.wait(native, min(left, WAIT_SLICE_MS))
            else:
                status = library.wait(native, _native.wait_or_give_up(left))
            waits += 1
        self.status = status
        return None

    def call_when_done(self, function: Callable[[], None]) -> None:
        """Makes the library's completion thread call `function` when the operation has ended; at once if it has."""
        native = self.native
        if native is not None:
            try:
                _native.library().call_when_done(native, function)
                return
            except _native.StatusError:
                if self.native is not None:
                    raise
                # Another thread has seen the end meanwhile, and released the handle.
        function()

    def _await_end(self, native: int) -> None:
        # An error is fetched from the library once more, for its text.
        status = self.status if self.status == _native.OK else await_end(native)
        if status != _native.OK:
            self._end(native, None, of_operation(status, _native.library().last_error(), self.epoch))
        elif self.finish is None:
            self._end(native, self.output, None)
        else:
            self._finish(self.finish, native)

    def _finish(self, finish: Callable[[int], Any], native: int) -> None:
        """Ends the operation with what `finish` returns or raises.

        If a signal handler raises (Ctrl-C) while `finish` copies the result,
        the operation has not ended: another wait() calls `finish` again. A
        `finish` that releases the handle is not called twice; the outcome is
        then an error.
        """
        if self.finish_releases:
            self.native, self.error = None, HorovodInternalError(_INTERRUPTED)
        try:
            output = finish(native)
        except Exception as error:
            self._end(native, None, error)
        except BaseException:
            if self.finish_releases:
                self._end(native, None, self.error)
            raise
        else:
            self._end(native, output, None, release=not self.finish_releases)

    def _end(self, native: int, output: Any, error: Optional[Exception],
             release: bool = True) -> None:
        self.native = None
        self.output, self.error = output, error
        self.input = self.finish = None
        _submitted.discard(self)
        if release:
            # A second release after that of a failed `finish` does no harm.
            _native.library().release(native)


def await_end(native: int) -> int:
    """Waits until the operation of this native handle has ended, without taking its result; returns its status."""
    library = _native.library()
    status = library.wait(native, WAIT_SLICE_MS)
    waits = 1
    while status in (_native.DEADLINE_EXCEEDED, _native.CANCELLED):
        bounded = waits < BOUNDED_WAITS or waits < BOUNDED_WAITS_WITH_THREADS and _other_threads()
        status = library.wait(native, WAIT_SLICE_MS if bounded else _native.WAIT_INTERRUPTIBLE)
        waits += 1
    return status


def _other_threads() -> bool:
    """Whether the program has started other threads than this one, which may be about to use Maypole."""
    this = threading.current_thread()
    return any(thread is not this and not thread.name.startswith("maypole-") and
               not isinstance(thread, threading._DummyThread) for thread in threading.enumerate())


class PendingGroup:
    """Several operations with one handle; the result is the list of their results."""

    __slots__ = ("members",)

    def __init__(self, members: list[Any]):
        self.members = members

    def ended(self) -> bool:
        """Whether wait() has seen the end of all members."""
        return all(member.ended() for member in self.members)

    def done(self) -> bool:
        """Whether all members have ended; also moves data."""
        return all(member.done() for member in self.members)

    def wait(self) -> list[Any]:
        """Waits for all members, then raises the first error, if any."""
        results, error = wait_all(self.members)
        if error is not None:
            raise error
        return results


def wait_all(members: Sequence[Any]) -> tuple[list[Any], Optional[Exception]]:
    """Waits for all members; returns (results, first error or None).

    The result of a failed member is None.
    """
    results: list[Any] = []
    first_error: Optional[Exception] = None
    for member in members:
        result = None
        try:
            result = member.wait()
        except Exception as error:
            if not member.ended():
                raise  # by a signal handler: not the operation's outcome
            first_error = first_error or error
        results.append(result)
    return results, first_error


def prepare(kind: int,
            dtype: int,
            op: int,
            root: int,
            shape: Sequence[int],
            prescale: float,
            postscale: float,
            name: Optional[str],
            input_address: int,
            output_address: int,
            input_owner: Any = None,
            output_owner: Any = None,
            finish: Optional[Callable[[int], Any]] = None,
            finish_releases: bool = False,
            awaited: bool = False,
            process_set: int = 0,
            splits: Optional[Sequence[int]] = None,
            stream: Optional[int] = None) -> Pending:
    """Describes an operation, for start().

    The owners keep the memory alive. awaited: the caller waits for the
    operation at once, so no other thread has to be woken. stream: None for host
    memory; for memory of a CUDA device the stream in whose order the input is
    read (0: the legacy default stream), and `finish` must then call the
    library's copy_result().
    """
    return Pending((kind, dtype, op, root, shape, prescale, postscale, name,
                    input_address, output_address, awaited, process_set,
                    splits, stream), input_owner, output_owner, finish,
                   finish_releases)


def submit(*args: Any, **kwargs: Any) -> Pending:
    """start(prepare(...))."""
    return start(prepare(*args, **kwargs))


def start(pending: Pending) -> Pending:
    """Submits a prepared operation and returns it.

    Raises ValueError (wrong arguments; a pending operation has this name; not
    initialized), NotImplementedError, HorovodInternalError.
    """
    assert pending.arguments is not None  # requests are not submitted in this way
    library = _native.library()
    _submitted.add(pending)
    try:
        pending.native = library.submit(*pending.arguments)
    except _native.StatusError as error:
        raise _refused([pending], error) from None
    return pending


def run(pending: Pending) -> Any:
    """Submits a prepared operation and waits for its result."""
    return start(pending).wait()


def request(native_submit: Callable[[Any], int]) -> int:
    """Makes a request with native_submit(library) and waits for its answer.

    native_submit returns a native handle; the answer is the first dimension of
    its result. Raises the same errors as start() and wait().
    """
    return start_request(native_submit).wait()


def start_request(native_submit: Callable[[Any], int]) -> Pending:
    """As request(), but does not wait: the result of the Pending is the answer."""
    library = _native.library()
    pending = Pending(None, None, None,
                      lambda native: library.result(native)[2], False)
    try:
        pending.native = native_submit(library)
    except _native.StatusError as error:
        raise _refused([pending], error) from None
    return pending


def start_group(members: Sequence[Pending]) -> "PendingGroup":
    """Submits all prepared operations or, if one is refused, none of them.

    Raises the same errors as start(); the text names the refused operation.
    """
    if members:
        library = _native.library()
        _submitted.update(members)
        try:
            natives = library.submit_group(
                [member.arguments for member in members])
        except _native.StatusError as error:
            raise _refused(members, error) from None
        for member, native in zip(members, natives):
            member.native = native
    return PendingGroup(list(members))


def _refused(members: Sequence[Pending],
             error: _native.StatusError) -> Exception:
    _submitted.difference_update(members)
    if not _native.library().is_initialized():
        return ValueError(not_initialized())
    # Leaves out the empty name of an unnamed operation.
    return of_operation(error.code, str(error).replace(" ''", "", 1), current_epoch())


# Submitted operations whose end no wait() has seen. The set keeps their memory
# alive, because the submitting code may be interrupted at any moment: a signal
# handler may raise (Ctrl-C, sys.exit) even between the library's submit and our
# return.
_submitted: set[Pending] = set()

_handles: dict[int, Any] = {}
_next_handle = itertools.count()


def add(pending: Any) -> int:
    """Gives `pending` a handle; the table owns it until synchronize()."""
    handle = next(_next_handle)
    _handles[handle] = pending
    return handle


def poll(handle: int) -> bool:
    """Whether the operation of `handle` has ended; never blocks.

    Args:
        handle: what a function with `_async` in its name has returned.

    Raises:
        ValueError: for a handle that is unknown or was synchronized.
    """
    pending = _handles.get(handle)
    if pending is None:
        raise ValueError(f"handle {handle!r} is unknown: no operation returned "
                         "it, or it has been synchronized already")
    return pending.done()


def synchronize(handle: int) -> Any:
    """Waits until the operation of `handle` has ended; returns its result.

    Afterwards the handle is invalid, even after an error. Signals (Ctrl-C) interrupt the wait within 0.2 s; then the
    handle stays valid.

    Args:
        handle: what a function with `_async` in its name has returned.

    Returns:
        The operation's result; None for an unknown handle.

    Raises:
        HorovodInternalError: the operation failed: ranks disagreed on it, or a rank was lost.
    """
    pending = _handles.get(handle)
    if pending is None:
        return None
    try:
        return pending.wait()
    finally:
        if pending.ended():
            _handles.pop(handle, None)
