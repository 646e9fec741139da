"""send and recv: each is a broadcast on the process set of the two ranks (_pair.py).

As in torch.distributed, operations match by sender, receiver and tag, and in order among those with the same three.
So the names have all three. The two sides agree on nothing else: one may send with tags 1 and 2 while the other
receives with 2 and 1.

Several operations of a tag may be under way, but not several of one name: an operation is submitted when the one before
it, of the same name, has ended. For tags below _NUMBERED_TAGS, the names have numbers, which both sides count, so that
_NUMBERS of them may be under way. A program may use any number of other tags, each perhaps once, and a side could
forget a count only when neither side has an operation of the tag under way, which it cannot know of the other. So
these tags have no count: an operation is submitted when the one before it, of the same name, has ended, and nothing is
kept for a tag without operations.

A receive from any rank waits until it is known that some rank has sent (_offers.py), and then becomes a receive
from that rank. While it waits, later receives with its tag wait behind it, also those that name a rank, so that
receives get a rank's messages in order.
"""

import collections
import contextlib
import threading
import time
import weakref
from functools import partial
from typing import Any, Callable, Optional

import torch

from maypole.common.exceptions import HorovodInternalError
from maypole.torch.distributed._offers import DIED, LEFT, Listener, Offers
from maypole.torch.distributed._pair import Deferred, InTurn, Pair

_NUMBERED_TAGS = 256
_NUMBERS = 1024


