"""The trainings of one program, one after the other, and processes that come in a later one.

    pretrain(state)         # both are functions of elastic.run
    finetune(later_state)

A process that comes while the others are in finetune() begins with pretrain(). It is **behind**, and so is a survivor
that a death has made return to its last commit of pretrain() when others had completed it. In each membership epoch,
before their first sync(), the ranks exchange how many trainings they have completed. Then

    all have completed equally many  they synchronize their state, and train
    some are behind                  for each training that one of them lacks, in turn, all ranks pass on rank 0's
                                     result and synchronize that training's state (once, if the next one has the same);
                                     a rank that is behind gets them from run(), which does not call the function. All
                                     meet in the highest training
    all that are ahead are lost      an error: those that were behind have taken results, but do not know their states
    rank 0 is behind                 another membership epoch, in which the ranks that are ahead come first
    a state or a result is gone      the ranks behind raise an error; the others wait for the next membership epoch

Invariant: all ranks make the same sequence of collectives between the exchange and the sync() of the highest training.
So a program must not make others between its trainings while it catches up.

Thread contract: the thread that trains.
"""

import contextlib
import io
import logging
import pickle
import weakref
from collections.abc import Iterator
from typing import Any, NamedTuple, Optional

from maypole.common import basics, objects
from maypole.common.exceptions import HostsUpdatedInterrupt

_log = logging.getLogger("maypole.elastic")

_EXCHANGE = "maypole.elastic.trainings"
_RESULT = "maypole.elastic.result"

# Results of completed trainings are kept up to this size, pickled.
RESULT_BYTES = 64 * 1024

# How many membership epochs may begin in a row to make a rank that is ahead rank 0.
_MAX_REORDERED = 3

_REMEDY = ("Keep the states of earlier trainings as long as the program runs, let trainings return small results that "
           f"can be pickled (at most {RESULT_BYTES // 1024} KiB), or put the trainings into one elastic function whose "
           "state says which phase it is in")


class _Completed(NamedTuple):
    """A training that this process has completed. state: a weak reference; result: pickled. None: not there."""

    name: str
    state: Any
    result: Optional[bytes]

    def kept_state(self) -> Any:
        """Returns the state if it can be passed on with the result, otherwise None."""
        return None if self.state is None or self.result is None else self.state()


class _Standing(NamedTuple):
    """What a rank tells the others.

    number: how many trainings it has completed. name: the function that it is about to enter. first_kept: it has the
    states and results of all trainings from this one on. reordered: epochs that began because rank 0 was behind.
    borrows: it took the results of its last trainings from others, and has not had their present state since.
    """

    number: int
    name: str
    first_kept: int
    reordered: int
    borrows: bool


class Result(NamedTuple):
    """The result of a training that this process must not enter."""

    value: Any


class _Limited(io.RawIOBase):
    """A file in memory that refuses to exceed RESULT_BYTES."""

    def __init__(self) -> None:
        super().__init__()
        self.data = bytearray()

    def write(self, data: Any) -> int:
        self.data += memoryview(data).cast("B")
        if len(self.data) > RESULT_BYTES:
            raise OverflowError()
        return len(data)


def _pickled(result: Any) -> Optional[bytes]:
    """Returns `result` pickled; None if that is too large, or impossible."""
    file = _Limited()
    try:
        objects.dump(result, file)
    except Exception:  # pylint: disable=broad-except
        return None
    return bytes(file.data)


def _weak(state: Any) -> Any:
    try:
        return weakref.ref(state)
    except TypeError:
        return None


def name_of(func: Any) -> str:
    """Returns the name by which ranks compare their functions."""
    return str(getattr(func, "__qualname__", type(func).__qualname__))


