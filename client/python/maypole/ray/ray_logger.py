"""Sends values from a rank to the callbacks of RayExecutor.run(): ray_logger.log({"loss": 0.1})."""

import os
import warnings
from typing import Any

from maypole import _native
from maypole.common import basics

_queue: Any = None
_warned = False


def configure(queue: Any) -> None:
    """queue: a ray.util.queue.Queue, which the executor empties; None: there are no callbacks."""
    global _queue
    _queue = queue


def log(info_dict: Any, chief_only: bool = True) -> None:
    """Sends info_dict, which must be picklable, to the driver's callbacks; chief_only: only on rank 0."""
    global _warned
    if chief_only and _rank() != 0:
        return
    if _queue is not None:
        _queue.put(info_dict)
    elif not _warned:
        _warned = True
        warnings.warn("ray_logger.log(): nobody listens, because run() was called without callbacks", stacklevel=2)


def _rank() -> int:
    """The rank, which in an elastic job changes with the epoch; before init() that of the environment."""
    if _native.loaded() and basics.in_job():
        return basics.rank()
    return int(os.environ.get("MAYPOLE_RANK", "-1"))
