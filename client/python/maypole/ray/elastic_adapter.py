"""An elastic job: run() starts ranks on the nodes of the cluster, and replaces them, until the function returns."""

import dataclasses
import logging
import os
import signal
import time
from typing import Any, Callable, Optional

from maypole.common import driver
from maypole.common.elastic import ASKED_TO_LEAVE
from maypole.common.elastic_driver import Action, ElasticDriver
from maypole.ray import cluster, discovery, shim
from maypole.ray.errors import describe
from maypole.ray.gathering import Callbacks
from maypole.ray.nodes import Node
from maypole.ray.static_adapter import make_daemons, variables_of_job
from maypole.ray.worker import BaseHorovodWorker, Ended, failed_after_its_training
from maypole.runner.errors import RankError

_log = logging.getLogger("maypole.ray")

_DISCOVERY_SECONDS = 1.0  # as maypolerun, and Horovod
_COOLDOWN = (1, 60)
_ANSWER_SECONDS = 5.0  # of a node, in vain if it is lost


class ElasticAdapter:
    """See RayExecutor. resources: {"CPU": 1, ...} of a rank."""

    def __init__(self, settings: Any, min_workers: int, max_workers: Optional[int], resources: dict[str, float],
                 reset_limit: Optional[int], cooldown_range: Optional[tuple[int, int]], elastic_timeout: float,
                 override_discovery: bool):
        self.settings = settings
        self.least, self.most = min_workers, max_workers
        self.resources = resources
        self.reset_limit = reset_limit
        self.cooldown = cooldown_range or _COOLDOWN
        self.patience = elastic_timeout
        if override_discovery:
            settings.discovery = discovery.RayHostDiscovery("GPU" in resources, resources["CPU"],
                                                            resources.get("GPU", 0.0))
        self.discovery = discovery.check(settings.discovery)
        self.executable: tuple = (None, None, None)
        self._extra: Optional[dict] = None

    def start(self, executable_cls: Optional[type], executable_args: Optional[list], executable_kwargs: Optional[dict],
              extra_env_vars: Optional[dict]) -> None:
        """Keeps the arguments of the workers' constructor; the workers start in execute()."""
        self.executable = (executable_cls, executable_args, executable_kwargs)
        self._extra = extra_env_vars

    def execute(self, fn: Callable[[Any], Any], callbacks: Optional[list[Callable]]) -> list[Any]:
        """Runs fn(worker) in all ranks, which may come and go; returns their results."""
        calling = Callbacks(callbacks)
        try:
            return _Run(self, variables_of_job(self.settings, self._extra), fn, calling).results()
        finally:
            calling.end()

    def run_remote(self, fn: Callable[[Any], Any]) -> list[Any]:
        """Raises NotImplementedError."""
        raise NotImplementedError("run_remote() of an elastic job: its ranks come and go, so their number, and that of "
                                  "the results, is not known; use run()")

    def execute_single(self, fn: Callable[[Any], Any]) -> Any:
        """Raises NotImplementedError."""
        raise NotImplementedError("execute_single() of an elastic job: its ranks live only in run() and execute()")

    def shutdown(self) -> None:
        """Does nothing: no rank lives outside run()."""


@dataclasses.dataclass
class _Process:
    """A rank's actor. pid: None until it runs. finished_file: a path; exists if it has trained to the end; or empty."""

    actor: Any
    node: Node
    finished_file: str
    deadline: float
    pid: Optional[int] = None
    late: bool = False
    asked: bool = False  # to leave


