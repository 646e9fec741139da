"""Which Ray actor is which rank, and the environment of a rank. Pure: no Ray in here.

Ranks are numbered node by node, in the order of the nodes' first workers, as
maypolerun does. (Horovod numbers them by bundle, so that ranks of a node may
not follow each other.)
"""

import re
import secrets
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Optional

from maypole.common.driver import Place

_MAX_NAME = 63  # of jobs, nodes and hosts: docs/design.md, section 12

def by_node(node_ids: Sequence[str]) -> list[int]:
    """The indexes of node_ids, so sorted that those of a node follow each other; nodes in order of appearance."""
    first: dict[str, int] = {}
    for index, node_id in enumerate(node_ids):
        first.setdefault(node_id, index)
    return sorted(range(len(node_ids)), key=lambda index: first[node_ids[index]])


def places(node_ids: Sequence[str]) -> list[Place]:
    """The places of ranks 0, 1, ...; node_ids: the node of each, sorted by by_node()."""
    nodes = list(dict.fromkeys(node_ids))
    found, local = [], dict.fromkeys(nodes, 0)
    for rank, node_id in enumerate(node_ids):
        found.append(Place(rank, len(node_ids), local[node_id], node_ids.count(node_id), nodes.index(node_id),
                           len(nodes)))
        local[node_id] += 1
    return found


def node_name(host: str, node_id: str, taken: Iterable[str]) -> str:
    """The name of a node in messages: its host, and a part of Ray's id if another node has that name."""
    name = re.sub(r"[^!-~]|[\"'`/\\]", "-", host)[:_MAX_NAME].strip(".") or "node"
    if name not in taken:
        return name
    end = "-" + node_id[:8]
    return name[:_MAX_NAME - len(end)] + end


def job_name() -> str:
    """A new name for a job."""
    return "ray-" + secrets.token_hex(4)


def job_variables(passed_on: Mapping[str, str], extra: Optional[Mapping[str, Any]], start_timeout_s: int,
                  token: str) -> dict[str, str]:
    """What all ranks of a job have in common.

    passed_on: driver.settings(); extra: extra_env_vars of start(), which
    prevail. start_timeout_s and token: unless one of the two has them.
    """
    variables = dict(passed_on)
    variables.update({name: str(value) for name, value in (extra or {}).items()})
    if not variables.get("HOROVOD_START_TIMEOUT"):
        _default(variables, "MAYPOLE_START_TIMEOUT", str(start_timeout_s))
    _default(variables, "MAYPOLE_TOKEN", token)
    _default(variables, "MAYPOLE_JOB", job_name())
    return variables


def _default(variables: dict[str, str], name: str, value: str) -> None:
    if not variables.get(name):
        variables[name] = value


def rank_variables(place: Place, agent: str, node: str, host: str) -> dict[str, str]:
    """What one rank of a static job has besides job_variables(); HOROVOD_* are for scripts."""
    return {**_variables_on(agent, node, host), **place.variables()}


def elastic_variables(agent: str, node: str, host: str, least: int, most: Optional[int]) -> dict[str, str]:
    """What a rank of an elastic job has besides job_variables(): the coordinator gives it its place."""
    variables = _variables_on(agent, node, host)
    variables.update({"MAYPOLE_ELASTIC": "1", "HOROVOD_ELASTIC": "1", "MAYPOLE_MIN_SIZE": str(least)})
    if most is not None:
        variables["MAYPOLE_MAX_SIZE"] = str(most)
    return variables


def _variables_on(agent: str, node: str, host: str) -> dict[str, str]:
    return {"MAYPOLE_AGENT": agent, "MAYPOLE_NODE": node, "HOROVOD_HOSTNAME": host}


def visible_devices(ids_by_local_rank: Sequence[Sequence[Any]]) -> Optional[str]:
    """CUDA_VISIBLE_DEVICES of all ranks of a node, so that device `local_rank` is a rank's own.

    ids_by_local_rank: what Ray has assigned to each of them. First come the
    first devices of all ranks, then the second ones, and so on. None if ranks
    share a device: then each sees what Ray shows it.
    """
    turns = max((len(ids) for ids in ids_by_local_rank), default=0)
    ids = [str(of_rank[turn]) for turn in range(turns) for of_rank in ids_by_local_rank if turn < len(of_rank)]
    return ",".join(ids) if ids and len(set(ids)) == len(ids) else None


def listen_address(addresses: Iterable[str], address: str) -> str:
    """Where the job's coordinator listens: on the loopback if all ranks are on its node.

    addresses: of the job's Ray nodes; address: of the coordinator's.
    """
    alone = set(addresses) <= {address}
    host = "127.0.0.1" if alone else address
    return f"[{host}]:0" if ":" in host else f"{host}:0"
