"""MAYPOLE_TRACE_CALLS=1: errors name, for each rank, the line of the script that made the call.

Each rank records the lines of its last calls. When a call fails, the rank publishes them in torch.distributed's
store, and reads those of the other ranks, which get the error as well. So a call without an error costs only a
walk up the stack.
"""

import collections
import datetime
import json
import os
import sys
import time
from typing import Any, Optional

import torch

import maypole

# How many calls of a group keep their lines; ranks can be apart by that number.
_KEPT = 64
# How long a rank waits for the lines of the others, which may have died.
_SECONDS = 1.0

_OWN = tuple(os.path.dirname(str(package.__file__)) + os.sep for package in (torch, maypole))


def wanted() -> bool:
    """Whether MAYPOLE_TRACE_CALLS asks for lines."""
    return os.environ.get("MAYPOLE_TRACE_CALLS", "0") not in ("", "0")


def _line_of_script() -> str:
    """The innermost line of the stack that is neither torch's nor this package's."""
    frame: Optional[Any] = sys._getframe()
    while frame is not None and frame.f_code.co_filename.startswith(_OWN):
        frame = frame.f_back
    # Above a callback of DDP's reducer there is only torch's code.
    return "no line of the script" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"


class CallLines:
    """The lines of the calls of one group.

    Args:
        store: the group's store of torch.distributed.
        rank: this one's, in the job.
        ranks: the group's, in the job.
        group: the group's name in the names of its operations.
    """

    def __init__(self, store: Any, rank: int, ranks: list[int], group: str):
        self._store = store
        self._group = group
        self._rank = rank
        self._ranks = ranks
        self._calls: collections.OrderedDict[int, str] = collections.OrderedDict()
        self._published = False

    def note(self, number: int, what: str) -> None:
        """Records that the group's call `number` is made now."""
        self._calls[number] = f"{what} at {_line_of_script()}"
        if len(self._calls) > _KEPT:
            self._calls.popitem(last=False)

    def described(self, number: int) -> str:
        """" [rank 0: all_reduce at train.py:12; rank 1: ...]" of the call `number`, which has failed.

        Waits for the other ranks, for at most _SECONDS.
        """
        if not self._published:  # later failures are consequences
            self._published = True
            self._store.set(self._key(self._rank), json.dumps(list(self._calls.items())))
        deadline = time.monotonic() + _SECONDS
        lines = [f"rank {rank}: {self._of_rank(rank, number, deadline)}" for rank in self._ranks]
        return f" [call {number}: {'; '.join(lines)}]"

    def _key(self, rank: int) -> str:
        return f"maypole/calls/{self._group}/{rank}"

    def _of_rank(self, rank: int, number: int, deadline: float) -> str:
        if rank == self._rank:
            calls = dict(self._calls)
        else:
            left = datetime.timedelta(seconds=max(0.05, deadline - time.monotonic()))
            try:
                self._store.wait([self._key(rank)], left)
                calls = {int(n): line for n, line in json.loads(self._store.get(self._key(rank)))}
            except Exception:  # torch's types for a timeout and a lost store differ by its version
                return "it has not said"
        if number in calls:
            return calls[number]
        if not calls:
            return "no call"
        last = max(calls)
        return f"not there; its last call {last} is {calls[last]}" if last < number else "too long ago"
