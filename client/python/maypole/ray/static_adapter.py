"""A job whose number of ranks is fixed: the ranks live from start() to shutdown()."""

import os
import secrets
from typing import Any, Callable, Optional

from maypole.common import driver
from maypole.ray import cluster, placement, shim
from maypole.ray.errors import Rank
from maypole.ray.gathering import Callbacks, Gathering
from maypole.ray.nodes import Daemons
from maypole.ray.worker import BaseHorovodWorker

_START_SECONDS = 120  # for init(): MAYPOLE_START_TIMEOUT's default
_LEAVE_SECONDS = 5.0


def make_daemons(settings: Any, variables: dict[str, str]) -> Daemons:
    """Returns the Daemons of a job with these settings (MiniSettings, or an object with its attributes)."""
    return Daemons(variables, getattr(settings, "nics", None) or (), int(getattr(settings, "timeout_s", 30)),
                   (getattr(settings, "verbose", 1) or 0) >= 2)


def variables_of_job(settings: Any, extra_env_vars: Optional[dict]) -> dict[str, str]:
    """Returns the variables of all ranks; chooses the job's name and token."""
    seconds = max(_START_SECONDS, int(getattr(settings, "timeout_s", 30)))
    return placement.job_variables(driver.settings(os.environ), extra_env_vars, seconds, secrets.token_hex(16))


