"""The names of a job and its nodes, and the environment of its ranks. Pure: does not use Ray."""

import re
import secrets
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Optional

_MAX_NAME = 63  # of jobs, nodes and hosts: docs/design.md, section 12


def node_name(host: str, node_id: str, taken: Iterable[str]) -> str:
    """Returns the name of a node in messages: its host, plus a part of Ray's id if another node has that name."""
    name = re.sub(r"[^!-~]|[\"'`/\\]", "-", host)[:_MAX_NAME].strip(".") or "node"
    if name not in taken:
        return name
    end = "-" + node_id[:8]
    return name[:_MAX_NAME - len(end)] + end


def job_variables(passed_on: Mapping[str, str], extra: Optional[Mapping[str, Any]], start_timeout_s: int,
                  token: str) -> dict[str, str]:
    """Returns the variables that all ranks of a job share.

    passed_on: driver.settings(); extra: extra_env_vars of start(), which
    prevail. start_timeout_s and token apply unless one of these has them.
    """
    variables = dict(passed_on)
    variables.update({name: str(value) for name, value in (extra or {}).items()})
    if not variables.get("HOROVOD_START_TIMEOUT"):
        _default(variables, "MAYPOLE_START_TIMEOUT", str(start_timeout_s))
    _default(variables, "MAYPOLE_TOKEN", token)
    _default(variables, "MAYPOLE_JOB", "ray-" + secrets.token_hex(4))
    return variables


def _default(variables: dict[str, str], name: str, value: str) -> None:
    if not variables.get(name):
        variables[name] = value


def visible_devices(ids_by_local_rank: Sequence[Sequence[Any]]) -> Optional[str]:
    """Returns CUDA_VISIBLE_DEVICES for all ranks of a node, such that device `local_rank` is a rank's own.

    ids_by_local_rank: what Ray has assigned to each of them. First come the
    first devices of all ranks, then the second ones, and so on. None if ranks
    share a device: then each sees the devices that Ray shows it.
    """
    turns = max((len(ids) for ids in ids_by_local_rank), default=0)
    ids = [str(of_rank[turn]) for turn in range(turns) for of_rank in ids_by_local_rank if turn < len(of_rank)]
    return ",".join(ids) if ids and len(set(ids)) == len(ids) else None


def listen_address(addresses: Iterable[str], address: str) -> str:
    """Returns where the job's coordinator listens: on loopback if all ranks are on its node.

    addresses: those of the job's Ray nodes; address: that of the coordinator's node.
    """
    alone = set(addresses) <= {address}
    host = "127.0.0.1" if alone else address
    return f"[{host}]:0" if ":" in host else f"{host}:0"
