"""Runs in a Spark task of maypole.spark.run(): starts a rank's process when the driver says so, and reports.

The rank is a process of its own, started with the executor's environment. It ends with the task: if Spark kills the
Python worker, the kernel kills the rank. No file remains, whichever process is killed: the rank gets the function,
and its node's agent the cluster secret, through memory without a name in a file system.

Thread contract: the task's main thread.
"""

import os
import pickle
import selectors
import signal
import socket
import subprocess
import sys
from collections.abc import Iterable, Iterator
from typing import IO, Any, NamedTuple, Optional

from maypole.common import memfd
from maypole.common.daemons import Daemon
from maypole.runner import messages
from maypole.spark import channel

_CONNECT_SECONDS = 30.0
_TERM_SECONDS = 2.0  # from SIGTERM to SIGKILL, when the job is over
_POLL_SECONDS = 0.05
READY_SECONDS = 60.0  # of a daemon
_PACKAGE_DIRECTORY = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
_GPUS = "MAYPOLE_SPARK_GPUS"


class Plan(NamedTuple):
    """What every task of a job gets through Spark, which protects it like all functions of tasks.

    addresses: (host, port) where the driver listens. key: of the channel. call: messages.encode_call()'s. executable:
    Python of the ranks; None: the task's. secret: the cluster secret. coordinator: "HOST:PORT", or ":PORT" for a port
    of the driver, or "" if there is none, in a job of one rank.
    """

    addresses: list[tuple[str, int]]
    key: bytes
    call: bytes
    executable: Optional[str]
    job: str
    secret: str
    token: str
    coordinator: str
    elastic: bool
    start_timeout: int


def daemon_flags(start_timeout: int) -> list[str]:
    """The flags that coordinator and agents share."""
    return ["--secret_file={directory}/secret", f"--start_timeout={start_timeout}s", "--metrics=",
            "--log_level=warning"]


def get_available_devices() -> list[str]:
    """The addresses of the GPUs that Spark has assigned to this rank's task; empty: none."""
    if _GPUS in os.environ:
        return [address for address in os.environ[_GPUS].split(",") if address]
    return _gpus_of_task()


def _gpus_of_task() -> list[str]:
    try:
        from pyspark import TaskContext
    except ImportError:
        return []
    context = TaskContext.get()
    resources = context.resources() if context is not None else {}
    return list(resources["gpu"].addresses) if "gpu" in resources else []


def main(plan: Plan, rows: Iterable[int]) -> Iterator[int]:
    """For mapPartitions(); the partition's only row is the task's index. Yields nothing.

    Returns when the driver says that the job is over. Raises ConnectionError if the driver is lost; the rank has ended
    then.
    """
    index = next(iter(rows))
    link, driver_host = channel.connect(plan.addresses, plan.key, _CONNECT_SECONDS)
    try:
        link.send("hello", {
            "index": index,
            "host": socket.gethostname(),
            "space": os.stat("/proc/self/ns/mnt").st_ino,
            "pid": os.getpid()
        })
        _Task(plan, link, driver_host, index).serve()
    finally:
        link.close()
    return iter(())


