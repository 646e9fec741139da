"""What RayExecutor.run() and execute() raise when a rank fails."""

import re
from typing import Any, NamedTuple

from maypole.common.exceptions import HorovodInternalError
from maypole.ray.cluster import get_ray
from maypole.runner.errors import RankError

# How Ray's text continues where Ray can only guess at the cause.
_GUESSES = re.compile(" (?:Some common causes|There are some potential root causes)")


class Rank(NamedTuple):
    """A rank in messages. node: the node's name; pid: of its process on that node."""

    rank: int
    node: str
    pid: int

    def __str__(self) -> str:
        return f"rank {self.rank} (node {self.node}, pid {self.pid})"


def several(ranks: list[int]) -> str:
    """For messages: rank 3, or ranks 0,1."""
    return f"rank{'s' if len(ranks) > 1 else ''} {','.join(map(str, sorted(ranks)))}"


def describe(error: BaseException) -> str:
    """Describes Ray's error of a rank, in one line."""
    ray = get_ray()
    if isinstance(error, ray.exceptions.RayActorError):
        text = _GUESSES.split(str(error).strip().splitlines()[-1])[0]
        how = "was lost" if type(error).__name__ == "ActorUnavailableError" else "died"
        return f"{how}: {text}"
    cause = error.cause if isinstance(error, ray.exceptions.RayTaskError) else error
    return f"{type(cause).__name__}: {cause}".rstrip(": ")


def rank_error(failures: list[tuple[Rank, BaseException]], also: str = "") -> RankError:
    """Returns the exception for these failures, which are in order of time. also: appended text.

    It is also an instance of the class of Ray's error for the rank whose
    failure has caused the others', so `except ray.exceptions.RayActorError`
    works, and so does `except ValueError` if the function has raised that.
    """
    rank, error = min(failures, key=lambda failure: _order(failure[1]))
    lines = [f"{rank} {describe(error)}" if _died(error) else f"{rank}: {describe(error)}"]
    others: dict[str, list[int]] = {}
    for other, failure in failures:
        if other is not rank:
            others.setdefault(describe(failure), []).append(other.rank)
    lines += [f"{several(ranks)}: {text}" for text, ranks in others.items()]
    lines += [also] if also else []
    return _instance("\n".join(lines), rank.rank, "" if _died(error) else str(error), error)


def _died(error: BaseException) -> bool:
    return isinstance(error, get_ray().exceptions.RayActorError)


def _order(error: BaseException) -> int:
    """Sorts dead ranks and exceptions of the function before the errors that these cause on other ranks."""
    if _died(error):
        return 0
    return 2 if isinstance(getattr(error, "cause", None), HorovodInternalError) else 1


def _instance(message: str, rank: int, traceback: str, error: BaseException) -> RankError:
    made = RankError(message, rank, traceback)
    try:
        kind = type("RankError", (RankError, type(error)), {"__str__": RuntimeError.__str__, "__module__": __name__,
                                                            "__reduce__": _reduce})
        both: Any = kind.__new__(kind, message)
        RankError.__init__(both, message, rank, traceback)
        both.cause = getattr(error, "cause", None)
        made = both
    except TypeError:  # two classes in C that cannot be combined
        pass
    made.__cause__ = error
    return made


def _reduce(error: Any) -> Any:
    return _instance, (error.args[0], error.rank, error.traceback, error.__cause__)
