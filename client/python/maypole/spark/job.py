"""What jobs of run() and run_elastic() share: the driver's side of daemons, tasks and output."""

import os
import signal
import socket
import sys
import time
from collections.abc import Sequence
from typing import Any, NamedTuple, Optional

from maypole.common import driver
from maypole.common.daemons import Daemon
from maypole.common.hosts import address_of
from maypole.runner import messages
from maypole.spark import slots, task, tasks
from maypole.spark.output import Output

_NOTICE_SECONDS = 10.0
_END_SECONDS = 6.0  # longer than a task needs to end its rank
_POLL_SECONDS = 0.2
# Variables of the driver that are paths on its machine, or that the job sets itself.
_OWN = ("MAYPOLE_TOKEN", "MAYPOLE_START_TIMEOUT", "MAYPOLE_COORDINATOR", "MAYPOLE_SECRET_FILE", "MAYPOLE_BIN",
        "MAYPOLE_LIBRARY", "MAYPOLE_RUNTIME_DIR", "HOROVOD_START_TIMEOUT", "HOROVOD_SPARK_START_TIMEOUT")


class Settings(NamedTuple):
    """The parameters of run() that both kinds of jobs have."""

    func: Any
    args: Sequence[Any]
    kwargs: Any
    start_timeout: int  # s
    env: Optional[dict[str, str]]
    stdout: Any
    stderr: Any
    verbose: int
    nics: Sequence[str]
    timestamps: bool
    executable: Optional[str]


class Base:
    """Starts what the tasks need, and ends everything in close(). Use as a context manager."""

    def __init__(self, context: Any, settings: Settings, size: int, elastic: bool, rank_timeout: int):
        """size: the most ranks. rank_timeout: the most seconds that a rank's init() waits."""
        self.context = context
        self.settings = settings
        self.rank_timeout = rank_timeout
        self.output = Output(settings.stdout, settings.stderr, settings.timestamps)
        self.spark_jobs: list[tasks.SparkJob] = []
        self.coordinator: Optional[Daemon] = None
        call = messages.encode_call(settings.func, settings.args, settings.kwargs or {},
                                    [p or os.getcwd() for p in sys.path])
        hosts = addresses(context, settings.nics)
        bind = hosts[0] if len(hosts) == 1 else _any(hosts)
        key = os.urandom(32)
        self.listener = tasks.Listener(bind, key)
        try:
            at, secret = self._coordinator(bind, size, elastic)
            self.plan = task.Plan([(host, self.listener.port) for host in hosts], key, call, settings.executable,
                                  f"spark-{os.urandom(4).hex()}", secret,
                                  os.urandom(16).hex(), at, elastic, rank_timeout)
        except BaseException:
            self.close()
            raise

    def _coordinator(self, bind: str, size: int, elastic: bool) -> tuple[str, str]:
        """Returns the coordinator's address, for Plan.coordinator, and the cluster secret."""
        given = os.environ.get("MAYPOLE_COORDINATOR")
        if given:
            path = os.environ.get("MAYPOLE_SECRET_FILE")
            if not path:
                raise ValueError("MAYPOLE_COORDINATOR is set, but MAYPOLE_SECRET_FILE is not: name the file with the "
                                 "coordinator's secret, which the tasks need, too")
            with open(path, encoding="ascii") as f:
                return given, f.read().strip()
        secret = os.urandom(32).hex()
        if size == 1 and not elastic:
            return "", secret
        host = f"[{bind}]" if ":" in bind else bind
        self.coordinator = Daemon("maypole-coordinator", [f"--listen={host}:0", *task.daemon_flags(self.rank_timeout)],
                                  secret, task.READY_SECONDS)
        return ":" + self.coordinator.said["listen"].rpartition(":")[2], secret

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_error: Any) -> None:
        self.close()

    def close(self) -> None:
        """Ends tasks, Spark jobs and daemons. A task ends its rank before it ends itself."""
        self.listener.send_all("end")
        deadline = time.monotonic() + _END_SECONDS
        while time.monotonic() < deadline and any(spark_job.runs() for spark_job in self.spark_jobs):
            for event in self.listener.next_events(_POLL_SECONDS):
                if event.kind == "hello":
                    event.its_task.send("end")
        for spark_job in self.spark_jobs:
            spark_job.cancel()  # it waits for a slot, or cannot be reached
        for spark_job in self.spark_jobs:
            spark_job.join()
        self.listener.close()
        if self.coordinator is not None:
            self.coordinator.end()

    def run_process(self, on: tasks.Task, number: int, place: dict[str, str]) -> None:
        """Starts a rank's process in the task. place: the rank's place, as variables."""
        on.number = number
        on.send("run", {**driver.settings(os.environ, _OWN), "PYTHONUNBUFFERED": "1",
                        "MAYPOLE_START_TIMEOUT": str(self.rank_timeout), **(self.settings.env or {}),
                        **driver.variables_on(on.host, on.host), **place})

    def note(self, text: str) -> None:
        """Prints a line for the user, unless verbose is 0."""
        if self.settings.verbose:
            print(f"maypole.spark: {text}", file=sys.stderr, flush=True)

    def check_coordinator(self) -> None:
        """Raises RuntimeError if the coordinator has ended."""
        if self.coordinator is not None and self.coordinator.lost:
            raise RuntimeError(f"the job cannot go on: {self.coordinator.lost}")


