"""The environment that drivers which start ranks themselves, Ray's and Spark's, give the ranks. Pure.

maypolerun does the same for the ranks that it starts.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Optional

_PREFIXES = ("MAYPOLE_", "HOROVOD_")


class Place(NamedTuple):
    """A rank's place in its job, as in MAYPOLE_RANK and the like; cross: that of its node among the job's nodes."""

    rank: int
    size: int
    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int

    def variables(self, prefixes: Sequence[str] = _PREFIXES) -> dict[str, str]:
        """The place in Maypole's variables, and in Horovod's, which scripts may read."""
        return {prefix + name.upper(): str(value) for prefix in prefixes for name, value in self._asdict().items()}


def number(nodes: Mapping[int, Any]) -> dict[int, Place]:
    """Returns the place of each process, by index, given its node (or any value that distinguishes nodes).

    Nodes come in the order of their first processes, processes of a node in the order of their indices, as with
    maypolerun; so the process with the lowest index has rank 0.
    """
    by_node: dict[Any, list[int]] = {}
    for index in sorted(nodes):
        by_node.setdefault(nodes[index], []).append(index)
    out: dict[int, Place] = {}
    for cross, processes in enumerate(by_node.values()):
        for local, index in enumerate(processes):
            out[index] = Place(len(out), len(nodes), local, len(processes), cross, len(by_node))
    return out


def variables_on(node: str, host: str) -> dict[str, str]:
    """The variables of ranks on this node; scripts for Horovod may read Horovod's name."""
    return {"MAYPOLE_NODE": node, "HOROVOD_HOSTNAME": host}


def elastic_variables(least: int, most: Optional[int]) -> dict[str, str]:
    """Replaces Place.variables() in an elastic job, where the coordinator assigns the place."""
    variables = {"MAYPOLE_ELASTIC": "1", "HOROVOD_ELASTIC": "1", "MAYPOLE_MIN_SIZE": str(least)}
    return variables if most is None else {**variables, "MAYPOLE_MAX_SIZE": str(most)}


# The driver may be a rank of another job; these variables are that job's.
_OF_ONE_JOB = {prefix + name.upper() for prefix in _PREFIXES for name in (*Place._fields, "ELASTIC")}
_OF_ONE_JOB |= {"MAYPOLE_" + name for name in
                ("AGENT", "MIN_SIZE", "MAX_SIZE", "JOB", "NODE", "FUNCTION", "RESULT_FD", "FINISHED_FILE")}
_OF_ONE_JOB |= {"HOROVOD_HOSTNAME"}


def settings(environ: Mapping[str, str], own: Sequence[str] = ()) -> dict[str, str]:
    """The driver's MAYPOLE_* and HOROVOD_* variables that all ranks get, as those of maypolerun do.

    Args:
        environ: the driver's environment.
        own: further variables that are only for the driver, for example paths on its machine.
    """
    return {name: value for name, value in environ.items()
            if name.startswith(_PREFIXES) and name not in _OF_ONE_JOB and name not in own}
