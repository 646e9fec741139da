"""Numbers the ranks of a job on Spark, host by host, and says what a rank's environment is. Pure."""

import os
from typing import Any, Dict, List, Mapping, NamedTuple

# Variables of the driver that are its own place in another job, or paths of its machine.
_NOT_FORWARDED = {
    f"MAYPOLE_{name}" for name in
    ("RANK SIZE LOCAL_RANK LOCAL_SIZE CROSS_RANK CROSS_SIZE ELASTIC MIN_SIZE MAX_SIZE JOB TOKEN AGENT NODE "
     "START_TIMEOUT "
     "COORDINATOR SECRET_FILE BIN LIBRARY RUNTIME_DIR FUNCTION RESULT_FD").split()
}
_NOT_FORWARDED |= {
    f"HOROVOD_{name}" for name in (
        "RANK SIZE LOCAL_RANK LOCAL_SIZE CROSS_RANK CROSS_SIZE HOSTNAME ELASTIC START_TIMEOUT SPARK_START_TIMEOUT"
    ).split()
}


class Place(NamedTuple):
    """A rank's numbers, as Horovod means them; cross: the host's number, and how many hosts there are."""

    rank: int
    size: int
    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int


def number(hosts: Mapping[int, Any]) -> Dict[int, Place]:
    """The place of each task, given its host (or whatever tells hosts apart).

    Hosts come in the order of their first tasks, tasks of a host in the order of their indices; so the task with the
    lowest index has rank 0.
    """
    by_host: Dict[Any, List[int]] = {}
    for index in sorted(hosts):
        by_host.setdefault(hosts[index], []).append(index)
    out: Dict[int, Place] = {}
    for cross, tasks in enumerate(by_host.values()):
        for local, index in enumerate(tasks):
            out[index] = Place(len(out), len(hosts), local, len(tasks), cross, len(by_host))
    return out


def variables(place: Place, host: str) -> Dict[str, str]:
    """What a rank at this place finds in its environment; scripts for Horovod may read its own names, too."""
    out = {}
    for name, value in place._asdict().items():
        out[f"MAYPOLE_{name.upper()}"] = out[f"HOROVOD_{name.upper()}"] = str(value)
    return dict(out, HOROVOD_HOSTNAME=host, MAYPOLE_NODE=host)


def elastic_variables(least: int, most: int, host: str) -> Dict[str, str]:
    """The same for a process of an elastic job, which the coordinator numbers."""
    return {
        "MAYPOLE_ELASTIC": "1",
        "MAYPOLE_MIN_SIZE": str(least),
        "MAYPOLE_MAX_SIZE": str(most),
        "HOROVOD_ELASTIC": "1",
        "HOROVOD_HOSTNAME": host,
        "MAYPOLE_NODE": host
    }


def forwarded(environ: Mapping[str, str] = os.environ) -> Dict[str, str]:
    """The driver's settings of Maypole and Horovod, which hold for the ranks, too."""
    return {
        name: value
        for name, value in environ.items()
        if name.startswith(("MAYPOLE_", "HOROVOD_")) and name not in _NOT_FORWARDED
    }
