"""maypole.run(), whose parameters are options of maypolerun."""

import os
import sys
from collections.abc import Sequence
from typing import Any, Callable, Optional, Union

from maypole.runner import job, messages
from maypole.runner.progress import in_notebook


def run(func: Callable[..., Any], args: Sequence[Any] = (), kwargs: Any = None, np: Optional[int] = 1,
        min_np: Optional[int] = None, max_np: Optional[int] = None, slots: Optional[int] = None,
        reset_limit: Optional[int] = None, cooldown_range: Optional[tuple[int, int]] = None,
        hosts: Optional[str] = None, hostfile: Optional[str] = None,
        host_discovery_script: Optional[str] = None, start_timeout: Optional[int] = None,
        ssh_port: Optional[int] = None, ssh_identity_file: Optional[str] = None,
        output_filename: Optional[str] = None, verbose: Any = False,
        network_interfaces: Union[None, str, Sequence[str]] = None, executable: Optional[str] = None,
        horovod_shim: bool = False, options: Sequence[str] = (), use_gloo: Any = None,
        use_mpi: Any = None, progress: Optional[bool] = None) -> list[Any]:
    """Runs func(*args, **kwargs) in each rank of a new job.

    If the caller is interrupted (Ctrl-C), the job ends.

    Args:
        func: any function, even of a script or a notebook, if cloudpickle is installed; otherwise one of a module
            that the ranks can import. It calls init() itself.
        args: the function's positional arguments.
        kwargs: the function's keyword arguments.
        np: number of ranks; None: all slots of the hosts.
        min_np: the fewest ranks of an elastic job, whose results are those of the processes that were there at the
            end.
        max_np: the most ranks of an elastic job.
        slots: ranks of a host that the discovery script gives no number for.
        reset_limit: how often ranks may be lost before the job ends with an error; None: any number.
        cooldown_range: (least, most) seconds for which a failed host gets no processes.
        hosts: host:slots,...
        hostfile: the path of a file of hosts.
        host_discovery_script: prints the hosts of an elastic job.
        start_timeout: seconds within which all ranks must run.
        ssh_port: the port of ssh on all hosts.
        ssh_identity_file: a private key for ssh.
        output_filename: a directory for what the ranks print.
        verbose: as for maypolerun --verbose.
        network_interfaces: interfaces of the network that the job uses.
        executable: Python on all hosts; by default this one.
        horovod_shim: let `import horovod` give Maypole.
        options: more options of maypolerun; its --help describes all of them.
        use_gloo: for compatibility, without effect: there is one way to start a job.
        use_mpi: for compatibility, without effect: there is one way to start a job.
        progress: whether a line, updated in place, shows the number of ranks, steps per second and the time;
            None: in notebooks only.

    Returns:
        The results of all ranks, by rank. The ranks' output appears in sys.stdout and sys.stderr, prefixed with
        their numbers.

    Raises:
        RankError: a rank failed; it has the rank's number and traceback.
        RuntimeError: the job cannot be started.
        TypeError: the call cannot be pickled.
    """
    if use_gloo and use_mpi:
        raise ValueError("use_gloo and use_mpi exclude each other")
    if np is not None and min_np is not None:
        np = max(np, min_np)
    given = [("-np", np), ("--min-np", min_np), ("--max-np", max_np), ("--slots-per-host", slots),
             ("--reset-limit", reset_limit), ("-H", hosts), ("--hostfile", hostfile),
             ("--host-discovery-script", host_discovery_script), ("--start-timeout", start_timeout),
             ("--ssh-port", ssh_port), ("--ssh-identity-file", ssh_identity_file),
             ("--output-filename", output_filename), ("--network-interfaces", _joined(network_interfaces))]
    line = [word for name, value in given if value is not None for word in (name, str(value))]
    if cooldown_range is not None:
        line += ["--blacklist-cooldown-range", *map(str, cooldown_range)]
    line += ["--verbose"] if verbose else []
    line += ["--horovod-shim"] if horovod_shim else []
    paths = [path or os.getcwd() for path in _paths(executable)]
    call = messages.encode_call(func, args, kwargs or {}, paths)
    fixed = min_np is None and max_np is None
    return job.run_job(call, line + list(options), executable, in_notebook() if progress is None else progress,
                       np if fixed else None)


def _joined(interfaces: Union[None, str, Sequence[str]]) -> Optional[str]:
    return interfaces if interfaces is None or isinstance(interfaces, str) else ",".join(interfaces)


def _paths(executable: Optional[str]) -> list[str]:
    """Where ranks look for modules besides their own directories. Another Python has its own libraries."""
    if executable is None or executable == sys.executable:
        return sys.path
    own = (sys.prefix + os.sep + "lib", sys.base_prefix + os.sep + "lib")
    return [path for path in sys.path if not path.startswith(own)]
