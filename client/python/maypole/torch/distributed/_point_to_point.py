"""send and recv: an operation of two ranks is a broadcast on the process set of these two.

Only the two ranks make that set, at their first operation; its request does not block (a rank that waited for it could
keep others from making theirs). What is sent until the set is there waits for it, in order.

As torch.distributed has it, operations match by sender, receiver and tag, each in its own order. So their names have
all three. The two sides agree on nothing else: one may send with tags 1 and 2 while the other receives with 2 and 1.

Several operations of a tag may be under way, but not several of one name. For the tags below _NUMBERED_TAGS, the names
have numbers, which both sides count. A program may use any number of other tags, each perhaps once, and a side could
forget a count only when both have no operation of the tag under way, which neither knows of the other. So these have
no count: an operation is submitted when the one before it, of the same name, has ended; of a tag without operations
nothing is kept.

A receive from any rank waits until a rank is known to have sent (_offers.py), and is then a receive from that rank.
While one waits, later receives with its tag wait behind it, also those that name a rank: messages of a rank go to
receives in the order of these.
"""

import collections
import contextlib
import threading
import time
from functools import partial
from typing import Any, Callable, Optional

import torch

from maypole.common import operations, process_sets
from maypole.common.exceptions import HorovodInternalError
from maypole.common.operations import Pending
from maypole.torch import _submissions
from maypole.torch.distributed._offers import DIED, LEFT, Offers

_NUMBERED_TAGS = 256
_NUMBERS = 1024


class Deferred:
    """An operation that is submitted when its process set is there; a Pending for who waits for it.

    Thread contract: any thread.
    """

    def __init__(self, pair: "_Pair", tensor: torch.Tensor, root: int, name: str):
        self._pair = pair
        # Another thread may submit it, whose stream is another one.
        stream = torch.cuda.current_stream(tensor.device) if tensor.is_cuda else None

        def describe(process_set: int) -> Pending:
            with contextlib.nullcontext() if stream is None else torch.cuda.stream(stream):
                return _submissions.broadcast(tensor, root, name, process_set, True)

        self._describe = describe
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


class _InTurn(Deferred):
    """One of several operations of a name: it is submitted when the one before it has ended, too.

    Args:
        next_one: called when it has ended.
    """

    def __init__(self, pair: "_Pair", tensor: torch.Tensor, root: int, name: str, next_one: Callable[[], None]):
        super().__init__(pair, tensor, root, name)
        self._name = name
        self._next_one = next_one
        self._submitted = threading.Event()
        self._over = False

    def submit(self, process_set: Optional[int], error: Optional[Exception]) -> None:
        """As Deferred.submit()."""
        super().submit(process_set, error)
        if self._pending is not None:
            self._pending.call_when_done(self._end)  # before another thread can release it
        self._submitted.set()

    def attach_calls(self) -> None:
        """As Deferred.attach_calls()."""
        if self._error is not None:
            self._end()

    def fails(self) -> bool:
        """Whether submit() has failed; then calls those who wait for its end."""
        if self._error is None:
            return False
        self._call()
        return True

    def done(self) -> bool:
        """As Pending.done()."""
        return self._submitted.is_set() and super().done()

    def wait_until(self, deadline: float) -> Optional[str]:
        """As Pending.wait_until()."""
        if not self._submitted.wait(max(0.0, deadline - time.monotonic())):
            return f"the operation before it with this tag, '{self._name}', has not ended"
        return super().wait_until(deadline)

    def wait(self) -> Any:
        """As Pending.wait()."""
        self._submitted.wait()
        return super().wait()

    def call_when_done(self, function: Callable[[], None]) -> None:
        """As Pending.call_when_done()."""
        with self._pair.lock:
            if not self._over:
                self._calls.append(function)
                return
        function()

    def _end(self) -> None:
        self._call()
        self._next_one()

    def _call(self) -> None:
        with self._pair.lock:
            self._over = True
            calls, self._calls = self._calls, []
        for function in calls:
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

    def start(self, deferred: Deferred) -> bool:
        """Submits it now (True), or when the set is there."""
        with self.lock:
            there = self._there()
            if there:
                deferred.submit(self._process_set, self._error)
            else:
                self._waiting.append(deferred)
        return there

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


