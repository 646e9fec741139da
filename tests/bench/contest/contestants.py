"""How each contestant's ranks are started, on one node or in namespaces."""

import dataclasses
import os
import stat
from typing import Dict, List, Optional

import harness
from contest.plan import Setting
from contest.processes import Group

PYTHON = "/usr/bin/python3"
HERE = os.path.dirname(os.path.abspath(__file__))
BENCH = os.path.dirname(HERE)
SECRET = "only those who know this may join\n"
COORDINATOR_PORT = 47117


@dataclasses.dataclass
class Place:
    """Where a contestant of a setting runs."""
    setting: Setting
    tree: str  # of built files, as bazel lays them out
    dir: str  # of its own, empty
    env: Dict[str, str]  # what all ranks get
    net: Optional["namespaces.Namespaces"]  # None: one node, no namespaces

    def path(self, *parts: str) -> str:
        return os.path.join(self.dir, *parts)

    def program(self, path: str) -> str:
        return os.path.join(self.tree, path)

    def contest(self, name: str) -> str:
        return self.program("tests/bench/contest/" + name)

    def inside(self, node: int) -> List[str]:
        """The words before a command that make it run on `node`."""
        if self.net is None:
            return []
        return ["ip", "netns", "exec", self.net.names[node]]

    def host(self, node: int) -> str:
        return "127.0.0.1" if self.net is None else self.net.ADDRESSES[node]

    def interface(self, node: int) -> str:
        return "lo" if self.net is None else self.net.links[node]

    def node_of(self, rank: int) -> int:
        return rank // self.setting.local_ranks


def start(name: str, place: Place, group: Group) -> None:
    """Starts the ranks of contestant `name`."""
    _START[name](place, group)


def _maypole_cpp(place: Place, group: Group) -> None:
    _maypole(place, group, [place.contest("contest_maypole")])


def _maypole_py(place: Place, group: Group) -> None:
    _maypole(place, group, [PYTHON, "-m", "contest.maypole_rank"])


def _maypole(place: Place, group: Group, command: List[str]) -> None:
    if place.net is None:
        launcher = place.program("client/launcher/maypolerun")
        group.start([launcher, "-np", str(place.setting.ranks), "--no-prefix",
                     "--", *command], place.env)
    else:
        _maypole_across(place, group, command)


def _maypole_across(place: Place, group: Group, command: List[str]) -> None:
    """Starts a coordinator, an agent per node, and the ranks, as an operator does."""
    secret = place.path("secret")
    with open(secret, "w", encoding="ascii",
              opener=lambda p, f: os.open(p, f, 0o600)) as f:
        f.write(SECRET)
    address = f"{place.host(0)}:{_port(place)}"
    group.start(place.inside(0) + [
        place.program("coordinator/maypole-coordinator"),
        "--listen=" + address, "--metrics=", "--secret_file=" + secret
    ], place.env)
    for node in range(place.setting.nodes):
        agent = place.path(f"agent{node}")
        process = group.start(place.inside(node) + [
            place.program("worker/maypole-worker"), "--socket=" + agent,
            "--coordinator=" + address, f"--node=n{node}", "--metrics=",
            "--secret_file=" + secret
        ], place.env)
        harness.wait_until(
            lambda p=process, a=agent: os.path.exists(a) or p.poll() is not None,
            20, "the agent's socket " + agent)
    for rank in range(place.setting.ranks):
        node = place.node_of(rank)
        group.start(place.inside(node) + command, dict(
            place.env, MAYPOLE_RANK=str(rank),
            MAYPOLE_SIZE=str(place.setting.ranks),
            MAYPOLE_LOCAL_RANK=str(rank % place.setting.local_ranks),
            MAYPOLE_LOCAL_SIZE=str(place.setting.local_ranks),
            MAYPOLE_CROSS_RANK=str(node),
            MAYPOLE_CROSS_SIZE=str(place.setting.nodes), MAYPOLE_JOB="bench",
            MAYPOLE_TOKEN="bench", MAYPOLE_AGENT=place.path(f"agent{node}")))


def _port(place: Place) -> int:
    """A port for each contestant, because their coordinators share a namespace."""
    python = place.env["BENCH_CONTESTANT"] == "maypole_py"
    return COORDINATOR_PORT + int(python)


def _per_rank(place: Place, group: Group, command: List[str]) -> None:
    store = place.path("store")
    os.mkdir(store)
    for rank in range(place.setting.ranks):
        node = place.node_of(rank)
        group.start(place.inside(node) + command, dict(
            place.env, BENCH_RANK=str(rank),
            BENCH_SIZE=str(place.setting.ranks), BENCH_HOST=place.host(node),
            BENCH_STORE=store, GLOO_SOCKET_IFNAME=place.interface(node)))


def _torch(place: Place, group: Group) -> None:
    _per_rank(place, group, [PYTHON, "-m", "contest.torch_rank"])


def _gloo(place: Place, group: Group) -> None:
    _per_rank(place, group, [place.contest("contest_gloo")])


# mpirun calls it instead of ssh: HOST COMMAND... A host name of its own, for
# Open MPI tells nodes apart by it.
_RSH_AGENT = """#!/bin/sh
while [ "$1" = -x ]; do shift; done
shift
exec ip netns exec {namespace} unshare --uts sh -c 'hostname {namespace} && eval "$1"' sh "$*"
"""


def _openmpi(place: Place, group: Group) -> None:
    setting = place.setting
    command = ["mpirun", "--allow-run-as-root", "--oversubscribe",
               "-np", str(setting.ranks)]
    if setting.ranks > len(os.sched_getaffinity(0)):
        command += ["--mca", "mpi_yield_when_idle", "1"]
    if place.net is not None:
        command = place.inside(0) + command + _across(place)
    # Not bound to cores, like all others.
    command += ["--bind-to", "none", place.contest("contest_openmpi")]
    group.start(command, dict(place.env, TMPDIR=place.dir))


def _across(place: Place) -> List[str]:
    agent = place.path("rsh")
    with open(agent, "w", encoding="ascii") as f:
        f.write(_RSH_AGENT.format(namespace=place.net.names[1]))
    os.chmod(agent, os.stat(agent).st_mode | stat.S_IXUSR)
    network = place.net.ADDRESSES[0].rpartition(".")[0] + ".0/24"
    hosts = ",".join(f"{place.host(n)}:{place.setting.local_ranks}"
                     for n in range(place.setting.nodes))
    options = ["-H", hosts, "--map-by", "slot",
               "--mca", "plm_rsh_agent", agent,
               "--mca", "btl", "self,vader,tcp",
               "--mca", "btl_tcp_if_include", network,
               "--mca", "oob_tcp_if_include", network]
    for name in sorted(place.env):
        if name.startswith("BENCH_") or name == "OMP_NUM_THREADS":
            options += ["-x", name]
    return options


_START = {
    "maypole_cpp": _maypole_cpp,
    "maypole_py": _maypole_py,
    "torch": _torch,
    "openmpi": _openmpi,
    "gloo": _gloo,
}
