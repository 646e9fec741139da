"""One run of maypolerun for maypole.run(): its files, its output, its end.

Thread contract: one thread calls run_job() and waits in it; the job ends with
that thread. Other threads may run jobs of their own at the same time.
"""

import codecs
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from typing import Any, Optional

from maypole.common.program import find_program
from maypole.runner import messages
from maypole.runner.errors import RankError
from maypole.runner.progress import PERIOD, Progress

# maypolerun needs at most 2 s to end a job (docs/design.md), but longer on a slow machine.
_END_SECONDS = 15.0
_PACKAGE_DIRECTORY = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def run_job(call: bytes, options: list[str], executable: Optional[str], show_progress: bool = False,
            ranks: Optional[int] = None) -> list[Any]:
    """Runs the call in all ranks; returns their results by rank.

    ranks: their number, for the progress; None if it may change. Raises
    RankError if a rank fails, RuntimeError if the job cannot be started.
    """
    with tempfile.TemporaryDirectory(prefix="maypole-run-") as directory:  # has mode 0700
        with open(os.open(os.path.join(directory, "function"), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as f:
            f.write(call)
        start = f"import sys; sys.path.append({_PACKAGE_DIRECTORY!r}); from maypole.runner import rank; rank.main()"
        endpoints = _endpoints_file(options) or os.path.join(directory, "endpoints")
        more = ["--endpoints-file", endpoints] if show_progress else []
        status = _run_maypolerun([find_program("maypolerun"), "--function-directory", directory, *options, *more, "--",
                                  executable or sys.executable, "-c", start],
                                 Progress(endpoints, ranks) if show_progress else None)
        answers = _read_answers(directory)
        if status != 0:
            raise _error(directory, status, answers)
        return results_of(answers)


def _endpoints_file(options: list[str]) -> Optional[str]:
    """Returns the endpoints file that the user has also asked for; None if there is none."""
    for option, following in zip(options, [*options[1:], None]):
        name, equals, value = option.partition("=")
        if name == "--endpoints-file":
            return value if equals else following
    return None


def _is_descriptor(stream: Any, original: Any, number: int) -> bool:
    """Whether output to the descriptor appears where `stream` shows it.

    It does not in a notebook, or if a test captures sys.stdout.
    """
    try:
        return stream is original and stream.fileno() == number
    except (AttributeError, OSError, ValueError):
        return False


def _run_maypolerun(command: list[str], progress: Optional[Progress]) -> int:
    """Runs maypolerun; returns its exit status. If the wait is interrupted, ends the job first."""
    wanted = {1: sys.stdout, 2: sys.stderr}
    originals = {1: sys.__stdout__, 2: sys.__stderr__}
    pipes = {}
    for number, stream in wanted.items():
        if stream is not None:
            stream.flush()
        if stream is None:
            pipes[number] = subprocess.DEVNULL
        elif progress is not None or not _is_descriptor(stream, originals[number], number):
            pipes[number] = subprocess.PIPE
    # A session of its own: only we get Ctrl-C on the terminal, and pass it on once.
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=pipes.get(1), stderr=pipes.get(2),
                               start_new_session=True)
    try:
        _forward(process, wanted, progress)
        status = process.wait()
        if progress is not None:
            progress.end("failed" if status else "ended")
        return status
    except BaseException:
        _end(process)
        if progress is not None:
            progress.end("interrupted")
        raise
    finally:
        for pipe in (process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()


def _forward(process: Any, wanted: dict[int, Any], progress: Optional[Progress]) -> None:
    """Writes the output from the pipes to sys.stdout and sys.stderr, in the caller's thread."""
    write = _write if progress is None else progress.write
    with selectors.DefaultSelector() as selector:
        for number, pipe in ((1, process.stdout), (2, process.stderr)):
            if pipe is not None:
                decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
                selector.register(pipe, selectors.EVENT_READ, (wanted[number], decoder))
        while selector.get_map():
            if progress is not None:
                progress.tick()
            for key, _ in selector.select(None if progress is None else PERIOD):
                stream, decoder = key.data
                data = os.read(key.fd, 65536)
                text = decoder.decode(data, final=not data)
                if text:
                    write(stream, text)
                if not data:
                    selector.unregister(key.fileobj)


def _write(stream: Any, text: str) -> None:
    stream.write(text)
    stream.flush()


def _end(process: Any) -> None:
    """Ends the job as Ctrl-C does; its remaining output is lost if it goes through pipes."""
    process.send_signal(signal.SIGINT)
    deadline = time.monotonic() + _END_SECONDS
    for pipe in (process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()
    try:
        process.wait(timeout=deadline - time.monotonic())
    except (subprocess.TimeoutExpired, KeyboardInterrupt):
        process.kill()  # its supervisor then ends the ranks
        process.wait()


def _read_answers(directory: str) -> dict[int, Optional[dict[str, Any]]]:
    """Returns the answers by process; None for an incomplete one."""
    answers = {}
    for name in os.listdir(directory):
        if name.startswith("result."):
            with open(os.path.join(directory, name), "rb") as f:
                answers[int(name[len("result."):])] = messages.decode_answer(f.read())
    return answers


def _error(directory: str, status: int, answers: dict[int, Optional[dict[str, Any]]]) -> RuntimeError:
    """Returns the exception for a failed job, about the rank that failed first."""
    try:
        with open(os.path.join(directory, "outcome"), encoding="utf-8", errors="replace") as f:
            first, _, cause = f.read().strip().partition("\n")
    except OSError:
        first, cause = "", ""
    cause = cause or f"the job ended with status {status}"
    process = int(first or -1)
    if process < 0:
        return RuntimeError(f"maypolerun: {cause}")
    return rank_error(process, cause, answers.get(process))


def rank_error(process: int, cause: str, answer: Optional[dict[str, Any]]) -> RankError:
    """Returns the exception for a failed process. cause: how it ended. answer: its answer before that, if any."""
    answer = answer or {}
    number = answer.get("rank")
    rank = process if number is None else number
    if "error" not in answer:
        return RankError(cause, rank)
    error = RankError(f"rank {rank}: {answer['error']} ({cause})\n\n{answer['traceback']}".rstrip(), rank,
                      answer["traceback"])
    error.__cause__ = _exception(answer)
    return error


def _exception(answer: dict[str, Any]) -> Optional[BaseException]:
    try:
        exception = messages.decode_value(answer["exception"])
    except Exception:  # its class is missing here, or was not pickled
        return None
    return exception if isinstance(exception, BaseException) else None


def results_of(answers: dict[int, Optional[dict[str, Any]]]) -> list[Any]:
    """Returns the results of a successful job, by rank.

    answers: by process; None for a process that succeeded with an incomplete answer. Raises RankError if a rank has no
    result.
    """
    by_rank = {}
    without_rank = []
    sizes = [0]
    for process in sorted(answers):
        answer = answers[process]
        if answer is None:
            raise RankError(f"rank {process} ended with status 0, but its result is incomplete", process)
        if "error" in answer:
            continue  # of an elastic job, which has replaced the process
        sizes.append(answer["size"] or 0)
        if answer["rank"] is None:
            without_rank.append(answer)
        else:
            by_rank[answer["rank"]] = answer
    for rank in range(max(sizes)):
        if rank not in by_rank:
            raise RankError(f"rank {rank} ended with status 0 without a result: it did not return from the function",
                            rank)
    ordered = [by_rank[rank] for rank in sorted(by_rank)] + without_rank
    if not ordered:
        raise RankError("all ranks ended with status 0 without a result: none has returned from the function")
    return [_result(answer) for answer in ordered]


def _result(answer: dict[str, Any]) -> Any:
    try:
        return messages.decode_value(answer["result"])
    except Exception as error:
        rank = answer["rank"]
        raise RankError(f"the result of rank {rank} cannot be unpickled here: {type(error).__name__}: {error}",
                        rank) from error