class Waiting:
    """The wait for tasks at the start of a job, and its messages."""

    def __init__(self, job: Base, wanted: int):
        self._job = job
        self._wanted = wanted
        self._began = time.monotonic()
        self._noted = False

    def check(self, hosts: Sequence[str], more: str = "") -> None:
        """hosts: of the tasks that are there. After start_timeout, raises a TimeoutError that says what is missing."""
        waited = time.monotonic() - self._began
        timeout = self._job.settings.start_timeout
        if waited >= timeout:
            raise TimeoutError(
                f"the job did not start within {timeout} s (start_timeout): {self.describe(hosts)}{more}. Free slots, "
                "give Spark more executors, ask for fewer processes, or raise start_timeout "
                "(HOROVOD_SPARK_START_TIMEOUT) if executors take long to start")
        if waited >= _NOTICE_SECONDS and not self._noted:
            self._noted = True
            self._job.note(f"waiting for Spark's tasks: {self.describe(hosts)}{more}")

    def describe(self, hosts: Sequence[str]) -> str:
        """For messages: "2 of 4 tasks are there (2 on h1); the cluster has ..."."""
        counts = {host: list(hosts).count(host) for host in hosts}
        there = ", ".join(f"{n} on {host}" for host, n in sorted(counts.items()))
        return (f"{len(hosts)} of {self._wanted} tasks are there" + (f" ({there})" if there else "") +
                f"; the cluster has {slots.describe(self._job.context)}")


def how_it_ended(status: Optional[int], text: str) -> str:
    """Describes the end of a process, from subprocess's return code; text: why there is none."""
    if status is None:
        return text
    if status < 0:
        try:
            name = signal.strsignal(-status)
        except ValueError:
            name = None
        return f"was killed by signal {-status} ({name})"
    return f"exited with status {status}"


def addresses(context: Any, nics: Sequence[str]) -> list[str]:
    """Returns this machine's addresses at which executors may reach it, the likeliest first.

    Raises ValueError if none of the interfaces `nics` has an address.
    """
    if nics:
        found = [address for address in map(address_of, nics) if address]
        if not found:
            there = ", ".join(name for _, name in socket.if_nameindex())
            raise ValueError(
                f"nics={sorted(nics)}: none of them has an address on this machine, which has {there}")
        return found
    if slots.is_on_this_machine(context):
        return ["127.0.0.1"]
    hosts = [context.getConf().get("spark.driver.host", ""), socket.getfqdn()]
    hosts += filter(None, (address_of(name) for _, name in socket.if_nameindex() if name != "lo"))
    return list(dict.fromkeys(filter(None, hosts)))


def _any(hosts: Sequence[str]) -> str:
    return "::" if all(":" in host for host in hosts) else "0.0.0.0"