class _Run:
    """One run of a function. Everything happens in results(), in one thread."""

    def __init__(self, adapter: ElasticAdapter, variables: dict[str, str], fn: Callable[[Any], Any],
                 callbacks: Callbacks):
        """variables: of all ranks."""
        self._adapter = adapter
        self._policy = ElasticDriver(adapter.least, adapter.least, adapter.most, adapter.reset_limit, adapter.cooldown,
                                     adapter.patience)
        self._daemons = make_daemons(adapter.settings, variables)
        self._variables = variables
        self._fn = fn
        self._callbacks = callbacks
        self._seconds = float(getattr(adapter.settings, "timeout_s", 30))  # limit for Ray to start a rank
        self._actor = cluster.get_ray().remote(BaseHorovodWorker)
        self._ray_nodes: dict[str, cluster.RayNode] = {}
        self._nodes: dict[int, Node] = {}  # by the policy's numbers
        self._names: dict[str, str] = {}  # of nodes, by Ray's id, which the policy uses as host
        self._agents: dict[int, str] = {}  # by node
        self._processes: dict[int, _Process] = {}
        self._waiting: dict[Any, Callable[[Any], list[Action]]] = {}  # ObjectRefs, and how to handle each
        self._ended: list[Ended] = []
        self._last_error: Optional[BaseException] = None
        self._last_end = ""
        self._look_at = 0.0
        self._found: Optional[dict[str, int]] = None
        self._complained = ""

    def results(self) -> list[Any]:
        """Runs the job; returns the results of the ranks that were there at the end, by rank."""
        try:
            here = cluster.this_node()
            (address,) = [node.address for node in cluster.living_nodes() if node.node_id == here]
            self._daemons.open_here(address)
            while not (self._policy.finishing() and self._policy.running() == 0):
                self._turn()
            self._callbacks.call_all()
        finally:
            for process in self._processes.values():
                cluster.get_ray().kill(process.actor)
            self._daemons.stop()
        ended = [end for end in self._ended if not end.left]
        return [end.value for end in sorted(ended, key=lambda end: (end.rank is None, end.rank or 0))]

    def _turn(self) -> None:
        now = time.monotonic()
        if now >= self._look_at:
            self._look_at = now + _DISCOVERY_SECONDS
            self._perform(self._policy.on_hosts(self._find(), now))
            self._give_up_late(now)
        lost = self._daemons.coordinator_lost()
        if lost:
            raise RuntimeError(f"the job cannot go on: {lost}")
        for ref in self._wait(max(0.0, self._look_at - time.monotonic())):
            self._perform(self._waiting.pop(ref)(ref))
        self._callbacks.call_all()
        self._perform(self._policy.on_time(time.monotonic()))

    def _wait(self, seconds: float) -> list[Any]:
        polling = self._callbacks.poll_seconds()
        seconds = seconds if polling is None else min(seconds, polling)
        if not self._waiting:
            time.sleep(seconds)
            return []
        done, _ = cluster.get_ray().wait(list(self._waiting), num_returns=1, timeout=seconds)
        return done

    def _find(self) -> dict[str, int]:
        """{Ray's id: slots}. If the discovery fails, the living nodes stay as they are."""
        nodes = cluster.living_nodes()
        self._ray_nodes = {node.node_id: node for node in nodes}
        try:
            self._found = dict(self._adapter.discovery.find_available_hosts_and_slots())
            self._complained = ""
        except Exception as error:  # raised by the user's code
            if self._found is None:
                raise
            if self._complained != str(error):
                _log.warning("maypole: the discovery of hosts has failed: %s: %s; the hosts stay as they are",
                             type(error).__name__, error)
            self._complained = str(error)
        return discovery.nodes_of(self._found, nodes)

    # --- Actions of the policy

    def _perform(self, actions: list[Action]) -> None:
        for action in actions:
            getattr(self, "_do_" + action.kind)(action)

    def _do_tell(self, action: Action) -> None:
        _log.warning("maypole: %s", self._named(action.text))

    def _named(self, text: str) -> str:
        """Replaces Ray's ids in `text` by the nodes' names."""
        for node_id, name in self._names.items():
            text = text.replace(node_id, name)
        return text

    def _do_start_node(self, action: Action) -> None:
        node = self._nodes[action.node] = self._daemons.node(self._ray_nodes[action.text])
        self._names[action.text] = node.name
        self._waiting[self._daemons.start_agent(node)] = lambda ref: self._on_agent(action.node, ref)

    def _do_stop_node(self, action: Action) -> None:
        self._daemons.forget(self._nodes.pop(action.node))

    def _do_start_process(self, action: Action) -> None:
        node, adapter, number = self._nodes[action.node], self._adapter, action.process
        resources = adapter.resources
        actor = self._actor.options(num_cpus=resources["CPU"], num_gpus=resources.get("GPU", 0),
                                    scheduling_strategy=cluster.on_node(node.ray_node.node_id)).remote()
        agent = self._agents[action.node]
        # In the directory of an agent of ours, which is removed with the agent.
        file = f"{os.path.dirname(agent)}/finished.{number}" if self._daemons.starts_any() else ""
        self._processes[number] = _Process(actor, node, file, time.monotonic() + self._seconds)
        variables = {**self._variables, "MAYPOLE_FINISHED_FILE": file, "MAYPOLE_AGENT": agent,
                     **driver.variables_on(node.name, node.ray_node.host),
                     **driver.elastic_variables(adapter.least, adapter.most)}
        self._waiting[actor.where.remote(shim.in_use())] = lambda ref: self._on_start(number, ref)
        self._waiting[actor.execute_elastic.remote(self._fn, variables, adapter.executable, self._callbacks.queue)
                      ] = lambda ref: self._on_end(number, ref)

    def _do_signal_process(self, action: Action) -> None:
        process = self._processes[action.process]
        process.asked = True
        if process.pid is None or action.value == signal.SIGKILL:
            cluster.get_ray().kill(process.actor)
        else:
            process.node.actor.signal.remote(process.pid, action.value)

    def _do_process_failed(self, _action: Action) -> None:
        raise RankError(self._last_end) from self._last_error

    def _do_end_badly(self, action: Action) -> None:
        raise RankError(self._named(action.text)) from self._last_error

    # --- Events

    def _on_agent(self, number: int, ref: Any) -> list[Action]:
        ray = cluster.get_ray()
        try:
            self._agents[number] = ray.get(ref)
        except ray.exceptions.RayError as error:
            return self._on_node_lost(number, describe(error))
        if number in self._nodes:
            self._waiting[self._nodes[number].actor.wait_lost.remote()] = lambda lost: self._on_lost(number, lost)
        return self._policy.on_node_ready(number, time.monotonic())

    def _on_lost(self, number: int, ref: Any) -> list[Action]:
        try:
            why = cluster.get_ray().get(ref)
        except cluster.get_ray().exceptions.RayError as error:
            why = describe(error)
        return self._on_node_lost(number, why)

    def _on_node_lost(self, number: int, why: str) -> list[Action]:
        node = self._nodes.pop(number, None)
        if node is None:
            return []  # it was stopped
        for process in [key for key, value in self._processes.items() if value.node is node]:
            cluster.get_ray().kill(self._processes.pop(process).actor)
        self._daemons.forget(node)
        return self._policy.on_node_lost(number, why, time.monotonic())

    def _on_start(self, number: int, ref: Any) -> list[Action]:
        try:
            self._processes[number].pid = cluster.get_ray().get(ref)["pid"]
        except (cluster.get_ray().exceptions.RayError, KeyError):
            pass  # it has ended, which its other ObjectRef reports
        return []

    def _on_end(self, number: int, ref: Any) -> list[Action]:
        ray = cluster.get_ray()
        process = self._processes.pop(number, None)
        if process is None:
            return []  # it was removed with its node
        how, status, finished = "", 0, False
        try:
            ended = ray.get(ref)
            finished = ended.finished
            if ended.departed:
                status, how = ASKED_TO_LEAVE, "has left the job, as SIGTERM asked"
            else:
                self._ended.append(ended)
        except Exception as error:  # what the function raises
            self._last_error = error
            finished = failed_after_its_training(error)
            if isinstance(error, ray.exceptions.RayActorError):
                finished = self._had_finished(process)
                status, how = -signal.SIGTERM if process.asked else -signal.SIGKILL, describe(error)
            else:
                status, how = 1, f"failed: {describe(error)}"
            if process.late:
                how = f"was not started by Ray within {self._seconds:g} s (timeout_s)"
        how += f" (pid {process.pid})"
        when = "after its training" if finished else "while others had finished"
        self._last_end = f"process {number} (host {process.node.name}) {how}, {when}"
        ray.kill(process.actor)
        return self._policy.on_process_end(number, status, finished, how, time.monotonic())

    def _had_finished(self, process: _Process) -> bool:
        """Whether a rank that has died had trained to the end."""
        ray = cluster.get_ray()
        try:
            asked = process.node.actor.has_file.remote(process.finished_file)
            return bool(process.finished_file) and ray.get(asked, timeout=_ANSWER_SECONDS)
        except ray.exceptions.RayError:  # its node is gone as well
            return False

    def _give_up_late(self, now: float) -> None:
        for process in self._processes.values():
            if process.pid is None and now >= process.deadline and not process.late:
                process.late = True
                cluster.get_ray().kill(process.actor)
