"""RayExecutor: starts the ranks of a job as Ray actors, and runs functions in them."""

import dataclasses
import os
from collections.abc import Iterable
from typing import Any, Callable, Optional

from maypole.ray.cluster import initialized_ray
from maypole.ray.elastic_adapter import ElasticAdapter
from maypole.ray.static_adapter import StaticAdapter


@dataclasses.dataclass
class MiniSettings:
    """Made by RayExecutor.create_settings().

    timeout_s: how long an agent, the coordinator, or a worker of an elastic job
    may take to start. nics: names of network interfaces; data between nodes
    goes through the first one that a node has. verbose: from 2 on, the daemons
    log at the level INFO. discovery: for elastic jobs with
    override_discovery=False. The others have no effect: Maypole needs no ssh in
    a Ray cluster.
    """

    nics: Optional[Iterable[str]] = None
    verbose: int = 1
    key: Any = None
    ssh_port: Optional[int] = None
    ssh_identity_file: Optional[str] = None
    timeout_s: int = 300
    placement_group_timeout_s: int = 100
    elastic: bool = False
    discovery: Any = None


class RayExecutor:
    """A job on a Ray cluster, with Horovod's parameters.

    Thread contract: one thread at a time. Without shutdown(), the job ends with the process that started it,
    even if that is killed.

    Args:
        settings: from create_settings().
        num_workers: number of ranks, packed on few nodes; or use the next two parameters, or min_workers.
        num_hosts: number of nodes, with num_workers_per_host ranks each.
        num_workers_per_host: ranks of each of num_hosts nodes.
        cpus_per_worker: what Ray reserves for a rank; GPUs need use_gpu.
        use_gpu: each rank gets a GPU.
        gpus_per_worker: what Ray reserves for a rank; GPUs need use_gpu.
        use_current_placement_group: if this process runs in a placement group, run the ranks in it.
        min_workers: the fewest ranks of an elastic job, whose ranks come and go with the nodes of the cluster.
        max_workers: the most ranks of an elastic job.
        reset_limit: how often ranks may be lost before the job ends with an error; None: any number.
        cooldown_range: cool-down in seconds of a node on which a rank has failed: after the first failure, and
            at most; (1, 60) by default.
        elastic_timeout: how many seconds there may be fewer than min_workers slots (HOROVOD_ELASTIC_TIMEOUT, if
            this is the default).
        override_discovery: nodes are found by RayHostDiscovery; False: settings.discovery finds them.
    """

    @classmethod
    def create_settings(cls, timeout_s: int = 30, ssh_identity_file: Optional[str] = None,
                        ssh_str: Optional[str] = None, placement_group_timeout_s: int = 100,
                        nics: Optional[Iterable[str]] = None, verbose: int = 1) -> MiniSettings:
        """See MiniSettings. ssh_str has no effect: no key is written."""
        return MiniSettings(nics=nics, verbose=verbose, ssh_identity_file=ssh_identity_file, timeout_s=timeout_s,
                            placement_group_timeout_s=placement_group_timeout_s)

    def __init__(self, settings: Any, num_workers: Optional[int] = None, num_hosts: Optional[int] = None,
                 num_workers_per_host: int = 1, cpus_per_worker: int = 1, use_gpu: bool = False,
                 gpus_per_worker: Optional[int] = None, use_current_placement_group: bool = True,
                 min_workers: Optional[int] = None, max_workers: Optional[int] = None,
                 reset_limit: Optional[int] = None, cooldown_range: Optional[tuple[int, int]] = None,
                 elastic_timeout: int = 600, override_discovery: bool = True):
        """Raises ValueError if the parameters contradict each other."""
        _check_numbers(num_workers, num_hosts, num_workers_per_host, min_workers, max_workers)
        if gpus_per_worker and not use_gpu:
            raise ValueError(f"gpus_per_worker={gpus_per_worker}, but use_gpu is False: set use_gpu=True, or leave it "
                             "out")
        if use_gpu and gpus_per_worker is not None and gpus_per_worker < 1:
            raise ValueError(f"gpus_per_worker={gpus_per_worker}: must be at least 1 with use_gpu=True")
        resources = {"CPU": cpus_per_worker}
        if use_gpu:
            resources["GPU"] = gpus_per_worker or 1
        self.settings = settings
        self.settings.elastic = min_workers is not None
        self._adapter: Any = None
        self._is_remote = False
        if min_workers is None:
            self._make: tuple[Any, dict[str, Any]] = (StaticAdapter, dict(
                num_workers=num_workers, num_hosts=num_hosts, num_workers_per_host=num_workers_per_host,
                resources=resources, use_current_placement_group=use_current_placement_group))
        else:
            self._make = (ElasticAdapter, dict(
                min_workers=min_workers, max_workers=max_workers, resources=resources, reset_limit=reset_limit,
                cooldown_range=cooldown_range, elastic_timeout=_elastic_timeout(elastic_timeout),
                override_discovery=override_discovery))

    def start(self, executable_cls: Optional[type] = None, executable_args: Optional[list] = None,
              executable_kwargs: Optional[dict] = None, extra_env_vars: Optional[dict] = None) -> None:
        """Starts the ranks and the job's daemons.

        Args:
            executable_cls: each rank makes an object of this class, with the next two as arguments, for execute().
            executable_args: positional arguments of its constructor.
            executable_kwargs: keyword arguments of its constructor.
            extra_env_vars: set for all ranks; MAYPOLE_COORDINATOR and MAYPOLE_SECRET_FILE in them, or in this
                process's environment, name a running coordinator. (An elastic job starts its ranks in run().)

        Raises:
            TimeoutError: Ray cannot reserve the resources.
            RuntimeError: a daemon does not start; the text has the reason.
        """
        ray = initialized_ray()
        if self._adapter is not None:
            raise RuntimeError("this RayExecutor is started: call shutdown() before start()")
        kind, parameters = self._make
        # A driver outside the cluster (ray://) sees no nodes and no actors, so its part runs in an actor.
        self._is_remote = ray.util.client.ray.is_connected()
        if self._is_remote:
            self._adapter = ray.remote(kind).options(num_cpus=0).remote(self.settings, **parameters)
        else:
            self._adapter = kind(self.settings, **parameters)
        try:
            self._call("start", executable_cls, executable_args, executable_kwargs, extra_env_vars)
        except BaseException:
            self.shutdown()
            raise

    def run(self, fn: Callable[..., Any], args: Optional[list] = None, kwargs: Optional[dict] = None,
            callbacks: Optional[list[Callable]] = None) -> list[Any]:
        """Runs fn(*args, **kwargs) in each rank; returns the results by rank.

        fn calls init() itself.

        Args:
            fn: what each rank runs.
            args: the function's positional arguments.
            kwargs: the function's keyword arguments.
            callbacks: called with the values that rank 0 passes to maypole.ray.ray_logger.log(). In an elastic
                job the results are those of the ranks that were there at the end.

        Raises:
            RankError: a rank failed, at most 10 s ago; the text names rank, node and cause.
        """
        return self._call("execute", _of_executable(fn, args, kwargs), callbacks, caller="run")

    def execute(self, fn: Callable[[Any], Any], callbacks: Optional[list[Callable]] = None) -> list[Any]:
        """As run(), for fn(executable); executable: the rank's object of start()'s executable_cls, or None."""
        return self._call("execute", fn, callbacks)

    def run_remote(self, fn: Callable[..., Any], args: Optional[list] = None,
                   kwargs: Optional[dict] = None) -> list[Any]:
        """As run(), but returns at once, with Ray's ObjectRefs of the results by rank. ray.get() raises Ray's errors.

        Args:
            fn: what each rank runs.
            args: the function's positional arguments.
            kwargs: the function's keyword arguments.

        Raises:
            NotImplementedError: in an elastic job, whose ranks change.
        """
        return self._call("run_remote", _of_executable(fn, args, kwargs))

    def execute_single(self, fn: Callable[[Any], Any]) -> Any:
        """Runs fn(executable) only in rank 0; returns its result. Raises NotImplementedError in an elastic job."""
        return self._call("execute_single", fn)

    def shutdown(self) -> None:
        """Ends the ranks and the job's daemons, and frees their resources. start() may follow."""
        if self._adapter is None:
            return
        try:
            self._call("shutdown")
        finally:
            self._adapter = None

    def _call(self, name: str, *args: Any, caller: str = "") -> Any:
        if self._adapter is None:
            raise RuntimeError(f"{caller or name}(): this RayExecutor is not started: call start() first")
        method = getattr(self._adapter, name)
        return initialized_ray().get(method.remote(*args)) if self._is_remote else method(*args)


