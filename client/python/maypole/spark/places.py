"""Numbers the ranks of a job on Spark, host by host, and says what a rank's environment is. Pure."""

import os
from collections.abc import Mapping
from typing import Any

from maypole.common import driver
from maypole.common.driver import Place

# Variables of the driver that are paths of its machine, or that the job has itself.
_OWN = ("MAYPOLE_TOKEN", "MAYPOLE_START_TIMEOUT", "MAYPOLE_COORDINATOR", "MAYPOLE_SECRET_FILE", "MAYPOLE_BIN",
        "MAYPOLE_LIBRARY", "MAYPOLE_RUNTIME_DIR", "HOROVOD_START_TIMEOUT", "HOROVOD_SPARK_START_TIMEOUT")


def number(hosts: Mapping[int, Any]) -> dict[int, Place]:
    """The place of each task, given its host (or whatever tells hosts apart).

    Hosts come in the order of their first tasks, tasks of a host in the order of their indices; so the task with the
    lowest index has rank 0.
    """
    by_host: dict[Any, list[int]] = {}
    for index in sorted(hosts):
        by_host.setdefault(hosts[index], []).append(index)
    out: dict[int, Place] = {}
    for cross, tasks in enumerate(by_host.values()):
        for local, index in enumerate(tasks):
            out[index] = Place(len(out), len(hosts), local, len(tasks), cross, len(by_host))
    return out


def variables(place: Place, host: str) -> dict[str, str]:
    """What a rank at this place finds in its environment; scripts for Horovod may read its own names, too."""
    return {**place.variables(), "HOROVOD_HOSTNAME": host, "MAYPOLE_NODE": host}


def elastic_variables(least: int, most: int, host: str) -> dict[str, str]:
    """The same for a process of an elastic job, which the coordinator numbers."""
    return {
        "MAYPOLE_ELASTIC": "1",
        "MAYPOLE_MIN_SIZE": str(least),
        "MAYPOLE_MAX_SIZE": str(most),
        "HOROVOD_ELASTIC": "1",
        "HOROVOD_HOSTNAME": host,
        "MAYPOLE_NODE": host
    }


def forwarded(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The driver's settings of Maypole and Horovod, which hold for the ranks, too."""
    return driver.settings(environ, _OWN)
