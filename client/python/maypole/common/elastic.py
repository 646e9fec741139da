"""Elastic training: ranks come and go between epochs, and the others continue.

    @run                                  # of the framework's elastic module
    def train(state):
        while state.batch < 1000:
            ...                           # a step
            state.batch += 1
            state.commit()

    train(ObjectState(broadcast_object, basics.rank, batch=0))

This module depends on no framework. docs/elastic.md has the user's view.

A **commit** saves the state in memory, and is the point at which the job may
change: if any rank wants to enter or leave, all ranks interrupt their training
at the same commit. They agree on this by one small allreduce, because they
learn of the wish at different times. It comes after the save, so that a rank
that goes on from a commit knows that all ranks have saved it.

    event                      what run() does on each rank
    a rank died                restore the last commit; next epoch; sync; func
    a change is wanted         next epoch; sync; func
    this rank got SIGTERM      the same on the others; this one leaves for good
                               at that commit and exits with status 143, as if
                               the signal had ended it: it has not finished
    a process comes in a       run() gives it the results and states of earlier
    later training             ones (trainings.py)
    func returns               says so to the coordinator, which lets nobody
                               begin the training again; returns its result;
                               the next SIGTERM is ignored. If an operation
                               of this rank has met the end of the epoch, and
                               the program has caught that error, it has not
                               trained to the end: the same as a rank's death

sync() gives every rank the state of rank 0. It always runs after a change of
epoch, because a rank does not know whether others need it. Ranks that got the
state in the last epoch come first in the next one; a rank whose sync() has
failed keeps the seniority it had before. So rank 0 has the latest state of all.

Thread contract: one thread trains, normally the main thread; SIGTERM is handled
only there.
"""

import atexit
import contextlib
import copy
import ctypes
import functools
import logging
import os
import pickle
import signal
import sys
import threading
import time
import zlib
from collections.abc import Iterable, Iterator
from typing import Any, Callable, Optional

from maypole import _native
from maypole.common import basics, objects, operations
from maypole.common.constants import Max
from maypole.common.exceptions import HorovodInternalError, HostsUpdatedInterrupt, forked, raise_end_of_epoch
from maypole.common.trainings import Trainings, name_of

_log = logging.getLogger("maypole.elastic")

# The start of an epoch can fail because another process ends, or an executor is
# being replaced. After this many failures in a row the error of init() is
# raised.
_MAX_FAILED_STARTS = 3
_PAUSE_SECONDS = 1.0

_CHECK = "maypole.elastic.check"
_NUMBERS = "maypole.elastic.numbers"

# In the ranks' check at a commit: 0 no wish, 1 a rank wants to enter or leave, above it the passes of a step in which a
# rank is.
_WITHIN_STEP = 1

# The exit status of a process that leaves because SIGTERM asked it to.
ASKED_TO_LEAVE = 128 + signal.SIGTERM


# What copy and pickle raise for values that they do not support. RuntimeError: torch, for a tensor with a graph.
_NOT_COPIED = (TypeError, AttributeError, RuntimeError, pickle.PicklingError)