class Matched:
    """A receive from any rank, or one that waits behind it; callers wait for it as for a Pending.

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
        """Called once: with the receive from a rank that this one becomes, or with why there will be none."""
        with self._lock:
            self._receive, self._error = receive, error
            calls, self._calls = self._calls, []
            self._event.set()
        for function in calls:
            self.call_when_done(function)

    def done(self) -> bool:
        """As Pending.done()."""
        return self._event.is_set() and (self._receive is None or self._receive.done())

    def wait_until(self, deadline: float, comes_back: bool = False) -> Optional[str]:
        """As Pending.wait_until()."""
        if not self._event.wait(max(0.0, deadline - time.monotonic())):
            return self._waits_for()
        return None if self._receive is None else self._receive.wait_until(deadline, comes_back)

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


class _Numbered:
    """The operations of one sender, receiver and tag: how many there were, and the latest, as long as they live."""

    def __init__(self) -> None:
        self.count = 0
        self.latest: collections.deque[weakref.ref[Deferred]] = collections.deque(maxlen=_NUMBERS)


class PointToPoint:
    """The sends and receives of one rank of a process group.

    Args:
        group: the group's name, for errors.
        in_names: a part of the operations' names.
        ranks: the members' ranks in the job, by rank in the group.
        rank: this one's rank in the group.
        offers: the Offers of this process.
    """

    def __init__(self, group: str, in_names: str, ranks: list[int], rank: int, offers: Offers):
        self._group = group
        self._in_names = in_names
        self._ranks = ranks
        self._rank = rank
        self._offers = offers
        self._matching = threading.Lock()  # of the following five, and of the order of receives
        # The sources and tags of receives of which a wait was late, and none has seen the end.
        self._late: dict[Any, tuple[Optional[int], int]] = {}
        self._unmatched: dict[int, collections.deque[Matched]] = {}  # by tag: in the order of the calls
        self._offered: dict[tuple[int, int], int] = {}  # by source and tag: the number of messages it has sent
        self._gone: dict[int, int] = {}  # LEFT or DIED, by rank in the group
        self._last_source = -1
        self._pairs: dict[int, Pair] = {}
        self._numbered: dict[str, _Numbered] = {}
        self._lock = threading.Lock()
        # By name, if several operations have it: those that have not ended. The first is, or soon will be, submitted.
        self._turns: dict[str, collections.deque[Deferred]] = {}

    def send(self, tensor: torch.Tensor, to: int, tag: int) -> Deferred:
        """Starts sending a contiguous tensor."""
        deferred = self._start(tensor, to, self._rank, to, tag)
        if 0 <= tag < _NUMBERED_TAGS:
            self._offers.sent(self._in_names, self._ranks[to], tag, self._count(self._rank, to, tag))
        return deferred

    def receive(self, tensor: torch.Tensor, source: int, tag: int) -> Any:
        """Starts receiving into a contiguous tensor."""
        with self._matching:
            self._refuse_after_late(source, tag)
            if tag not in self._unmatched:
                return self._start(tensor, source, source, self._rank, tag)
            receive = Matched(tensor, source, lambda: f"rank {source} has not sent with tag {tag}")
            self._unmatched[tag].append(receive)
        self._match(tag)
        return receive

    def receive_any(self, tensor: torch.Tensor, tag: int) -> Matched:
        """Starts receiving from any rank into a contiguous tensor; the result's `source` will be the rank in the group.

        Raises:
            ValueError: the tag has no numbers.
            HorovodInternalError: a rank cannot be reached, or the membership epoch is over.
        """
        if not 0 <= tag < _NUMBERED_TAGS:
            raise ValueError(f"recv() from any rank of group '{self._group}': the tag is {tag}, expected 0 to "
                             f"{_NUMBERED_TAGS - 1}; with other tags a sender must be named")
        self._offers.subscribe(self._in_names, tag,
                               Listener(self._ranks, partial(self._heard, tag), lambda: tag in self._unmatched))
        receive = Matched(tensor, None, partial(self._who_has_not_sent, tag))
        with self._matching:
            self._refuse_after_late(None, tag)
            self._unmatched.setdefault(tag, collections.deque()).append(receive)
        self._match(tag)
        return receive

    def note_late(self, receive: Any, source: Optional[int], tag: int, late: bool) -> None:
        """Called when a wait for a receive is late, or has seen the end.

        Args:
            receive: what receive() or receive_any() has returned.
            source: that of the receive; None: any rank.
            tag: that of the receive.
            late: whether the wait was late.
        """
        with self._matching:
            if late:
                self._late[receive] = source, tag
            else:
                self._late.pop(receive, None)

    def _refuse_after_late(self, source: Optional[int], tag: int) -> None:
        """Raises an error if an earlier receive, for which nobody waits any more, gets the message."""
        for earlier, of_tag in self._late.values():
            if of_tag == tag and (earlier == source or earlier is None or source is None):
                raise HorovodInternalError(
                    f"an earlier recv from {'any rank' if earlier is None else f'rank {earlier}'} with tag {tag} has "
                    "timed out, and would get the message: wait for that one again, or make the group again")

    def _who_has_not_sent(self, tag: int) -> str:
        others = [rank for rank in range(len(self._ranks)) if rank != self._rank and rank not in self._gone]
        return f"of ranks {','.join(map(str, others))} none has sent with tag {tag}"

    def _heard(self, tag: int, job_rank: int, count: int) -> None:
        """Called by Offers' thread: see Offers.subscribe()."""
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
        """Starts each waiting receive with this tag that need not wait any longer."""
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
                    try:
                        with receive.on_its_stream():
                            deferred = self._start(receive.tensor, source, source, self._rank, tag)
                    except Exception as failed:  # a rank has died
                        started.append(partial(receive.match, None, failed))
                    else:
                        started.append(partial(receive.match, deferred))
                elif error is not None:
                    waiting.remove(receive)
                    started.append(partial(receive.match, None, error))
            if not waiting:
                self._unmatched.pop(tag, None)
        for match in started:  # without the lock: they may call the program
            match()

    def _source_for(self, receive: Matched, tag: int) -> tuple[Optional[int], Optional[Exception]]:
        """Returns the rank from which this one receives now, or why there is none; (None, None): it must wait."""
        size = len(self._ranks)
        # Round-robin, so that a rank that sends much does not keep others waiting.
        others = [r for r in ((self._last_source + 1 + i) % size for i in range(size)) if r != self._rank]
        candidates = others if receive.source is None else [receive.source]
        for source in candidates:
            if self._offered.get((source, tag), 0) > self._count(source, self._rank, tag):
                return source, None
        # The operation with that rank fails, and says who has died and how.
        for source in candidates:
            if self._gone.get(source) == DIED:
                return source, None
        if all(self._gone.get(source) == LEFT for source in candidates):
            return None, HorovodInternalError(
                f"every other rank of group '{self._group}' has left, and none has sent with tag {tag}")
        return None, None

    def _count(self, source: int, target: int, tag: int) -> int:
        numbered = self._numbered.get(self._name(source, target, tag))
        return 0 if numbered is None else numbered.count

    def _name(self, source: int, target: int, tag: int) -> str:
        return f"{self._in_names}.{source}>{target}.{tag}"

    def _start(self, tensor: torch.Tensor, peer: int, source: int, target: int, tag: int) -> Deferred:
        with self._lock:
            if peer not in self._pairs:
                self._pairs[peer] = Pair([self._ranks[peer], self._ranks[self._rank]])
            pair, root = self._pairs[peer], self._ranks[source]
        tensor, what = tensor.detach().view(-1), self._name(source, target, tag)
        if not 0 <= tag < _NUMBERED_TAGS:
            return self._start_in_turn(pair, tensor, root, what)
        numbered = self._numbered.setdefault(what, _Numbered())
        name = f"{what}#{numbered.count % _NUMBERS}"
        numbered.count += 1
        before = numbered.latest[0]() if len(numbered.latest) == _NUMBERS else None  # the one of the same name
        if before is None or before.done():
            deferred = Deferred(pair, tensor, root, name)
            pair.start(deferred)
        else:
            deferred = self._start_in_turn(pair, tensor, root, name, before)
        numbered.latest.append(weakref.ref(deferred))
        return deferred

    def _start_in_turn(self, pair: Pair, tensor: torch.Tensor, root: int, name: str,
                       before: Optional[Deferred] = None) -> Deferred:
        """Starts an operation behind those of its name; before: the last one of these, if it may not be in _turns."""
        deferred = InTurn(pair, tensor, root, name, lambda: self._next_one(pair, name))
        with self._lock:
            turns = self._turns.setdefault(name, collections.deque())
            first = not turns
            if first and before is not None:
                turns.append(before)
            turns.append(deferred)
        if first and before is not None:
            before.call_when_done(lambda: self._next_one(pair, name))
        elif first and pair.start(deferred) and deferred.fails():
            self._next_one(pair, name)
        return deferred

    def _next_one(self, pair: Pair, name: str) -> None:
        """The first operation of this name has ended: submits the next one, and more while they fail at once."""
        failed = True
        while failed:
            with self._lock:
                turns = self._turns[name]
                turns.popleft()
                if not turns:
                    del self._turns[name]
                    return
                following = turns[0]
            assert isinstance(following, InTurn)  # others come first
            failed = pair.start(following) and following.fails()
