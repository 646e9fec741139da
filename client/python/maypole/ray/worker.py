"""The Ray actor that is a rank."""

import os
import signal
import socket
import threading
from typing import Any, Callable, NamedTuple, Optional

from maypole import _native
from maypole.common import basics
from maypole.common.elastic import ASKED_TO_LEAVE
from maypole.ray import ray_logger, shim
from maypole.ray.cluster import get_ray, this_node

_FINISHED = "maypole_finished"  # an attribute of a rank's exception: its training was over


class Ended(NamedTuple):
    """How a function of an elastic rank has ended.

    rank: the rank's number in its last epoch; None if it is in none. left: it has no value, because it stopped
    early, or came when the training was over. departed: it has no value, because SIGTERM asked it to leave; it has
    not finished. finished: run() of maypole.elastic had returned.
    """

    rank: Optional[int]
    value: Any
    left: bool = False
    departed: bool = False
    finished: bool = False


class BaseHorovodWorker:
    """A rank: runs functions, in the main thread of its process, one after the other."""

    executable: Any = None

    def __init__(self, world_rank: int = 0, world_size: int = 1):
        del world_rank, world_size  # ranks are numbered when the nodes of all workers are known

    def node_id(self) -> str:
        """Ray's id of the worker's node."""
        return this_node()

    def hostname(self) -> str:
        """The name of the worker's host."""
        return socket.gethostname()

    def get_gpu_ids(self) -> list[Any]:
        """The CUDA devices that Ray has assigned to this worker."""
        return get_ray().get_gpu_ids()

    def where(self, horovod: bool = False) -> dict[str, Any]:
        """Returns what the executor needs to number the ranks. horovod: make the package horovod importable here."""
        if horovod:
            shim.add_to_path()
        return {"node_id": self.node_id(), "host": self.hostname(), "gpus": self.get_gpu_ids(), "pid": os.getpid()}

    def update_env_vars(self, env_vars: dict[str, Any]) -> None:
        """Sets environment variables of this process."""
        os.environ.update({name: str(value) for name, value in env_vars.items()})

    def env_vars(self) -> dict[str, str]:
        """The environment variables of this process."""
        return dict(os.environ)

    def start_executable(self, executable_cls: Optional[type] = None, executable_args: Optional[list] = None,
                         executable_kwargs: Optional[dict] = None) -> None:
        """Makes the object that execute() passes to functions; None without a class."""
        if executable_cls:
            self.executable = executable_cls(*(executable_args or []), **(executable_kwargs or {}))

    def execute(self, func: Callable[[Any], Any]) -> Any:
        """Returns func(executable)."""
        return func(self.executable)

    def execute_elastic(self, func: Callable[[Any], Any], env_vars: dict[str, Any], executable: tuple, queue: Any
                       ) -> Ended:
        """Runs a rank of an elastic job, from start to end. executable: the arguments of start_executable()."""
        self.update_env_vars(env_vars)
        self.set_queue(queue)
        if threading.current_thread() is threading.main_thread():
            # SIGTERM asks a rank to leave (docs/elastic.md). Ray's handler, which
            # maypole.elastic would call, ends the process at once.
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        try:
            self.start_executable(*executable)
            value = func(self.executable)
        except SystemExit as end:
            departed = end.code == ASKED_TO_LEAVE
            if end.code not in (None, 0) and not departed:
                raise RuntimeError(f"it called sys.exit({end.code!r})") from end
            return Ended(None, None, left=True, departed=departed, finished=_has_finished())
        except Exception as error:
            setattr(error, _FINISHED, _has_finished())  # for failed_after_its_training()
            raise
        ended = Ended(basics.rank() if _in_a_job() else None, value, finished=_has_finished())
        self.leave()  # before Ray ends the process, which would look like a death
        return ended

    def leave(self) -> None:
        """Leaves the job, so that ranks that wait for this one get an error. init() may follow."""
        if _in_a_job():
            basics.shutdown()

    def set_queue(self, queue: Any) -> None:
        """Sets the queue to which ray_logger.log() sends."""
        ray_logger.configure(queue)


def failed_after_its_training(error: BaseException) -> bool:
    """Whether execute_elastic() raised it after run() of maypole.elastic had returned."""
    return getattr(getattr(error, "cause", None) or error, _FINISHED, False)


def _in_a_job() -> bool:
    # A function that does not use Maypole does not need its library.
    return _native.loaded() and basics.in_job()


def _has_finished() -> bool:
    return _in_a_job() and basics.has_finished()
