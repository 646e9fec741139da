"""ElasticRayExecutor: Horovod's older interface for elastic jobs; RayExecutor(min_workers=...) is the newer one."""

import dataclasses
import warnings
from collections.abc import Iterable
from typing import Any, Callable, Optional

from maypole.ray import discovery
from maypole.ray.runner import RayExecutor


@dataclasses.dataclass
class ElasticSettings:
    """Made by ElasticRayExecutor.create_settings(); see RayExecutor and MiniSettings."""

    min_num_proc: int = 1
    max_num_proc: Optional[int] = None
    reset_limit: Optional[int] = None
    elastic_timeout: int = 600
    timeout_s: int = 30
    ssh_identity_file: Optional[str] = None
    nics: Optional[Iterable[str]] = None
    verbose: int = 1
    cooldown_range: Optional[tuple[int, int]] = None
    discovery: Any = None
    elastic: bool = True


class RayHostDiscovery(discovery.RayHostDiscovery):
    """discovery.RayHostDiscovery with older names of parameters."""

    def __init__(self, use_gpu: bool = False, cpus_per_slot: int = 1, gpus_per_slot: int = 1):
        super().__init__(use_gpu, cpus_per_slot, gpus_per_slot)


class TestDiscovery(discovery.TestDiscovery):
    """discovery.TestDiscovery with older names of parameters."""

    def __init__(self, min_hosts: int, max_hosts: int, change_frequency_s: float, use_gpu: bool = False,
                 cpus_per_slot: int = 1, gpus_per_slot: int = 1, verbose: bool = True, _graceful: bool = True):
        super().__init__(min_hosts, max_hosts, change_frequency_s, use_gpu, cpus_per_slot, gpus_per_slot, verbose,
                         _graceful)


class ElasticRayExecutor:
    """An elastic job on all nodes of a Ray cluster.

    Thread contract: one thread at a time.

    Args:
        settings: from create_settings().
        use_gpu: each rank gets a GPU.
        cpus_per_slot: CPUs of each rank.
        gpus_per_slot: GPUs of each rank.
        env_vars: environment variables of all ranks.
        override_discovery: False: settings.discovery finds the nodes.
    """

    @staticmethod
    def create_settings(min_num_proc: int = 1, max_num_proc: Optional[int] = None, reset_limit: Optional[int] = None,
                        elastic_timeout: int = 600, timeout_s: int = 30, ssh_identity_file: Optional[str] = None,
                        nics: Optional[Iterable[str]] = None, min_np: Optional[int] = None,
                        max_np: Optional[int] = None, **kwargs: Any) -> ElasticSettings:
        """min_np, max_np: older names of min_num_proc and max_num_proc. kwargs: verbose, cooldown_range, discovery."""
        if min_np is not None:
            min_num_proc = _older("min_np", min_np)
        if max_np is not None:
            max_num_proc = _older("max_np", max_np)
        return ElasticSettings(min_num_proc, max_num_proc, reset_limit, elastic_timeout, timeout_s, ssh_identity_file,
                               nics, **kwargs)

    def __init__(self, settings: Any, use_gpu: bool = False, cpus_per_slot: int = 1,
                 gpus_per_slot: Optional[int] = None, env_vars: Optional[dict] = None, override_discovery: bool = True):
        self._env_vars = env_vars
        self._executor = RayExecutor(
            settings, min_workers=settings.min_num_proc, max_workers=settings.max_num_proc,
            reset_limit=settings.reset_limit, elastic_timeout=settings.elastic_timeout,
            cooldown_range=getattr(settings, "cooldown_range", None), cpus_per_worker=cpus_per_slot, use_gpu=use_gpu,
            gpus_per_worker=gpus_per_slot, override_discovery=override_discovery)

    def start(self) -> None:
        """See RayExecutor.start()."""
        self._executor.start(extra_env_vars=self._env_vars)

    def run(self, worker_fn: Callable[[], Any], callbacks: Optional[list[Callable]] = None) -> list[Any]:
        """Runs worker_fn() in each rank; see RayExecutor.run()."""
        return self._executor.run(worker_fn, callbacks=callbacks)


def _older(name: str, value: int) -> int:
    newer = name.replace("_np", "_num_proc")
    warnings.warn(f"{name} is deprecated, use {newer} instead", DeprecationWarning, stacklevel=3)
    return value
