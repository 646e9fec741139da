"""The daemons of a job on its Ray nodes: an agent on each, a coordinator on one.

An actor on each node (NodeActor, without CPUs) starts the daemons, which end with
it (maypole.common.daemons). Ray ends the actor with the executor, the driver, or
the node, so the daemons also end with any of these.

As with other launchers, a job uses agents that already run on the nodes
(MAYPOLE_AGENT in extra_env_vars, or at their usual sockets), or a coordinator
that already runs (MAYPOLE_COORDINATOR).
"""

import os
import queue
import secrets
import socket
import struct
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, Optional

from maypole.common.daemons import Daemon
from maypole.common.hosts import address_of
from maypole.ray import cluster, placement

_COORDINATOR, _AGENT = "maypole-coordinator", "maypole-worker"
_STOP_SECONDS = 15.0


class Coordinator(NamedTuple):
    """How agents reach the job's coordinator.

    address: HOST:PORT, or several. secret: of a coordinator that the job has started. secret_file: on each node, of a
    coordinator that it has not started. running_agents: True if the nodes have permanent agents, so that no
    coordinator need be reached.
    """

    address: str = ""
    secret: str = ""
    secret_file: str = ""
    running_agents: bool = False


class NodeActor:
    """Starts daemons on this machine: a Ray actor on each node, or an object of the driver.

    variables: the job's variables; the daemons also get its MAYPOLE_*. Thread contract:
    one thread, while another one may be in wait_lost().
    """

    def __init__(self, variables: Mapping[str, str]):
        self._environ = dict(os.environ)
        self._environ.update({name: value for name, value in variables.items()
                              if name.startswith("MAYPOLE_") and name != "MAYPOLE_TOKEN"})
        # The executors serve all ranks of the node, not those that see this actor's GPUs.
        self._environ.pop("CUDA_VISIBLE_DEVICES", None)
        self._daemons: list[Daemon] = []
        self._lost: queue.Queue = queue.Queue()

    def running_agent(self) -> str:
        """Returns the socket of an agent that runs here and serves this user; empty if there is none."""
        paths = ["/run/maypole/agent.sock"]
        if self._environ.get("XDG_RUNTIME_DIR", "").startswith("/"):
            paths.append(self._environ["XDG_RUNTIME_DIR"] + "/maypole-agent.sock")
        return next(filter(_serves_us, paths), "")

    def start_coordinator(self, listen: str, seconds: int, log_level: str) -> Coordinator:
        """listen: HOST:PORT. Raises a RuntimeError with the reason if the coordinator is not ready within `seconds`."""
        secret = secrets.token_hex(16)
        announced = self._start(_COORDINATOR, [
            f"--listen={listen}", "--metrics=127.0.0.1:0", "--secret_file={directory}/secret",
            f"--start_timeout={seconds}s", f"--log_level={log_level}"], secret, seconds)
        return Coordinator(announced["listen"], secret)

    def start_agent(self, coordinator: Coordinator, node: str, host: str, address: str, nics: Iterable[str],
                    seconds: int, log_level: str) -> str:
        """Starts the node's executor; returns the path of its socket.

        address: where other nodes reach this one; empty: this node's address on the route to the coordinator. Raises
        a RuntimeError with the reason if the agent is not ready within `seconds`.
        """
        if coordinator.running_agents:
            path = self.running_agent()
            if path:
                return path
            raise RuntimeError("the job's first node uses an agent that runs there, but none runs on this node: start "
                               "maypole-worker on all nodes, or on none")
        flags = [f"--node={node}", f"--host={host}", "--socket={directory}/agent.sock",
                 f"--coordinator={coordinator.address}", "--metrics=127.0.0.1:0", f"--start_timeout={seconds}s",
                 f"--log_level={log_level}"]
        if coordinator.secret:
            flags.append("--secret_file={directory}/secret")
        elif coordinator.secret_file:
            flags.append(f"--secret_file={coordinator.secret_file}")
        network = _address_of(nics) if nics else address
        if network:
            flags.append(f"--network={network}")
        return self._start(_AGENT, flags, coordinator.secret, seconds)["socket"]

    def wait_lost(self) -> str:
        """Blocks until a daemon that was ready has ended; returns which one, and how."""
        return self._lost.get()

    def lost(self) -> str:
        """wait_lost() without waiting; empty if none has ended."""
        try:
            return self._lost.get_nowait()
        except queue.Empty:
            return ""

    def signal(self, pid: int, number: int) -> None:
        """Sends a signal to a rank on this node, if it still runs."""
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            pass

    def has_file(self, path: str) -> bool:
        """Whether there is a file of this name here."""
        return os.path.exists(path)

    def stop(self) -> None:
        """Ends the daemons; returns when they have ended and their files are removed."""
        while self._daemons:  # the last one first, so that agents do not miss their coordinator
            self._daemons.pop().end()

    def _start(self, program: str, flags: list[str], secret: str, seconds: int) -> dict[str, str]:
        self._daemons.append(Daemon(program, flags, secret, seconds, self._environ, self._lost.put))
        return self._daemons[-1].said