class StaticAdapter:
    """See RayExecutor. resources: {"CPU": 1, ...} of a rank."""

    def __init__(self, settings: Any, num_workers: Optional[int], num_hosts: Optional[int], num_workers_per_host: int,
                 resources: dict[str, float], use_current_placement_group: bool):
        self._settings = settings
        self._num_workers = num_workers
        self._num_hosts = num_hosts or 0
        self._per_host = num_workers_per_host
        self._resources = resources
        self._use_current_group = use_current_placement_group
        self._group: Any = None  # made here
        self._daemons: Optional[Daemons] = None
        self._lost: list[Any] = []
        self._ranks: list[Rank] = []
        self.workers: list[Any] = []  # by rank

    def start(self, executable_cls: Optional[type], executable_args: Optional[list], executable_kwargs: Optional[dict],
              extra_env_vars: Optional[dict]) -> None:
        """Starts the job's daemons and workers."""
        ray = cluster.get_ray()
        self.workers = self._make_workers()
        facts = self._facts()
        # Horovod numbers ranks by bundle, so a node's ranks need not be consecutive there.
        places = driver.number({index: fact["node_id"] for index, fact in enumerate(facts)})
        self.workers = [self.workers[index] for index in places]
        facts = [facts[index] for index in places]
        variables = variables_of_job(self._settings, extra_env_vars)
        ray.get([worker.update_env_vars.remote({**variables, **own}) for worker, own in
                 zip(self.workers, self._start_daemons(list(places.values()), facts, variables))])
        ray.get([worker.start_executable.remote(executable_cls, executable_args, executable_kwargs)
                 for worker in self.workers])

    def _make_workers(self) -> list[Any]:
        """Makes the actors; returns them by bundle."""
        count = self._num_workers or self._num_hosts * self._per_host
        group = cluster.current_group() if self._use_current_group else None
        bundles = [-1] * count
        if group is None:
            seconds = getattr(self._settings, "placement_group_timeout_s", 100)
            if self._num_workers:
                self._group = cluster.make_group([dict(self._resources)] * count, "PACK", seconds)
                bundles = list(range(count))
            else:
                of_host = {name: amount * self._per_host for name, amount in self._resources.items()}
                self._group = cluster.make_group([of_host] * self._num_hosts, "STRICT_SPREAD", seconds)
                bundles = [index // self._per_host for index in range(count)]
            group = self._group
        actor = cluster.get_ray().remote(BaseHorovodWorker)
        return [actor.options(num_cpus=self._resources["CPU"], num_gpus=self._resources.get("GPU", 0),
                              scheduling_strategy=cluster.in_bundle(group, bundle)).remote()
                for bundle in bundles]

    def _facts(self) -> list[dict[str, Any]]:
        """Returns what the actors report about themselves, once all have started.

        A placement group that was not made here may have no room for them.
        """
        ray = cluster.get_ray()
        refs = [worker.where.remote(shim.in_use()) for worker in self.workers]
        seconds = getattr(self._settings, "placement_group_timeout_s", 100)
        started, missing = ray.wait(refs, num_returns=len(refs), timeout=seconds)
        if not missing:
            return ray.get(refs)
        where = "" if self._group is not None else (
            " in the placement group that this process runs in: make that larger, or give "
            "use_current_placement_group=False")
        raise TimeoutError(f"{len(started)} of {len(refs)} ranks, each with {self._resources}, have started within "
                           f"{seconds:g} s (placement_group_timeout_s){where}")

    def _start_daemons(self, places: list[driver.Place], facts: list[dict[str, Any]], variables: dict[str, str]
                      ) -> list[dict[str, str]]:
        """Returns the variables of each rank, by rank. places, facts: of each."""
        ray = cluster.get_ray()
        known = {node.node_id: node for node in cluster.living_nodes()}
        used = {fact["node_id"]: known[fact["node_id"]] for fact in facts}
        self._daemons = make_daemons(self._settings, variables)
        self._daemons.open(known[facts[0]["node_id"]], [node.address for node in used.values()])
        nodes = {node_id: self._daemons.node(node) for node_id, node in used.items()}
        agents = {node_id: self._daemons.start_agent(node) for node_id, node in nodes.items()}
        sockets = {}
        for node_id, agent in agents.items():
            try:
                sockets[node_id] = ray.get(agent)
            except ray.exceptions.RayTaskError as error:
                raise RuntimeError(f"node {nodes[node_id].name}: {error.cause}") from error
        if self._daemons.starts_any():
            self._lost = [node.actor.wait_lost.remote() for node in nodes.values()]
        self._ranks = [Rank(place.rank, nodes[fact["node_id"]].name, fact["pid"]) for place, fact in zip(places, facts)]
        return [self._variables(place, fact, facts, sockets, nodes) for place, fact in zip(places, facts)]

    @staticmethod
    def _variables(place: driver.Place, fact: dict[str, Any], facts: list[dict[str, Any]], sockets: dict[str, str],
                   nodes: dict[str, Any]) -> dict[str, str]:
        node_id = fact["node_id"]
        own = {"MAYPOLE_AGENT": sockets[node_id], **driver.variables_on(nodes[node_id].name, fact["host"]),
               **place.variables()}
        devices = placement.visible_devices([other["gpus"] for other in facts if other["node_id"] == node_id])
        if devices is not None:
            own["CUDA_VISIBLE_DEVICES"] = devices
        return own

    def execute(self, fn: Callable[[Any], Any], callbacks: Optional[list[Callable]]) -> list[Any]:
        """Runs fn(worker) in all ranks; returns their results by rank."""
        calling = Callbacks(callbacks)
        try:
            for worker in self.workers:
                worker.set_queue.remote(calling.queue)
            refs = [worker.execute.remote(fn) for worker in self.workers]
            return Gathering(refs, self._ranks, self._lost, lambda rank: self.workers[rank].leave.remote(),
                             calling).results()
        finally:
            calling.end()

    def run_remote(self, fn: Callable[[Any], Any]) -> list[Any]:
        """Starts fn(worker) in all ranks; returns Ray's references to their results by rank."""
        return [worker.execute.remote(fn) for worker in self.workers]

    def execute_single(self, fn: Callable[[Any], Any]) -> Any:
        """Runs fn(worker) in rank 0; returns its result."""
        return cluster.get_ray().get(self.workers[0].execute.remote(fn))

    def shutdown(self) -> None:
        """Ends the workers and the job's daemons."""
        ray = cluster.get_ray()
        leaving = [worker.leave.remote() for worker in self.workers]
        if leaving:
            ray.wait(leaving, num_returns=len(leaving), timeout=_LEAVE_SECONDS)
        for worker in self.workers:
            ray.kill(worker)
        self.workers, self._ranks, self._lost = [], [], []
        if self._daemons is not None:
            self._daemons.stop()
            self._daemons = None
        if self._group is not None:
            cluster.remove_group(self._group)
            self._group = None