class Matched:
    """A receive that waits behind one from any rank, or is one: a Pending for who waits for it.

    Args:
        source: the rank in the group; None: any.
        waits_for: says for what it waits.

    Thread contract: any thread.
    """

    def __init__(self, tensor: torch.Tensor, source: Optional[int], waits_for: Callable[[], str]):
        self.tensor = tensor
        self.source = source
        self._stream = torch.cuda.current_stream(tensor.device) if tensor.is_cuda else None
        self._waits_for = waits_for
        self._event = threading.Event()
        self._lock = threading.Lock()
        self._receive: Optional[Deferred] = None
        self._error: Optional[Exception] = None
        self._calls: list[Callable[[], None]] = []

    def on_its_stream(self) -> Any:
        """A context in which the stream of the call is the current one, also in another thread."""
        return contextlib.nullcontext() if self._stream is None else torch.cuda.stream(self._stream)

    def match(self, receive: Optional[Deferred], error: Optional[Exception] = None) -> None:
        """Called once: with the receive from a rank that it has become, or with why there will be none."""
        with self._lock:
            self._receive, self._error = receive, error
            calls, self._calls = self._calls, []
            self._event.set()
        for function in calls:
            self.call_when_done(function)

    def done(self) -> bool:
        """As Pending.done()."""
        return self._event.is_set() and (self._receive is None or self._receive.done())

    def wait_until(self, deadline: float) -> Optional[str]:
        """As Pending.wait_until()."""
        if not self._event.wait(max(0.0, deadline - time.monotonic())):
            return self._waits_for()
        return None if self._receive is None else self._receive.wait_until(deadline)

    def wait(self) -> Any:
        """As Pending.wait()."""
        self._event.wait()
        if self._error is not None:
            raise self._error
        assert self._receive is not None
        return self._receive.wait()

    def call_when_done(self, function: Callable[[], None]) -> None:
        """As Pending.call_when_done()."""
        with self._lock:
            if not self._event.is_set():
                self._calls.append(function)
                return
        if self._receive is None:
            function()
        else:
            self._receive.call_when_done(function)