def _serves_us(path: str) -> bool:
    """Whether root or this user listens at the socket."""
    with socket.socket(socket.AF_UNIX) as client:
        try:
            client.connect(path)
        except OSError:
            return False
        _, uid, _ = struct.unpack("3i", client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        return uid in (0, os.geteuid())


def _address_of(nics: Iterable[str]) -> str:
    """Returns the address of the first of these network interfaces that this machine has."""
    for nic in nics:
        address = address_of(nic)
        if address:
            return address
    raise RuntimeError(f"{socket.gethostname()} has none of these network interfaces with an address: "
                       f"{', '.join(nics)} (nics)")


class Node(NamedTuple):
    """A Ray node of a job. actor: Ray's handle of its NodeActor."""

    ray_node: cluster.RayNode
    name: str
    actor: Any


class Daemons:
    """The driver's side of a job's daemons. Thread contract: one thread.

    variables: the job's variables (placement.job_variables()). nics: names of network interfaces for the data
    between nodes, or none. seconds: how long one daemon may take to be ready.
    """

    def __init__(self, variables: Mapping[str, str], nics: Iterable[str], seconds: int, verbose: bool):
        self._variables = variables
        self._nics = sorted(nics or ())
        self._seconds = seconds
        level = variables.get("MAYPOLE_LOG_LEVEL") or variables.get("HOROVOD_LOG_LEVEL")
        self._log_level = level.lower() if level else "info" if verbose else "warning"
        self._coordinator: Optional[Coordinator] = None
        self._nodes: dict[str, Node] = {}
        self._several = False
        self._here: Optional[NodeActor] = None

    def node(self, ray_node: cluster.RayNode) -> Node:
        """The job's node; makes its actor if it has none yet."""
        found = self._nodes.get(ray_node.node_id)
        if found is None:
            taken = {node.name for node in self._nodes.values()}
            name = placement.node_name(ray_node.host, ray_node.node_id, taken)
            # So that other calls can run while wait_lost() blocks.
            actor = cluster.get_ray().remote(NodeActor).options(
                num_cpus=0, max_concurrency=4, scheduling_strategy=cluster.on_node(ray_node.node_id)).remote(
                    dict(self._variables))
            found = self._nodes[ray_node.node_id] = Node(ray_node, name, actor)
        return found

    def open(self, ray_node: cluster.RayNode, addresses: Iterable[str]) -> None:
        """Finds out which daemons run, and starts the coordinator on this node if there is none.

        addresses: the addresses of the Ray nodes that must reach it. Raises a RuntimeError with the reason if it does
        not start.
        """
        ray = cluster.get_ray()
        self._several = set(addresses) != {ray_node.address}
        if self._is_given():
            return
        node = self.node(ray_node)
        if ray.get(node.actor.running_agent.remote()):
            self._coordinator = Coordinator(running_agents=True)
            return
        listen = placement.listen_address(addresses, ray_node.address)
        try:
            self._coordinator = ray.get(node.actor.start_coordinator.remote(listen, self._seconds, self._log_level))
        except ray.exceptions.RayTaskError as error:
            raise RuntimeError(f"node {node.name}: {error.cause}") from error

    def open_here(self, address: str) -> None:
        """open() for a job all of whose nodes may be lost: the coordinator belongs to this process, the driver.

        address: this machine's address, for all nodes that may join.
        """
        self._several = True
        if self._is_given():
            return
        self._here = NodeActor(self._variables)
        if self._here.running_agent():
            self._coordinator = Coordinator(running_agents=True)
            return
        listen = placement.listen_address(["any"], address)
        self._coordinator = self._here.start_coordinator(listen, self._seconds, self._log_level)

    def _is_given(self) -> bool:
        """Whether the user has named an agent or a coordinator."""
        given = self._variables.get("MAYPOLE_COORDINATOR")
        if given:
            self._coordinator = Coordinator(given, secret_file=self._variables.get("MAYPOLE_SECRET_FILE", ""))
        return bool(given or self._variables.get("MAYPOLE_AGENT"))

    def coordinator_lost(self) -> str:
        """Returns how the coordinator of open_here() has ended; empty if it runs."""
        return self._here.lost() if self._here is not None else ""

    def start_agent(self, node: Node) -> Any:
        """Returns an ObjectRef of the path of the agent's socket on this node."""
        if self._coordinator is None:
            return cluster.get_ray().put(self._variables["MAYPOLE_AGENT"])
        address = node.ray_node.address if self._several else ""
        host = placement.node_name(node.ray_node.host, "", ())
        return node.actor.start_agent.remote(self._coordinator, node.name, host, address, self._nics, self._seconds,
                                             self._log_level)

    def starts_any(self) -> bool:
        """Whether daemons were started, and so may be lost."""
        return self._coordinator is not None and not self._coordinator.running_agents

    def forget(self, node: Node) -> None:
        """Ends the daemons on this node, without waiting for their end."""
        self._nodes.pop(node.ray_node.node_id, None)
        cluster.get_ray().kill(node.actor)

    def stop(self) -> None:
        """Ends all daemons, the coordinator last; waits for their end, but not for nodes that are gone."""
        ray = cluster.get_ray()
        nodes = list(self._nodes.values())
        self._nodes.clear()
        for group in (nodes[1:], nodes[:1]):  # the first one has the coordinator
            stopping = [node.actor.stop.remote() for node in group]
            if stopping:
                ray.wait(stopping, num_returns=len(stopping), timeout=_STOP_SECONDS)
        for node in nodes:
            ray.kill(node.actor)
        if self._here is not None:
            self._here.stop()
