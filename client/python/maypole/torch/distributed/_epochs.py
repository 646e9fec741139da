"""Membership epochs under torch.distributed: how a group continues without a rank that has died.

In an elastic job (docs/elastic.md) a death ends the membership epoch, not the processes. The survivors call
shrink_group() or reconfigure() of torch 2.15, or destroy_process_group() and init_process_group(). Each of these begins
the next epoch, in which all ranks tell each other who they were, because the library gives ranks new numbers.

Thread contract: one thread at a time.
"""

import os
import re
import socket
import uuid
from typing import NamedTuple, Optional

from maypole import _native
from maypole.common import basics, elastic, objects
from maypole.common.exceptions import HorovodInternalError
from maypole.common.process_sets import ProcessSet

# Identifies this process as long as it lives.
HANDLE = f"maypole:{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex}"

_DEADLOCK = re.compile("every rank (waits|has waited) for another")
_over_in: Optional[int] = None  # basics.joins() of an epoch that is over


class Member(NamedTuple):
    """What a rank tells the others at the beginning of an epoch.

    handle: HANDLE. rank: its former rank in the group that continues; -1: it was not in it. address: Offers.address.
    """

    handle: str
    rank: int
    address: str


def note(error: HorovodInternalError) -> None:
    """Records it if this error of an operation means that the epoch is over."""
    global _over_in
    # A mismatch does not end it, but ranks that wait for each other do (coordinator/core/liveness).
    deadlock = error.status == _native.FAILED_PRECONDITION and _DEADLOCK.search(str(error))
    if deadlock or error.status in (_native.ABORTED, _native.UNAVAILABLE):
        _over_in = basics.joins()


def is_over() -> bool:
    """Whether operations can only fail until begin()."""
    return _over_in is not None and _over_in == basics.joins()


def leave() -> None:
    """Ends the epoch: pending operations fail, here and on the other ranks."""
    global _over_in
    if basics.in_job():
        _over_in = basics.joins()
        basics.leave_epoch()


def join() -> None:
    """Joins the job, or its next epoch if this one is over."""
    if is_over():
        begin()
    else:
        basics.init()


def begin() -> None:
    """Leaves the epoch and joins the next one.

    Raises:
        HorovodInternalError: the next epoch does not start within MAYPOLE_START_TIMEOUT.
    """
    elastic.reset()


def members(rank: int, address: str, process_set: ProcessSet) -> list[Member]:
    """Returns the ranks' Members, in the order of the set; all its ranks must make the call."""
    own = Member(HANDLE, rank, address)
    said = objects.allgather_object(tuple(own), name="maypole.distributed.members", process_set=process_set)
    return [Member(*each) for each in said]