class _Task:
    """One task's process, and the driver's commands for it."""

    def __init__(self, plan: Plan, link: channel.Channel, driver_host: str, index: int):
        self._plan = plan
        self._link = link
        self._node = f"{socket.gethostname()[:40]}.{index}.{os.urandom(3).hex()}"  # each attempt is a new node
        coordinator = plan.coordinator
        self._coordinator = driver_host + coordinator if coordinator.startswith(":") else coordinator
        self._selector = selectors.DefaultSelector()
        self._process: Optional[subprocess.Popen] = None
        self._streams: dict[int, str] = {}  # open pipes of the process
        self._pipes: dict[int, IO[bytes]] = {}  # of the process, by their fd
        self._answer = bytearray()
        self._agent: Optional[Daemon] = None
        self._finished_file = ""  # exists if the process has trained to the end; empty: unknown
        self._memory = [_memory("function", _call_with_paths(plan.call)), _memory("secret", plan.secret.encode())]

    def serve(self) -> None:
        """Serves the driver until it sends "end"."""
        self._selector.register(self._link.fileno(), selectors.EVENT_READ, "driver")
        try:
            while not self._serve_once():
                pass
        finally:
            self._kill()
            if self._agent is not None:
                self._agent.end()
            for fd in self._memory:
                os.close(fd)
            self._selector.close()

    def _serve_once(self) -> bool:
        """Returns whether the driver has sent "end"."""
        timeout = _POLL_SECONDS if self._process is not None and not self._streams else 1.0
        for key, _ in self._selector.select(timeout):
            if key.data == "driver":
                for kind, *rest in self._link.receive():
                    if kind == "end":
                        return True
                    self._obey(kind, *rest)
            elif key.fd in self._streams:
                self._forward(key.fd)
        if self._process is not None:
            self._reap(self._process)
        return False

    def _obey(self, kind: str, value: Any) -> None:
        if kind == "run":
            try:
                self._start(value)
            except Exception as error:  # the driver reports it
                self._kill()
                self._link.send("ended", None, b"", f"could not be started: {type(error).__name__}: {error}", False)
        elif kind == "leave":
            self._signal(signal.SIGTERM, group=False)  # it needs its helpers until it has left

    def _start(self, variables: dict[str, str]) -> None:
        plan = self._plan
        environment = dict(os.environ)
        environment.update(variables)
        function, secret = self._memory
        environment.update(MAYPOLE_JOB=plan.job, MAYPOLE_TOKEN=plan.token)
        environment[_GPUS] = ",".join(_gpus_of_task())
        for name in ("MAYPOLE_AGENT", "MAYPOLE_COORDINATOR", "MAYPOLE_SECRET_FILE"):
            environment.pop(name, None)
        if plan.elastic:
            agent = self._running_agent()
            self._finished_file = os.path.join(os.path.dirname(agent), "finished")
            environment.update(MAYPOLE_AGENT=agent, MAYPOLE_FINISHED_FILE=self._finished_file)
        elif self._coordinator:
            # The job's first rank on each host starts the agent there, as under mpirun.
            environment.update(MAYPOLE_COORDINATOR=self._coordinator,
                               MAYPOLE_SECRET_FILE=f"/proc/{os.getpid()}/fd/{secret}")
        ours, theirs = os.pipe()
        try:
            environment.update(MAYPOLE_FUNCTION=f"/proc/self/fd/{function}", MAYPOLE_RESULT_FD=str(theirs))
            self._answer = bytearray()
            process = self._process = subprocess.Popen([plan.executable or sys.executable, "-c",
                                              _program(os.getpid())],
                                             env=environment,
                                             stdin=subprocess.DEVNULL,
                                             stdout=subprocess.PIPE,
                                             stderr=subprocess.PIPE,
                                             pass_fds=(theirs, function),
                                             start_new_session=True)
        except BaseException:
            os.close(ours)
            raise
        finally:
            os.close(theirs)
        assert process.stdout is not None and process.stderr is not None  # they are pipes
        self._pipes = {pipe.fileno(): pipe for pipe in (process.stdout, process.stderr)}
        for fd, name in ((process.stdout.fileno(), "stdout"), (process.stderr.fileno(), "stderr"), (ours, "answer")):
            self._streams[fd] = name
            self._selector.register(fd, selectors.EVENT_READ, name)
        self._link.send("started", process.pid)

    def _running_agent(self) -> str:
        if self._agent is None or self._agent.lost:
            self._agent = Daemon("maypole-worker", [
                f"--coordinator={self._coordinator}", f"--node={self._node}", "--socket={directory}/agent.sock",
                *daemon_flags(self._plan.start_timeout)
            ], self._plan.secret, READY_SECONDS)
        return self._agent.said["socket"]

    def _forward(self, fd: int) -> None:
        data = os.read(fd, 65536)
        name = self._streams[fd]
        if not data:
            self._close(fd)
        elif name == "answer":
            self._answer += data
        else:
            self._link.send("output", name, data)

    def _close(self, fd: int) -> None:
        self._selector.unregister(fd)
        if self._streams.pop(fd) == "answer":
            os.close(fd)
        else:
            self._pipes.pop(fd).close()

    def _reap(self, process: subprocess.Popen) -> None:
        """Reports the end of the process, after its output. Its own children may keep the pipes open for longer."""
        status = process.poll()
        if status is None:
            return
        while True:
            ready = [key.fd for key, _ in self._selector.select(0) if key.fd in self._streams]
            if not ready:
                break
            for fd in ready:
                self._forward(fd)
        for fd in list(self._streams):
            self._close(fd)
        self._kill()
        self._link.send("ended", status, bytes(self._answer), "", self._take_finished())

    def _take_finished(self) -> bool:
        """Whether the process that has ended had trained to the end, in an elastic job."""
        try:
            os.unlink(self._finished_file)
            return True
        except FileNotFoundError:
            return False

    def _signal(self, number: int, group: bool = True) -> None:
        process = self._process
        if process is not None and process.returncode is None:
            try:
                (os.killpg if group else os.kill)(process.pid, number)
            except ProcessLookupError:
                pass

    def _kill(self) -> None:
        """Ends the process and the processes that it has started."""
        self._signal(signal.SIGTERM)
        process, self._process = self._process, None
        if process is None:
            return
        try:
            process.wait(_TERM_SECONDS)
        except subprocess.TimeoutExpired:
            pass
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.wait()
        for fd in list(self._streams):
            self._close(fd)


def _memory(name: str, data: bytes) -> int:
    """Returns a descriptor of an unnamed file with these bytes, which only this user can open."""
    fd = memfd.create("maypole-" + name)
    os.fchmod(fd, 0o600)
    with open(os.dup(fd), "wb") as f:
        f.write(data)
    return fd


def _call_with_paths(call: bytes) -> bytes:
    """Puts the task's module paths (with files that Spark has shipped) before the driver's in the call."""
    paths, body = messages.decode_paths(call)
    own = [path or os.getcwd() for path in sys.path]
    return pickle.dumps((own + [path for path in paths if path not in own], body))


def _program(task: int) -> str:
    return (f"import sys; sys.path.append({_PACKAGE_DIRECTORY!r}); from maypole.common.guard import end_with_parent; "
            f"end_with_parent({task}, {int(signal.SIGKILL)}) or sys.exit(1); "
            "from maypole.runner import rank; rank.main()")
