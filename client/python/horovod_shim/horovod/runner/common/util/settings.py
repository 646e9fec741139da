"""Settings of a job, as scripts give them to horovod.ray.RayExecutor().

Maypole uses verbose and nics; the others are kept as they are given.
"""

from typing import Any, Iterable, Optional


class BaseSettings:
    """What jobs of all kinds have; each parameter is an attribute.

    verbose: from 2 on, the job's daemons log at the level INFO. nics: names of
    network interfaces; data between nodes goes through the first one that a
    node has.
    """

    def __init__(self, num_proc: Optional[int] = None, verbose: int = 0, ssh_port: Optional[int] = None,
                 ssh_identity_file: Optional[str] = None, extra_mpi_args: Any = None, tcp_flag: Any = None,
                 binding_args: Any = None, key: Any = None, start_timeout: Any = None,
                 output_filename: Optional[str] = None, run_func_mode: Optional[bool] = None,
                 nics: Optional[Iterable[str]] = None, elastic: bool = False,
                 prefix_output_with_timestamp: bool = False):
        self.num_proc = num_proc
        self.verbose = verbose
        self.ssh_port = ssh_port
        self.ssh_identity_file = ssh_identity_file
        self.extra_mpi_args = extra_mpi_args
        self.tcp_flag = tcp_flag
        self.binding_args = binding_args
        self.key = key
        self.start_timeout = start_timeout
        self.output_filename = output_filename
        self.run_func_mode = run_func_mode
        self.nics = nics
        self.elastic = elastic
        self.prefix_output_with_timestamp = prefix_output_with_timestamp


class Settings(BaseSettings):
    """Of a job with a fixed number of ranks. hosts: "h1:2,h2:2"."""

    def __init__(self, hosts: Optional[str] = None, **kwargs: Any):
        super().__init__(**kwargs)
        self.hosts = hosts