class PointToPoint:
    """What one rank of a process group sends and receives.

    Args:
        group: its name in operations' names.
        ranks: the ranks of the job, by rank in the group.
        rank: this one's rank in the group.
        offers: this process's.
    """

    def __init__(self, group: str, ranks: list[int], rank: int, offers: Offers):
        self._group = group
        self._ranks = ranks
        self._rank = rank
        self._offers = offers
        self._matching = threading.Lock()  # of the following four, and of the order of receives
        self._unmatched: dict[int, collections.deque[Matched]] = {}  # by tag: in the order of the calls
        self._offered: dict[tuple[int, int], int] = {}  # by source and tag: how many it has sent
        self._gone: dict[int, int] = {}  # LEFT or DIED, by rank in the group
        self._last_source = -1
        self._pairs: dict[int, _Pair] = {}
        self._counts: collections.Counter = collections.Counter()
        self._lock = threading.Lock()
        # By name, of tags without numbers: those that have not ended. The first is, or soon will be, submitted.
        self._turns: dict[str, collections.deque[_InTurn]] = {}

    def send(self, tensor: torch.Tensor, to: int, tag: int) -> Deferred:
        """Starts sending a contiguous tensor."""
        deferred = self._start(tensor, to, self._rank, to, tag)
        if 0 <= tag < _NUMBERED_TAGS:
            self._offers.sent(self._group, self._ranks[to], tag, self._counts[self._name(self._rank, to, tag)])
        return deferred

    def receive(self, tensor: torch.Tensor, source: int, tag: int) -> Any:
        """Starts receiving into a contiguous tensor."""
        with self._matching:
            if tag not in self._unmatched:
                return self._start(tensor, source, source, self._rank, tag)
            receive = Matched(tensor, source, lambda: f"rank {source} has not sent with tag {tag}")
            self._unmatched[tag].append(receive)
        self._match(tag)
        return receive

    def receive_any(self, tensor: torch.Tensor, tag: int) -> Matched:
        """Starts receiving from any rank into a contiguous tensor; the result's `source` is then the rank in the group.

        Raises:
            ValueError: the tag has no numbers.
            ConnectionError: a rank cannot be reached.
        """
        if not 0 <= tag < _NUMBERED_TAGS:
            raise ValueError(f"recv() from any rank of group '{self._group}': the tag is {tag}, expected 0 to "
                             f"{_NUMBERED_TAGS - 1}; with other tags a sender must be named")
        self._offers.subscribe(self._group, self._ranks, tag, partial(self._heard, tag))
        receive = Matched(tensor, None, partial(self._who_has_not_sent, tag))
        with self._matching:
            self._unmatched.setdefault(tag, collections.deque()).append(receive)
        self._match(tag)
        return receive

    def _who_has_not_sent(self, tag: int) -> str:
        others = [rank for rank in range(len(self._ranks)) if rank != self._rank and rank not in self._gone]
        return f"of ranks {','.join(map(str, others))} none has sent with tag {tag}"

    def _heard(self, tag: int, job_rank: int, count: int) -> None:
        """What Offers.subscribe() calls."""
        if job_rank not in self._ranks:
            return
        source = self._ranks.index(job_rank)
        with self._matching:
            if count in (LEFT, DIED):
                self._gone[source] = count
            else:
                self._offered[source, tag] = max(count, self._offered.get((source, tag), 0))
        self._match(tag)

    def _match(self, tag: int) -> None:
        """Starts each receive that waits with this tag, and need not wait any longer."""
        started: list[Callable[[], None]] = []
        with self._matching:
            waiting = self._unmatched.get(tag, collections.deque())
            for receive in list(waiting):
                source, error = receive.source, None
                if any(each.source is None for each in waiting):
                    source, error = self._source_for(receive, tag)
                if source is not None:
                    waiting.remove(receive)
                    receive.source = self._last_source = source
                    with receive.on_its_stream():
                        deferred = self._start(receive.tensor, source, source, self._rank, tag)
                    started.append(partial(receive.match, deferred))
                elif error is not None:
                    waiting.remove(receive)
                    started.append(partial(receive.match, None, error))
            if not waiting:
                self._unmatched.pop(tag, None)
        for match in started:  # they may call the program
            match()

    def _source_for(self, receive: Matched, tag: int) -> tuple[Optional[int], Optional[Exception]]:
        """The rank from which this one receives now, or why there will be none; (None, None): it must wait."""
        size = len(self._ranks)
        # Each rank in its turn, so that one that sends much keeps nobody waiting.
        others = [r for r in ((self._last_source + 1 + i) % size for i in range(size)) if r != self._rank]
        candidates = others if receive.source is None else [receive.source]
        for source in candidates:
            if self._offered.get((source, tag), 0) > self._counts[self._name(source, self._rank, tag)]:
                return source, None
        # Its operation fails, and says who has died and how.
        for source in candidates:
            if self._gone.get(source) == DIED:
                return source, None
        if all(self._gone.get(source) == LEFT for source in candidates):
            return None, HorovodInternalError(
                f"every other rank of group '{self._group}' has left, and none has sent with tag {tag}")
        return None, None

    def _name(self, source: int, target: int, tag: int) -> str:
        return f"{self._group}.{source}>{target}.{tag}"

    def _start(self, tensor: torch.Tensor, peer: int, source: int, target: int, tag: int) -> Deferred:
        if peer == self._rank:
            raise ValueError(f"rank {peer} of group '{self._group}' cannot send to itself")
        with self._lock:
            if peer not in self._pairs:
                self._pairs[peer] = _Pair([self._ranks[peer], self._ranks[self._rank]])
            pair, root = self._pairs[peer], self._ranks[source]
        tensor, what = tensor.detach().view(-1), self._name(source, target, tag)
        if not 0 <= tag < _NUMBERED_TAGS:
            return self._start_in_turn(pair, tensor, root, what)
        number = self._counts[what]
        self._counts[what] += 1
        deferred = Deferred(pair, tensor, root, f"{what}#{number % _NUMBERS}")
        pair.start(deferred)
        return deferred

    def _start_in_turn(self, pair: _Pair, tensor: torch.Tensor, root: int, name: str) -> Deferred:
        deferred = _InTurn(pair, tensor, root, name, lambda: self._next_one(pair, name))
        with self._lock:
            turns = self._turns.setdefault(name, collections.deque())
            turns.append(deferred)
            first = len(turns) == 1
        if first and pair.start(deferred) and deferred.fails():
            self._next_one(pair, name)
        return deferred

    def _next_one(self, pair: _Pair, name: str) -> None:
        """The first operation of this name has ended: submits the next, and so on while they fail at once."""
        failed = True
        while failed:
            with self._lock:
                turns = self._turns[name]
                turns.popleft()
                if not turns:
                    del self._turns[name]
                    return
                following = turns[0]
            failed = pair.start(following) and following.fails()
