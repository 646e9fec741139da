"""Finds the nodes that an elastic job may use, and the number of ranks on each.

A discovery is an object with find_available_hosts_and_slots(), which returns
{host: slots}; a host is a Ray node's IP address, its host name or Ray's id of
it. The executor calls it once a second, in the driver.
"""

import collections
import random
import time
from typing import Any, Optional

from maypole.ray import cluster


class RayHostDiscovery:
    """Finds all living nodes of the Ray cluster, so the job follows Ray's autoscaler.

    A node has as many slots as its resources allow, regardless of what else runs there.
    """

    def __init__(self, use_gpu: bool = False, cpus_per_worker: float = 1, gpus_per_worker: float = 1):
        self.use_gpu = use_gpu
        self.cpus_per_worker = cpus_per_worker
        self.gpus_per_worker = gpus_per_worker or 1

    def find_available_hosts_and_slots(self) -> dict[str, int]:
        """{IP address: slots}; {id: slots} of nodes that share an address."""
        nodes = cluster.living_nodes()
        count = collections.Counter(node.address for node in nodes)
        slots = {node.address if count[node.address] == 1 else node.node_id: self._slots(node.resources)
                 for node in nodes}
        return {host: number for host, number in slots.items() if number}

    def _slots(self, resources: dict[str, float]) -> int:
        slots = resources.get("CPU", 0) // self.cpus_per_worker
        if self.use_gpu:
            slots = min(slots, resources.get("GPU", 0) // self.gpus_per_worker)
        return int(slots)


class TestDiscovery(RayHostDiscovery):
    """RayHostDiscovery that hides and shows nodes at random, to try a script's elasticity.

    It keeps at least min_hosts and shows at most max_hosts; every change_frequency_s seconds something changes.
    """

    __test__ = False  # not a test, although its name looks like one to pytest

    def __init__(self, min_hosts: int, max_hosts: int, change_frequency_s: float, use_gpu: bool = False,
                 cpus_per_worker: int = 1, gpus_per_worker: int = 1, verbose: bool = True, _graceful: bool = True):
        super().__init__(use_gpu, cpus_per_worker, gpus_per_worker)
        if not _graceful:
            raise NotImplementedError("TestDiscovery(_graceful=False), which kills nodes: run `ray stop` on one")
        self._min_hosts = min_hosts
        self._max_hosts = max_hosts
        self._change_frequency_s = change_frequency_s
        self._verbose = verbose
        self._changed_at: Optional[float] = None
        self._hidden: set[str] = set()

    def find_available_hosts_and_slots(self) -> dict[str, int]:
        """The hosts and slots after the next change of the test."""
        hosts = super().find_available_hosts_and_slots()
        now = time.monotonic()
        if self._changed_at is None:
            self._changed_at = now
        elif now - self._changed_at >= self._change_frequency_s:
            self._changed_at = now
            self._change(hosts)
        shown = {host: slots for host, slots in hosts.items() if host not in self._hidden}
        if self._verbose:
            print(f"Total hosts: {len(hosts)}, remaining: {len(shown)} -- {shown}")
        return shown

    def _change(self, hosts: dict[str, int]) -> None:
        self._hidden &= set(hosts)
        shown = sorted(set(hosts) - self._hidden)
        hide = random.random() < 0.5
        if len(shown) <= self._min_hosts:
            hide = False
        elif len(shown) >= self._max_hosts:
            hide = True
        choice = shown if hide else sorted(self._hidden)
        if choice:
            self._hidden ^= {random.choice(choice)}


def nodes_of(found: dict[str, int], nodes: list[cluster.RayNode]) -> dict[str, int]:
    """{Ray's id: slots} of a discovery's result, without hosts that are not in the cluster (any more)."""
    slots: dict[str, int] = {}
    for host, number in found.items():
        for node in nodes:
            if host in (node.node_id, node.address, node.host) and node.node_id not in slots:
                slots[node.node_id] = int(number)
                break
    return slots


def check(discovery: Any) -> Any:
    """Returns `discovery`. Raises ValueError if it is not one."""
    if not callable(getattr(discovery, "find_available_hosts_and_slots", None)):
        raise ValueError(f"override_discovery=False, but settings.discovery is {discovery!r}: it must be an object "
                         "with find_available_hosts_and_slots(), which returns {host: slots}")
    return discovery
