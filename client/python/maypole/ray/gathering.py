"""Waits for the results of all ranks of a static job."""

import importlib
import time
from collections.abc import Sequence
from typing import Any, Callable, Optional

from maypole.ray.cluster import get_ray, on_node, this_node
from maypole.ray.errors import Rank, rank_error, several

# How long the other ranks may take to end when one has failed: they get an
# error at once, but may be busy before they see it.
_GRACE_SECONDS = 5.0
_LISTEN_SECONDS = 0.1


class Callbacks:
    """Calls functions with the values that ranks pass to ray_logger.log(). Without functions it does nothing."""

    def __init__(self, functions: Optional[Sequence[Callable[[Any], Any]]]):
        self._functions = list(functions or ())
        self.queue: Any = None
        if self._functions:
            # On the driver's node, because other nodes may be removed.
            self.queue = importlib.import_module("ray.util.queue").Queue(
                actor_options={"num_cpus": 0, "scheduling_strategy": on_node(this_node())})

    def poll_seconds(self) -> Optional[float]:
        """How long a wait may take before call_all() must run; None: forever."""
        return _LISTEN_SECONDS if self._functions else None

    def call_all(self) -> None:
        """Calls the callbacks with what is in the queue now. Ranks may add more, faster than this takes it out."""
        count = self.queue.qsize() if self.queue is not None else 0
        for value in self.queue.get_nowait_batch(count) if count else ():
            for function in self._functions:
                function(value)

    def end(self) -> None:
        """Ends the queue."""
        if self.queue is not None:
            self.queue.shutdown()


class Gathering:
    """One run of a function in all ranks.

    refs: ObjectRefs of the results, by rank. ranks: the ranks, for messages. lost: ObjectRefs that
    resolve to a text if a daemon is lost. leave(rank): makes a rank leave the
    job when its function has ended, so that the others do not wait for it.
    """

    def __init__(self, refs: list[Any], ranks: list[Rank], lost: list[Any], leave: Callable[[int], Any],
                 callbacks: Callbacks):
        self._refs = refs
        self._ranks = ranks
        self._lost = lost
        self._leave = leave
        self._callbacks = callbacks
        self._results: dict[int, Any] = {}
        self._failures: list[tuple[Rank, BaseException]] = []
        self._daemon_lost = ""
        self._failed_at: Optional[float] = None
        self._left = False

    def results(self) -> list[Any]:
        """Returns the results by rank. Raises RankError if a rank fails, RuntimeError if a daemon is lost."""
        ray = get_ray()
        waiting = list(self._refs)
        while waiting and not self._late():
            done, _ = ray.wait(waiting + self._lost, num_returns=1, timeout=self._seconds())
            self._callbacks.call_all()
            for ref in done:
                if ref in self._lost:
                    self._lost.remove(ref)
                    self._take_lost(ref)
                else:
                    waiting.remove(ref)
                    self._take(self._refs.index(ref), ref)
        self._callbacks.call_all()
        if self._left:  # then all must leave, so that init() can start the job's next epoch
            for rank in range(len(self._ranks)):
                self._leave(rank)
        if self._failures:
            raise rank_error(self._failures, "; ".join(filter(None, [self._daemon_lost, self._still_running()])))
        if self._daemon_lost:
            raise RuntimeError(f"{self._daemon_lost}; {self._still_running() or 'all ranks have ended'}")
        return [self._results[rank] for rank in range(len(self._refs))]

    def _take(self, rank: int, ref: Any) -> None:
        try:
            self._results[rank] = get_ray().get(ref)
        except Exception as error:  # what the function raises
            self._failures.append((self._ranks[rank], error))
            self._note_failure()

    def _take_lost(self, ref: Any) -> None:
        try:
            self._daemon_lost = get_ray().get(ref)
        except get_ray().exceptions.RayError:
            return  # its node is gone with its ranks, which report that
        self._note_failure()

    def _note_failure(self) -> None:
        if self._failed_at is None:
            self._failed_at = time.monotonic()

    def _seconds(self) -> Optional[float]:
        polling = self._callbacks.poll_seconds()
        if self._failed_at is None:
            return polling
        left = max(0.0, self._seconds_left())
        return left if polling is None else min(left, polling)

    def _late(self) -> bool:
        """Whether to give up. After the first grace, ranks that have raised leave the job; a second grace follows."""
        if self._failed_at is None or self._seconds_left() > 0:
            return False
        if self._left:
            return True
        self._left = True
        for rank, _ in self._failures:
            self._leave(rank.rank)
        return not self._failures

    def _seconds_left(self) -> float:
        assert self._failed_at is not None
        return self._failed_at + _GRACE_SECONDS * (1 + self._left) - time.monotonic()

    def _still_running(self) -> str:
        failed = {rank.rank for rank, _ in self._failures}
        ranks = [rank.rank for rank in self._ranks if rank.rank not in self._results and rank.rank not in failed]
        return f"still running: {several(ranks)} (shutdown() ends them)" if ranks else ""
