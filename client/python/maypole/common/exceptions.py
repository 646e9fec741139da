"""Maypole's exceptions, and how the library's statuses become exceptions."""

import os
import re
from typing import Any, Optional

from maypole import _native


class HorovodInternalError(RuntimeError):
    """An operation failed: a mismatch between ranks, or a rank was lost.

    It has Horovod's name, so that `except HorovodInternalError` still works.
    The text is the library's: what happened, to which tensor, on which rank.
    status: the library's code; None if a program has raised it. epoch: the membership epoch of the operation, by
    basics.joins(); None if it is not known.
    """

    status: Optional[int] = None
    epoch: Optional[int] = None


MaypoleError = HorovodInternalError


class HostsUpdatedInterrupt(RuntimeError):
    """Ranks want to enter or leave; training should continue in the next membership epoch.

    Args:
        skip_sync: for compatibility. The state is always synchronized, because a rank cannot know who else
            enters meanwhile.
    """

    def __init__(self, skip_sync: bool = False):
        super().__init__("the set of hosts has changed")
        self.skip_sync = skip_sync


class HorovodVersionMismatchError(ImportError):
    """Never raised: Maypole is not compiled against a framework's version. It is here for scripts that catch it."""

    def __init__(self, name: str, version: Any, installed_version: Any):
        super().__init__(f"{name}: built for version {version}, installed is "
                         f"{installed_version}")
        self.name = name
        self.version = version
        self.installed_version = installed_version


# Horovod's text except for its first word: scripts look for it.
NOT_INITIALIZED = "Maypole has not been initialized; use hvd.init()."
FORKED = ("this process was forked from a rank and is not part of the job; use "
          "Maypole in the rank itself")

# Processes that have joined a job: this one, or a process it was forked from.
_joined: set[int] = set()


def note_joined() -> None:
    """Records that this process is a rank; forked() is then true in its children."""
    _joined.add(os.getpid())


def forked() -> bool:
    """Whether this process is a forked child of a rank."""
    return bool(_joined) and os.getpid() not in _joined


def not_initialized() -> str:
    """The text of the error for a call before init()."""
    return FORKED if forked() else NOT_INITIALIZED


def from_status(code: int, text: str) -> Exception:
    """Returns the exception for a status other than OK.

    ValueError for wrong arguments of this call, NotImplementedError for what is
    not supported yet, HorovodInternalError for everything else.
    """
    if code in (_native.INVALID_ARGUMENT, _native.ALREADY_EXISTS):
        return ValueError(text)
    if code == _native.UNIMPLEMENTED:
        return NotImplementedError(text)
    error = HorovodInternalError(text)
    error.status = code
    return error


# How often this process has joined a job, and the error that has ended the present membership epoch: a program may
# catch it with others (`except RuntimeError: continue`) and go on, but what it does then cannot succeed.
_epoch = 0
_is_elastic = False
_end_of_epoch: Optional[HorovodInternalError] = None

# When a rank has left by shutdown(), and the job is not elastic, operations of process sets without it go on.
_WITHOUT_A_RANK = re.compile(r" has shut down(;|$)")


def begin_epoch(joins: int, is_elastic: bool) -> None:
    """This process has joined a membership epoch. joins: basics.joins()."""
    global _epoch, _is_elastic, _end_of_epoch
    _epoch, _is_elastic, _end_of_epoch = joins, is_elastic, None


def current_epoch() -> int:
    """The argument of the last begin_epoch()."""
    return _epoch


def forget_end_of_epoch() -> None:
    """This process has left its membership epoch."""
    global _end_of_epoch
    _end_of_epoch = None


def of_operation(code: int, text: str, epoch: int) -> Exception:
    """As from_status(), for an operation that began in membership epoch `epoch` (current_epoch() then)."""
    error = from_status(code, text)
    if isinstance(error, HorovodInternalError):
        error.epoch = epoch
        _keep_if_it_ends_the_epoch(error)
    return error


def _keep_if_it_ends_the_epoch(error: HorovodInternalError) -> None:
    global _end_of_epoch
    # Every other failure is the operation's own.
    if error.status != _native.ABORTED or error.epoch != _epoch or _end_of_epoch is not None:
        return
    if _is_elastic or not _WITHOUT_A_RANK.search(str(error)):
        _end_of_epoch = error


def end_of_epoch() -> Optional[HorovodInternalError]:
    """Returns the first error that has ended the present membership epoch; None if no operation has met one."""
    return _end_of_epoch


def raise_end_of_epoch() -> None:
    """Raises end_of_epoch(), if there is one."""
    if _end_of_epoch is not None:
        raise _end_of_epoch.with_traceback(None)  # not one that grows with each call


# What the text of a framework's error contains if one of our operations has
# caused it: kErrorMark of client/frameworks. XLA puts a code's name and other
# text in front ("FAILED_PRECONDITION: Buffer Definition Event: ABORTED: "), which
# is XLA's own where something that uses the operation's result has failed. So
# client/xla/collective.cc appends the operation's code, and the membership epoch.
_IN_TEXT = re.compile(r"(?:\b([A-Z_]+): (?:Error dispatching computation: )?)?maypole: (.*)")
_APPENDED = re.compile(r"(.*) \[([A-Z_]+), membership epoch (\d+)\]")


def from_framework(text: Any, code: Optional[int] = None
                  ) -> Optional[HorovodInternalError]:
    """Returns the error of the collective that has caused a framework's error.

    Args:
        text: the text of the framework's error.
        code: its gRPC code; None: the code whose name is in the text.

    Returns:
        None if the error has another cause, or is a mistake of the program: wrong arguments, or a name that is
        pending twice. The error's `epoch` is the number of the membership epoch (basics.joins()) in which the
        operation began; None if the text does not say it.
    """
    found = _IN_TEXT.search(str(text or ""))
    if found is None:
        return None
    name, cause, epoch = found.group(1), found.group(2), None
    appended = _APPENDED.match(cause)
    if appended is not None:
        cause, name, epoch = appended.group(1), appended.group(2), int(appended.group(3))
    if code is None:
        if name is None:
            return None
        code = getattr(_native, name, _native.INTERNAL)
    error = from_status(code, cause)
    if not isinstance(error, HorovodInternalError):
        return None
    error.epoch = epoch
    _keep_if_it_ends_the_epoch(error)
    return error
