"""horovod.run(): maypole.run() with Horovod's parameters."""

import warnings
from typing import Any, Callable, List

import maypole


def _newer(old_name: str, old: Any, new_name: str, new: Any, default: Any) -> Any:
    """The value of a parameter that had another name before."""
    if old is None:
        return new
    warnings.warn(f"{old_name} is deprecated, use {new_name} instead", DeprecationWarning, stacklevel=3)
    return old if new == default else new


def run(func: Callable[..., Any], args: Any = (), kwargs: Any = None, num_proc: int = 1, min_num_proc: Any = None,
        max_num_proc: Any = None, slots: Any = None, reset_limit: Any = None, cooldown_range: Any = None,
        hosts: Any = None, hostfile: Any = None, host_discovery_script: Any = None, start_timeout: Any = None,
        ssh_port: Any = None, ssh_identity_file: Any = None, disable_cache: Any = None, output_filename: Any = None,
        verbose: Any = None, use_gloo: Any = None, use_mpi: Any = None, mpi_args: Any = None,
        network_interface: Any = None, network_interfaces: Any = None, executable: Any = None, np: Any = None,
        min_np: Any = None, max_np: Any = None) -> List[Any]:
    """Runs func(*args, **kwargs) in each rank; returns the results by rank.

    Like maypole.run(). disable_cache, use_gloo, use_mpi and mpi_args have no
    effect, because Maypole starts jobs in one way, and caches nothing.
    """
    del disable_cache, mpi_args
    return maypole.run(
        func, args, kwargs, np=_newer("np", np, "num_proc", num_proc, 1),
        min_np=_newer("min_np", min_np, "min_num_proc", min_num_proc, None),
        max_np=_newer("max_np", max_np, "max_num_proc", max_num_proc, None), slots=slots, reset_limit=reset_limit,
        cooldown_range=cooldown_range, hosts=hosts, hostfile=hostfile, host_discovery_script=host_discovery_script,
        start_timeout=start_timeout, ssh_port=ssh_port, ssh_identity_file=ssh_identity_file,
        output_filename=output_filename, verbose=verbose, use_gloo=use_gloo, use_mpi=use_mpi,
        network_interfaces=_newer("network_interface", network_interface, "network_interfaces", network_interfaces,
                                  None),
        executable=executable, horovod_shim=True)