class _Departure:
    """Whether this process has been asked to leave the job, by SIGTERM."""

    def __init__(self) -> None:
        self.requested = False
        self._waiting = False  # in init(): there is no step to complete
        self._previous: Any = None

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Makes SIGTERM request the departure, in the main thread of an elastic rank.

        A handler that the program has set is called as well.
        """
        if (not basics.is_elastic()
                or threading.current_thread() is not threading.main_thread()):
            yield
            return
        previous = signal.signal(signal.SIGTERM, self._on_signal)
        if previous is None:  # a handler that is not Python's
            self._previous = signal.SIG_DFL
        elif previous != self._when_finished:  # left by an earlier run()
            self._previous = previous
        try:
            yield
            # The launcher sends SIGTERM to all processes when one has finished.
            signal.signal(signal.SIGTERM, self._when_finished)
        except BaseException:
            # A second SIGTERM must not kill this process while it leaves.
            if not self.requested:
                signal.signal(signal.SIGTERM, self._previous)
            raise

    @contextlib.contextmanager
    def at_once(self) -> Iterator[None]:
        """A context in which SIGTERM ends the process without waiting for a commit."""
        self._waiting = True
        try:
            if self.requested:
                raise SystemExit(ASKED_TO_LEAVE)
            yield
        except SystemExit:
            # shutdown() would wait for the init() that this interrupts.
            atexit.unregister(basics.shutdown)
            raise
        finally:
            self._waiting = False

    def _when_finished(self, number: int, frame: Any) -> None:
        if self._passed_on():
            return
        _log.info("training is finished; the first SIGTERM is ignored")
        signal.signal(number, self._previous)

    def _on_signal(self, number: int, frame: Any) -> None:
        if self._passed_on():
            return
        self.requested = True
        if callable(self._previous):
            self._previous(number, frame)
        if self._waiting:
            raise SystemExit(ASKED_TO_LEAVE)

    def _passed_on(self) -> bool:
        """In a forked child (a DataLoader's worker) the signal does what it would have done without us."""
        if not forked():
            return False
        signal.signal(signal.SIGTERM, self._previous)
        os.kill(os.getpid(), signal.SIGTERM)
        return True


_departure = _Departure()
_trainings = Trainings()


def request_departure() -> None:
    """Does what SIGTERM does: this rank leaves the job at its next commit."""
    _departure.requested = True


def _highest(value: int) -> int:
    """Returns the highest value of all ranks."""
    if basics.size() == 1:
        return value
    mine, theirs = ctypes.c_int32(value), ctypes.c_int32()
    operations.submit(_native.ALLREDUCE, _native.INT32, Max, 0, (1,), 1.0, 1.0,
                      _CHECK, ctypes.addressof(mine), ctypes.addressof(theirs),
                      mine, theirs, awaited=True).wait()
    return theirs.value


class State:
    """What training needs to continue: subclasses save, restore and sync it.

    Args:
        bcast_object: broadcast_object() of the framework.
        get_rank: rank().
    """

    _synced_in: Optional[int] = None  # basics.joins() of the epoch of the last sync()
    _passes_of_step = 0  # if check_host_updates() was called within a step on any rank; otherwise 0
    _put_off = 0  # commits in a row that came within a step

    def __init__(self, bcast_object: Callable[[Any], Any],
                 get_rank: Callable[[], int]):
        self._bcast_object = bcast_object
        self._rank = get_rank
        self._hosts_updated = False
        self._reset_callbacks: list[Callable[[], None]] = []

    def register_reset_callbacks(self,
                                 callbacks: Iterable[Callable[[], None]]
                                ) -> None:
        """Adds functions that are called after each change of epoch, before sync().

        For example, to adapt the learning rate to the new size().
        """
        self._reset_callbacks.extend(callbacks)

    def on_reset(self) -> None:
        """Called by run() after each change of epoch."""
        self._hosts_updated = False
        self.reset()
        for callback in self._reset_callbacks:
            callback()

    def on_hosts_updated(self, timestamp: Any = None,
                         update_res: Any = None) -> None:
        """Makes all ranks start a new epoch at the next commit.

        The coordinator requests this itself when ranks come or go; this method
        is for programs that know of other reasons. In a job that is not
        elastic, all ranks must call it.
        """
        self._hosts_updated = True

    def commit(self) -> None:
        """Saves the state, and does what check_host_updates() does.

        All ranks must commit at the same points of their training. In an elastic job a commit between the backward
        passes of a step does nothing: the next one after a whole step saves, and lets ranks enter.

        Raises:
            HostsUpdatedInterrupt: see check_host_updates().
            HorovodInternalError: the membership epoch is over; nothing was saved.
            ValueError: on all ranks, if no commit ever comes after a whole step.
        """
        raise_end_of_epoch()  # of a death that the program has overlooked
        # Before the ranks agree: otherwise a death could undo a commit from which some ranks have gone on.
        if not (basics.is_elastic() and self._passes_if_within_step()):
            self.save()
        self.check_host_updates()
        if self._passes_of_step == 0:
            self._put_off = 0
        else:
            self._count_put_off()

    def check_host_updates(self) -> None:
        """Raises HostsUpdatedInterrupt, on all ranks or on none, if a rank wants to enter or leave.

        All ranks must call it at the same points. Raises nothing between the backward passes of a step.
        """
        raise_end_of_epoch()
        self._passes_of_step = 0
        wanted = self._hosts_updated
        if basics.is_elastic():
            wanted = (wanted or _departure.requested
                      or _native.library().change_wanted() > 0)
            passes = self._passes_if_within_step()
            highest = _highest(_WITHIN_STEP + passes if passes else int(wanted))
            self._passes_of_step = max(0, highest - _WITHIN_STEP)
            wanted = highest == 1
        if wanted:
            raise HostsUpdatedInterrupt()

    def _passes_if_within_step(self) -> int:
        """The backward passes of a step, if some of them have been made and not used; otherwise 0."""
        return 0

    def _count_put_off(self) -> None:
        self._put_off += 1
        # If commits come after every n batches, one of as many as a step has passes comes after a whole step.
        if self._put_off >= 2 * self._passes_of_step:
            raise ValueError(
                f"the last {self._put_off} commits came between the backward passes of a step "
                f"(backward_passes_per_step={self._passes_of_step}), where nothing is saved and no rank can enter or "
                "leave, because gradients of samples that count as processed would be lost; commit after step()")

    def save(self) -> None:
        """Keeps a copy of the state in this process's memory."""
        raise NotImplementedError()

    def restore(self) -> None:
        """Returns to the state of the last save()."""
        raise NotImplementedError()

    def sync(self) -> None:
        """Gives all ranks the state of rank 0, and saves it."""
        raise NotImplementedError()

    def reset(self) -> None:
        """Called in a new epoch, before the reset callbacks."""

    def on_finished(self) -> None:
        """Called when the function has returned, and again when a later process has got this state."""


class ObjectState(State):
    """A state of Python objects, which are attributes: state.batch += 1.

    They must be picklable, because sync() sends them.

    Args:
        bcast_object: broadcast_object() of the framework.
        get_rank: rank().
        **kwargs: the state's attributes, with their values.
    """

    def __init__(self, bcast_object: Callable[[Any], Any],
                 get_rank: Callable[[], int], **kwargs: Any):
        for name in kwargs:
            self._check_name(name)
        super().__init__(bcast_object, get_rank)
        self._saved_state: dict[str, Any] = {}
        self._set(kwargs)
        self._saved_state = self._copies(kwargs)

    def save(self) -> None:
        """Keeps copies of the attributes."""
        self._saved_state = self._copies(
            {name: getattr(self, name) for name in self._saved_state})

    def restore(self) -> None:
        """Sets the attributes to their values at the last save()."""
        self._set(self._copies(self._saved_state))

    def sync(self) -> None:
        """Gives all ranks the attributes of rank 0, and saves them."""
        if self._saved_state:
            self._set(self._named(self._bcast_object, objects.dumps, {
                name: getattr(self, name) for name in self._saved_state}))
        self.save()

    def _check_name(self, name: str) -> None:
        if name.startswith("_") or hasattr(type(self), name):
            raise ValueError(
                f"{type(self).__name__}({name}=...): a state has something else "
                "of this name; choose another one")

    def _set(self, values: dict[str, Any]) -> None:
        for name, value in values.items():
            setattr(self, name, value)

    def _copies(self, values: dict[str, Any]) -> dict[str, Any]:
        # One deepcopy, so that values that share an object still do.
        return self._named(copy.deepcopy, copy.deepcopy, values)

    def _named(self, do: Callable[[Any], Any], try_one: Callable[[Any], Any], values: dict[str, Any]) -> Any:
        """Returns do(values). If it cannot copy or pickle one of them, which try_one() finds, the error names it."""
        try:
            return do(values)
        except HorovodInternalError:
            raise
        except _NOT_COPIED as error:
            for name, value in values.items():
                try:
                    try_one({name: value})
                except _NOT_COPIED as cause:
                    raise TypeError(
                        f"{type(self).__name__}: the attribute {name!r}, a {type(value).__name__}, cannot be copied to "
                        f"other ranks: {cause}. Keep it outside of the state, or give it the means to be pickled "
                        "(__reduce__, __getstate__); of a tensor that was computed with gradients, such as a loss, "
                        "keep loss.item() or loss.detach()") from error
            raise


def reset() -> None:
    """Leaves the epoch and joins the next one.

    Raises:
        HorovodInternalError: the next epoch does not start within the start timeout, for example because there
        are too few ranks; the text names the missing ranks.
    """
    basics.leave_epoch()
    with _departure.at_once():
        for failures in range(1, _MAX_FAILED_STARTS + 1):
            try:
                basics.init()
                return
            except HorovodInternalError as error:
                if (failures == _MAX_FAILED_STARTS or error.status
                        not in (_native.ABORTED, _native.UNAVAILABLE)):
                    raise
                _log.warning(
                    "maypole: the next epoch has not started: %s; trying again",
                    error)
            time.sleep(_PAUSE_SECONDS)


def run_fn(func: Callable[..., Any],
           reset: Callable[[], None]) -> Callable[..., Any]:
    """Returns func(state, *args, **kwargs) with the loop of this file's head.

    In a job that is not elastic run() passes on the error of a lost rank, because no process replaces it.

    Args:
        func: func(state, ...), which trains.
        reset: ends an epoch and begins the next one.
    """

    @functools.wraps(func)
    def wrapper(state: State, *args: Any, **kwargs: Any) -> Any:
        with _departure.watching(), _own_trainings().running(name_of(func)):
            return _run(func, reset, state, args, kwargs)

    return wrapper


def run(func: Callable[..., Any]) -> Callable[..., Any]:
    """Decorates func(state, ...) so that it survives the loss of ranks and takes in new ones.

    Args:
        func: func(state, ...), which trains.
    """
    return run_fn(func, reset)


def run_converting(
        func: Callable[..., Any],
        internal_error: Callable[[Exception], Optional[HorovodInternalError]],
        start_epoch: Callable[[], None] = reset) -> Callable[..., Any]:
    """As run_fn(func, start_epoch), for a framework that raises errors of its own when a collective fails.

    internal_error(error) returns the HorovodInternalError that caused such an error; None for all other errors. One of
    an earlier membership epoch is not a new loss of a rank, and would recur in each restart: it ends the training.
    """

    @functools.wraps(func)
    def converted(*args: Any, **kwargs: Any) -> Any:
        try:
            return func(*args, **kwargs)
        except HorovodInternalError:
            raise
        except Exception as error:
            internal = internal_error(error)
            if internal is None:
                raise
            if internal.epoch not in (None, basics.joins()):
                raise RuntimeError(
                    f"a value is the result of an operation that failed in membership epoch {internal.epoch}, and was "
                    f"used in epoch {basics.joins()}: {internal}. After a loss of a rank only the state returns to its "
                    "last commit; do not keep results of the steps after it elsewhere, or make them attributes of the "
                    "state") from error
            raise internal from error

    return run_fn(converted, start_epoch)


def _run(func: Callable[..., Any], start_epoch: Callable[[], None],
         state: State, args: Any, kwargs: Any) -> Any:
    changed = False
    basics.set_finished(False)
    trainings = _own_trainings()
    if trainings.has_state:  # which this training begins with
        state._synced_in = basics.joins()
    while True:
        try:
            if changed:
                state.on_reset()
            completed = trainings.meet(state) if basics.is_elastic() else None
            if completed is not None:
                return completed.value
            state.sync()
            state._synced_in = basics.joins()
            state._put_off = 0  # on all ranks alike
            trainings.synchronized()
            if basics.is_elastic():
                _share_numbers()
            for begin in _after_sync:
                begin()
            result = func(state, *args, **kwargs)
            raise_end_of_epoch()  # of a death that the program has overlooked: it has skipped the rest
            state.on_finished()
            trainings.complete(state, result)
            basics.set_finished(True)
            return result
        except SystemExit as end:
            # The program stops early, on all ranks at once; or its handler of SIGTERM has raised this.
            if end.code in (None, 0) and not _departure.requested:
                basics.set_finished(True)
            raise
        except HorovodInternalError as error:
            if not _can_continue(error):
                raise
            _log.warning("maypole: %s; continuing from the last commit", error)
            state.restore()
        except HostsUpdatedInterrupt:
            pass
        if _departure.requested:
            _leave()
        if getattr(state, "_synced_in", None) != basics.joins():
            # This rank must not come before ranks that have received the state since.
            basics.abandon_epoch()
        start_epoch()
        changed = True


_after_sync: list[Callable[[], None]] = []


def call_after_sync(begin: Callable[[], None]) -> None:
    """Makes run() call begin() after each sync(), on all ranks: they have equal states, but not an equal past."""
    _after_sync.append(begin)


def _own_trainings() -> Trainings:
    return _trainings


def _counts() -> dict[Any, int]:
    return _native.library().counts


def _share_numbers() -> None:
    """Gives the ranks' next optimizers equal numbers.

    Optimizers with parameters of equal names are told apart by how many were made before them. A new process has made
    fewer than those that went on; if `func` makes an optimizer, they would never meet.
    """
    counts = _counts()
    own = {key: number for key, number in counts.items() if isinstance(key, tuple)}
    digest = zlib.crc32(repr(sorted(own.items())).encode())
    if len(set(objects.allgather_object(digest, _NUMBERS))) == 1:
        return
    for theirs in objects.allgather_object(own, _NUMBERS):
        for key, number in theirs.items():
            counts[key] = max(counts.get(key, 0), number)


def _can_continue(error: HorovodInternalError) -> bool:
    if error.status is None:  # raised by the program
        return True
    # A mismatch between ranks is the program's error, and would recur.
    return basics.is_elastic() and error.status != _native.FAILED_PRECONDITION


def _leave() -> None:
    _log.warning("maypole: leaving the job at a commit, as SIGTERM asked")
    basics.shutdown()
    sys.exit(ASKED_TO_LEAVE)
