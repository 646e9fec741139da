"""The program of a rank that maypole.run() starts: calls the function, answers.

maypolerun sets MAYPOLE_FUNCTION, the file with the call, and MAYPOLE_RESULT_FD,
the pipe for the answer. The process ends like a script that calls the function:
with the traceback of its exception and status 1, or with the status of
sys.exit().
"""

import os
import sys
import traceback
from typing import Any, Optional

from maypole.common import basics, objects
from maypole.runner import messages


def _place() -> tuple[Optional[int], Optional[int]]:
    """This process's rank, and how many ranks must answer."""
    if not basics.is_elastic():
        return int(os.environ["MAYPOLE_RANK"]), int(os.environ["MAYPOLE_SIZE"])
    # The number in the last epoch; other ranks may have left.
    return (basics.rank() if basics.in_job() else None), None


def _find_modules(paths: list[str]) -> None:
    # The caller's directories come first, as in the caller.
    sys.path[:] = [path for path in paths if path not in sys.path] + [path for path in sys.path if path]


def _describe(error: BaseException) -> str:
    return "".join(traceback.format_exception_only(type(error), error)).strip()


def _failure(error: BaseException, doing: str = "") -> bytes:
    """Returns the answer for an exception; prints its traceback, without the frame of this file."""
    frames = error.__traceback__
    text = "".join(traceback.format_exception(type(error), error, frames.tb_next if frames else None))
    sys.stdout.flush()
    sys.stderr.write(text)
    sys.stderr.flush()
    try:
        exception = bytes(objects.dumps(error))
    except Exception:  # the text must suffice
        exception = b""
    return messages.encode_answer(*_place(), error=doing + _describe(error), traceback=text, exception=exception)


def _send(fd: int, answer: bytes) -> None:
    rest = memoryview(answer)
    try:
        while rest:
            rest = rest[os.write(fd, rest):]
        os.close(fd)
    except BrokenPipeError:
        pass  # maypolerun has gone, so we will be ended


def _answer_exit(code: Any) -> Optional[bytes]:
    if code is not None and code != 0:
        return messages.encode_answer(*_place(), error=f"it called sys.exit({code!r})", traceback="")
    # A process that leaves an elastic job has no result; the others have one.
    return None if basics.is_elastic() else messages.encode_answer(*_place(), result=bytes(objects.dumps(None)))


def _run(body: bytes, fd: int) -> int:
    """Returns the exit status."""
    try:
        func, args, kwargs = messages.decode_value(body)
    except Exception as error:  # anything that a module's code raises
        _send(fd, _failure(error, "it cannot unpickle the function: "))
        return 1
    try:
        result = func(*args, **kwargs)
    except SystemExit as error:
        answer = _answer_exit(error.code)
        if answer is not None:
            _send(fd, answer)
        raise
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        _send(fd, _failure(error))
        return 1
    try:
        data = bytes(objects.dumps(result))
    except Exception as error:  # anything that __reduce__ raises
        _send(fd, _failure(error, f"its result, of type {type(result).__name__}, cannot be pickled: "))
        return 1
    _send(fd, messages.encode_answer(*_place(), result=data))
    return 0


def main() -> None:
    """Runs the call of $MAYPOLE_FUNCTION and ends the process."""
    fd = int(os.environ.pop("MAYPOLE_RESULT_FD"))
    os.set_inheritable(fd, False)
    with open(os.environ.pop("MAYPOLE_FUNCTION"), "rb") as f:
        paths, body = messages.decode_paths(f.read())
    _find_modules(paths)
    sys.exit(_run(body, fd))