class Trainings:
    """Those of this process; see the head of this file."""

    def __init__(self) -> None:
        self._completed: list[_Completed] = []
        self._running: list[str] = []  # a function may call run() again
        self._reordered = 0
        # While this process catches up: the number of the training that the others are in, and basics.joins().
        self._goal: Optional[tuple[int, int]] = None
        self._state_of_epoch: Optional[int] = None  # basics.joins() when the last training was completed
        self._borrows = False  # see _Standing
        self._awaited: Any = None  # the next training's state, if it is to be synchronized only there

    @contextlib.contextmanager
    def running(self, name: str) -> Iterator[None]:
        """A context around a call of run()."""
        self._running.append(name)
        try:
            yield
        finally:
            self._running.pop()

    @property
    def has_state(self) -> bool:
        """Whether this process completed a training in this membership epoch: it has the state of all ranks."""
        return self._state_of_epoch == basics.joins()

    def complete(self, state: Any, result: Any) -> None:
        """The function has returned."""
        if len(self._running) > 1:  # the outer function is called again after a change
            return
        elastic = basics.is_elastic()
        self._state_of_epoch = basics.joins()
        self._append(state, _pickled(result) if elastic else None)

    def _append(self, state: Any, result: Optional[bytes]) -> None:
        self._completed.append(_Completed(self._running[-1], _weak(state), result))

    def meet(self, state: Any) -> Optional[Result]:
        """Called on all ranks before state.sync(), after a change of the membership epoch and at the begin of run().

        Returns:
            None if this process shall enter the function; its result if the others have completed it.

        Raises:
            HostsUpdatedInterrupt: another membership epoch must begin first. If `state` is as new as that of any rank,
                its _synced_in says so.
            RuntimeError: the ranks call different functions, or this rank cannot catch up.
        """
        number = len(self._completed)
        awaited, self._awaited = self._awaited, None
        if awaited is not None and awaited is not state:
            raise RuntimeError(
                f"this process enters training {number + 1} of the program ({self._running[-1]}) with another state "
                "than the training before, on rank 0 they have one; all processes must use the same states")
        goal, self._goal = self._goal, None
        if goal is None or goal[1] != basics.joins() or number > goal[0]:
            # References, so that no state ends after the exchange has said that it is there.
            states = [training.kept_state() for training in self._completed]
            ranks = self._exchange(states)
            goal = max(rank.number for rank in ranks), basics.joins()
            self._check_names(ranks)
            self._put_foremost_first(ranks, state)
            self._check_kept(ranks)
            following = [*states[1:], state]
            for training in range(min(rank.number for rank in ranks), number):
                self._pass_on(self._completed[training], states[training], states[training] is following[training])
            if number < goal[0]:
                self._say_what_is_skipped(ranks)
        if number == goal[0]:
            return None
        result = self._catch_up(state)
        self._goal = goal
        return result

    def synchronized(self) -> None:
        """The state with which this process enters its function is that of rank 0."""
        self._borrows = False

    def _exchange(self, states: list[Any]) -> list[_Standing]:
        first_kept = len(states)
        while first_kept > 0 and states[first_kept - 1] is not None:
            first_kept -= 1
        mine = _Standing(len(self._completed), " > ".join(self._running), first_kept, self._reordered,
                         self._borrows)
        if basics.size() == 1:
            return [mine]
        return [_Standing(*theirs) for theirs in objects.allgather_object(tuple(mine), _EXCHANGE)]

    def _check_names(self, ranks: list[_Standing]) -> None:
        for number in {rank.number for rank in ranks}:
            names: dict[str, list[int]] = {}
            for r, rank in enumerate(ranks):
                if rank.number == number:
                    names.setdefault(rank.name, []).append(r)
            if len(names) > 1:
                said = "; ".join(f"{name} on rank {min(of)}" for name, of in names.items())
                raise RuntimeError(
                    f"the ranks call different functions as training {number + 1} of the program: {said}. All ranks "
                    "must call the same functions of elastic.run in the same order, and none within another one")

    def _put_foremost_first(self, ranks: list[_Standing], state: Any) -> None:
        """sync() takes rank 0's values, so rank 0 must have completed what any rank has."""
        highest = max(rank.number for rank in ranks)
        if all(rank.borrows for rank in ranks if rank.number == highest):
            raise RuntimeError(
                f"all ranks that had completed {highest} trainings of the program were lost while others took the "
                "results from them; start the job again")
        if ranks[0].number == highest:
            self._reordered = 0
            return
        self._reordered = max(rank.reordered for rank in ranks) + 1
        if self._reordered > _MAX_REORDERED:
            raise RuntimeError(f"rank 0 has completed {ranks[0].number} trainings of the program and another rank "
                               f"{highest}, in {_MAX_REORDERED} membership epochs in a row")
        if len(self._completed) == highest:
            state._synced_in = basics.joins()  # such ranks come first in the next epoch
        raise HostsUpdatedInterrupt()

    def _check_kept(self, ranks: list[_Standing]) -> None:
        kept = max(rank.first_kept for rank in ranks)
        if min(rank.number for rank in ranks) >= kept:
            return
        number = len(self._completed)
        if number < kept:
            at = max(ranks)
            raise RuntimeError(
                f"this process is about to begin training {number + 1} of the program ({self._running[-1]}), but other "
                f"ranks are in training {at.number + 1} ({at.name}), and no longer have the state or the result of "
                f"training {kept}, from which it would have to continue. {_REMEDY}")
        # The epoch ends with the process that has raised this error; until then nothing can be synchronized.
        objects.allgather_object(None, _EXCHANGE)

    def _say_what_is_skipped(self, ranks: list[_Standing]) -> None:
        at = max(ranks)
        number = len(self._completed)
        rest = f", and those after it up to training {at.number}" if at.number > number + 1 else ""
        _log.warning(
            "maypole: the other ranks have completed training %d of the program (%s)%s, and are in training %d (%s); "
            "run() takes state and result from them and does not call the function", number + 1, self._running[-1],
            rest, at.number + 1, at.name)

    def _pass_on(self, training: _Completed, state: Any, is_next: bool) -> None:
        """Gives those that are behind a training's state and result. is_next: the next training has this state."""
        _, _, is_next = objects.broadcast_object((training.name, training.result, is_next), 0, _RESULT)
        if not is_next:
            state.sync()
            state.on_finished()

    def _catch_up(self, state: Any) -> Result:
        """The counterpart of _pass_on() on a rank that is behind."""
        self._borrows = True
        name, result, is_next = objects.broadcast_object(None, 0, _RESULT)
        if name != self._running[-1]:
            raise RuntimeError(
                f"this process calls {self._running[-1]} as training {len(self._completed) + 1} of the program, which "
                f"was {name} on rank 0; all processes must call the same functions of elastic.run in the same order")
        if is_next:
            self._awaited = state
        else:
            state.sync()
            state.on_finished()
        self._append(state, result)
        return Result(pickle.loads(result))
