"""The job's timeline: starting and stopping it at run time (docs/timeline.md).

Thread contract: any thread may call any function.
"""

import os
from typing import Any, Union

from maypole import _native
from maypole.common.exceptions import from_status


def start_timeline(file_path: Union[str, "os.PathLike[Any]"], mark_cycles: bool = False) -> None:
    """Starts recording what all ranks and executors do, in one file.

    Args:
        file_path: the file, on the host of the rank that calls this first; while a timeline is on, the calls of
            other ranks join it, whatever their paths are. So all ranks may call this, or one.
        mark_cycles: also record each report of operations to the coordinator, which is what comes closest to
            Horovod's cycles.

    Raises:
        ValueError: before init() or if the file cannot be opened.
    """
    path = os.fsencode(file_path)
    if b"\0" in path:  # C's strings end there
        raise ValueError(f"start_timeline: file_path={file_path!r} contains a NUL character, which no file's name has")
    _checked(lambda library: library.start_timeline(path, bool(mark_cycles)))


def stop_timeline() -> None:
    """Ends the timeline that this rank has started or joined, for all ranks.

    The file is complete when this returns. Does nothing if the timeline has ended already.
    """
    _checked(lambda library: library.stop_timeline())


def _checked(call: Any) -> None:
    library = _native.library()
    status = call(library)
    if status == _native.OK:
        return
    text = library.last_error()
    if status in (_native.INVALID_ARGUMENT, _native.FAILED_PRECONDITION):
        raise ValueError(text)
    raise from_status(status, text)
