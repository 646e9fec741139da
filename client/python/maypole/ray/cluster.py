"""This package's access to Ray: its module, its nodes, its placement groups.

Only get_ray() imports ray, so that the package can be imported without it.
"""

import importlib
from typing import Any, NamedTuple, Optional


class RayNode(NamedTuple):
    """node_id: Ray's id, in hexadecimal. address: the IP address at which other Ray nodes reach it."""

    node_id: str
    host: str
    address: str
    resources: dict[str, float]


def get_ray() -> Any:
    """Returns the module ray. Raises an ImportError that says what to install if there is none."""
    try:
        return importlib.import_module("ray")
    except ImportError as error:
        raise ImportError("maypole.ray needs Ray, which cannot be imported here: "
                          f"{error} (pip install ray, or pip install maypole[ray])") from error


def initialized_ray() -> Any:
    """get_ray(). Raises RuntimeError if this process is not connected to a Ray cluster."""
    ray = get_ray()
    if not ray.is_initialized():
        raise RuntimeError("this process is not connected to a Ray cluster: call ray.init() before the executor's "
                           "start()")
    return ray


def living_nodes() -> list[RayNode]:
    """Returns the nodes that are alive, in Ray's order."""
    return [RayNode(node["NodeID"], node["NodeManagerHostname"], node["NodeManagerAddress"], node["Resources"])
            for node in get_ray().nodes() if node["Alive"]]


def this_node() -> str:
    """Ray's id of the node that this process runs on."""
    return get_ray().get_runtime_context().get_node_id()


def on_node(node_id: str) -> Any:
    """The scheduling strategy of actors that must run on this Ray node."""
    strategies = importlib.import_module("ray.util.scheduling_strategies")
    return strategies.NodeAffinitySchedulingStrategy(node_id=node_id, soft=False)


def in_bundle(group: Any, index: int) -> Any:
    """The scheduling strategy of an actor in a placement group; index -1: in any of its bundles."""
    strategies = importlib.import_module("ray.util.scheduling_strategies")
    return strategies.PlacementGroupSchedulingStrategy(group, index, placement_group_capture_child_tasks=False)


def current_group() -> Optional[Any]:
    """The placement group in which this process runs (a trial of Ray Tune, for example); None if there is none."""
    return importlib.import_module("ray.util").get_current_placement_group()


def make_group(bundles: list[dict[str, float]], strategy: str, timeout_s: float) -> Any:
    """Creates a placement group and waits for it.

    Raises TimeoutError, and removes the group again, if Ray cannot reserve it within timeout_s seconds.
    """
    ray = get_ray()
    util = importlib.import_module("ray.util")
    group = util.placement_group(bundles, strategy=strategy)
    try:
        ready, _ = ray.wait([group.ready()], timeout=timeout_s)
        if ready:
            return group
        raise TimeoutError(
            f"Ray has not reserved {len(bundles)} x {bundles[0]} ({strategy}) within {timeout_s:g} s "
            f"(placement_group_timeout_s); free are {_free(ray)}: ask for less, add nodes, or wait longer for an "
            "autoscaler")
    except BaseException:
        util.remove_placement_group(group)
        raise


def _free(ray: Any) -> str:
    resources = ray.available_resources()
    return ", ".join(f"{resources.get(name, 0):g} {name}" for name in ("CPU", "GPU"))


def remove_group(group: Any) -> None:
    """Gives the placement group's resources back to Ray."""
    importlib.import_module("ray.util").remove_placement_group(group)