def _of_executable(fn: Callable[..., Any], args: Optional[list], kwargs: Optional[dict]) -> Callable[[Any], Any]:
    """Turns a function for run() into one for execute()."""
    return lambda executable: fn(*(args or ()), **(kwargs or {}))


def _check_numbers(num_workers: Optional[int], num_hosts: Optional[int], num_workers_per_host: int,
                   min_workers: Optional[int], max_workers: Optional[int]) -> None:
    given = [f"{name}={value}" for name, value in (("num_workers", num_workers), ("num_hosts", num_hosts),
                                                  ("min_workers", min_workers)) if value is not None]
    if len(given) > 1:
        raise ValueError(f"{' and '.join(given)}: give one of them: num_workers, or num_hosts with "
                         "num_workers_per_host, or min_workers (an elastic job)")
    if max_workers is not None and min_workers is None:
        raise ValueError(f"max_workers={max_workers} is of an elastic job, which needs min_workers, too")
    if not given:
        raise ValueError("how many ranks? Give num_workers, or num_hosts with num_workers_per_host, or min_workers "
                         "(an elastic job)")
    for name, value in (("num_workers", num_workers), ("num_hosts", num_hosts), ("min_workers", min_workers),
                        ("num_workers_per_host", num_workers_per_host)):
        if value is not None and value < 1:
            raise ValueError(f"{name}={value}: must be at least 1")
    if max_workers is not None and min_workers is not None and max_workers < min_workers:
        raise ValueError(f"max_workers={max_workers} is less than min_workers={min_workers}")


def _elastic_timeout(given: int) -> int:
    variable = os.environ.get("HOROVOD_ELASTIC_TIMEOUT")
    return int(variable) if variable and given == 600 else given
