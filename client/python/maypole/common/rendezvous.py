"""Lets ranks on several nodes find each other through torchrun's store.

torchrun sets MASTER_ADDR and MASTER_PORT, the address of a TCPStore. If
TORCHELASTIC_USE_AGENT_STORE is True, the store runs in torchrun's agent on node
0; otherwise rank 0 must open it. libmaypole does not speak the store's
protocol, so this module passes it two functions that do (maypole_set_exchange).
init() calls them in its own thread.

torch is imported only if a job of torchrun has several nodes.
"""

import datetime
import os
import socket
import time
from collections.abc import Mapping
from typing import Any, Callable, Optional

# How long a TCPStore tries to connect.
_CONNECT = datetime.timedelta(seconds=30)
# Time limit of each of the checks whether the store listens.
_LOOK_SECONDS = 1
_PLACES = ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
# Variables of launchers that take precedence over _PLACES in libmaypole.
_OTHERS = ("OMPI_COMM_WORLD_SIZE", "MPI_LOCALNRANKS")
# Slurm's step numbers from here on stand for batch scripts and shells.
_FIRST_SPECIAL_STEP = 4294967280


def needed(environ: Mapping[str, str]) -> bool:
    """Whether torchrun, or a launcher that sets the same variables, has started ranks of this job on several nodes."""
    by_torchrun = "TORCHELASTIC_RUN_ID" in environ
    alike = (all(environ.get(name) for name in _PLACES) and
             not any(environ.get(name) for name in _OTHERS) and
             not _in_step_with_tasks(environ))
    return ((by_torchrun or alike) and
            not environ.get("MAYPOLE_SIZE") and
            not environ.get("MAYPOLE_AGENT") and
            environ.get("WORLD_SIZE") != environ.get("LOCAL_WORLD_SIZE"))


def _in_step_with_tasks(environ: Mapping[str, str]) -> bool:
    tasks = environ.get("SLURM_STEP_NUM_TASKS") or environ.get("SLURM_NTASKS") or "1"
    step = environ.get("SLURM_STEP_ID") or str(_FIRST_SPECIAL_STEP)
    return (step.isdigit() and int(step) < _FIRST_SPECIAL_STEP and
            tasks != "1")


class Store:
    """put() and get() on a store that is opened at its first use.

    The store stays open, because rank 0's may be the server for all other
    ranks. look() raises ConnectionError while the store does not listen. get()
    calls look() first, because opening a TCPStore too early blocks or fails,
    and writes lines to stderr each time.
    """

    def __init__(self, open_store: Callable[[], Any],
                 look: Callable[[], None] = lambda: None):
        self._open = open_store
        self._look = look
        self._store: Optional[Any] = None
        self._why = "nobody has published it"

    def why(self) -> str:
        """Why the last get() returned None."""
        return self._why

    def put(self, key: str, value: str) -> None:
        """Sets the key's value, for all nodes."""
        self._opened().set(key, value)

    def get(self, key: str, timeout_ms: int) -> Optional[str]:
        """Returns None if the key was not put in time or there is no store yet."""
        began = time.monotonic()
        try:
            if self._store is None:
                self._look()
            store = self._opened()
        except (OSError, RuntimeError) as error:
            # Rank 0, which may have to open the store, may start later; the
            # caller decides how long to wait. (Other errors, such as an OSError
            # of `import torch`, are raised.)
            if not isinstance(error, ConnectionError) and not _timed_out(error):
                raise
            self._why = str(error)
            # A refused connection fails at once, so the caller would retry
            # without a pause.
            time.sleep(max(0.0, began + timeout_ms / 1000 - time.monotonic()))
            return None
        try:
            store.wait([key], datetime.timedelta(milliseconds=timeout_ms))
        except RuntimeError as error:
            if _timed_out(error):
                self._why = "nobody has published it"
                return None
            raise
        return store.get(key).decode("utf-8")

    def _opened(self) -> Any:
        if self._store is None:
            self._store = self._open()
        return self._store


def _timed_out(error: Exception) -> bool:
    """Whether the error is a timeout. Its type differs between versions of torch; its text hardly does."""
    text = str(error).lower().replace(" ", "")
    return "timeout" in text or "timedout" in text


def look_for_torchruns(environ: Mapping[str, str]) -> None:
    """Raises ConnectionError while no process listens at the address of this job's TCPStore."""
    host, port = environ["MASTER_ADDR"], int(environ["MASTER_PORT"])
    if not 0 < port < 1 << 16:
        raise ValueError(f"MASTER_PORT='{port}': expected a number from 1 to 65535")
    try:
        socket.create_connection((host, port), _LOOK_SECONDS).close()
    except OSError as error:
        raise ConnectionError(f"torch's store at {host}:{port} cannot be reached: {error}") from error


def open_torchruns(environ: Mapping[str, str]) -> Any:
    """Opens the TCPStore of this job in the same way as torch.distributed."""
    from torch.distributed import TCPStore
    of_agent = environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    return TCPStore(environ["MASTER_ADDR"],
                    int(environ["MASTER_PORT"]),
                    is_master=not of_agent and environ["RANK"] == "0",
                    timeout=_CONNECT,
                    wait_for_workers=False,
                    multi_tenant=True)


_offered = False


def offer(library: Any) -> None:
    """Sets torchrun's store as libmaypole's exchange if the job needs it."""
    global _offered
    if _offered or not needed(os.environ):
        return
    store = Store(lambda: open_torchruns(os.environ),
                  lambda: look_for_torchruns(os.environ))
    library.set_exchange(store.put, store.get, store.why)
    _offered = True
