"""What drivers that start a job's ranks themselves, Ray's and Spark's, put into the ranks' environment. Pure.

maypolerun does the same for the ranks that it starts.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

_PREFIXES = ("MAYPOLE_", "HOROVOD_")


class Place(NamedTuple):
    """A rank's place in its job, as MAYPOLE_RANK and the like say it; cross: of its node among the job's nodes."""

    rank: int
    size: int
    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int

    def variables(self) -> dict[str, str]:
        """The place as Maypole's variables, and as Horovod's, which scripts may read."""
        return {prefix + name.upper(): str(value) for prefix in _PREFIXES for name, value in self._asdict().items()}


# The driver may be a rank of another job; these variables are that job's.
_OF_ONE_JOB = {prefix + name.upper() for prefix in _PREFIXES for name in (*Place._fields, "ELASTIC")}
_OF_ONE_JOB |= {"MAYPOLE_" + name for name in
                ("AGENT", "MIN_SIZE", "MAX_SIZE", "JOB", "NODE", "FUNCTION", "RESULT_FD", "FINISHED_FILE")}
_OF_ONE_JOB |= {"HOROVOD_HOSTNAME"}


def settings(environ: Mapping[str, str], own: Sequence[str] = ()) -> dict[str, str]:
    """The driver's MAYPOLE_* and HOROVOD_* variables that all ranks get, as those of maypolerun do.

    Args:
        environ: the driver's environment.
        own: variables that are the driver's own besides: paths of its machine, say.
    """
    return {name: value for name, value in environ.items()
            if name.startswith(_PREFIXES) and name not in _OF_ONE_JOB and name not in own}
