"""Joins and leaves the job; returns this process's place in it.

The functions that return a place (rank(), size(), ...), is_homogeneous() and
mpi_threads_supported() raise ValueError before init(). In a forked child of a
rank they return the rank's answers. Thread contract: any
thread may call any function; init() and shutdown() are normally called once, by
the main thread.
"""

import atexit
import logging
import os
import threading
from typing import Any, Callable, Optional

from maypole import _native
from maypole.common import operations, part_of_job, rendezvous
from maypole.common import process_sets as sets
from maypole.common.exceptions import (
    FORKED,
    begin_epoch,
    forget_end_of_epoch,
    forked,
    from_status,
    not_initialized,
    note_joined,
)

_log = logging.getLogger("maypole")

_atexit_registered = False
_joins = 0
_finished = False
# Functions of frameworks: called when the process has joined a job, and while it is still in the job before it leaves.
_after_joining: list[Callable[[], None]] = []
_before_leaving: list[Callable[[], None]] = []
# What rank() and the like answer. A forked child, such as a worker of a DataLoader, has only this copy.
_place: dict[str, int] = {}
_PLACES = ("rank", "size", "local_rank", "local_size", "cross_rank", "cross_size", "is_homogeneous")


def init(comm: Any = None, process_sets: Any = None) -> None:
    """Joins the job and blocks until all its ranks have joined.

    The place in the job comes from the environment variables of the launcher (maypolerun, torchrun, mpirun,
    srun); without them this is a job of one rank. A second call does nothing. After shutdown() it joins the
    job's next epoch. shutdown() runs at exit.

    Ctrl-C ends the wait.

    Args:
        comm: None: all ranks of the launcher. A list of some of them, in ascending order: they form a job of
            their own (part_of_job.py). A communicator of mpi4py of all ranks.
        process_sets: None, or a list of ProcessSet, the same on all ranks, which init() adds (also in a second
            call). "dynamic" has no effect, because sets can always be added. If two sets are equal, init()
            raises ValueError; it has joined the job nevertheless, and may be called again.

    Raises:
        NotImplementedError: for other values of `comm`.
        ValueError: the environment is wrong, or this is a forked child of a rank.
        HorovodInternalError: the job could not be joined in time.
        SystemExit(0): the training of this elastic job is over, and this process has come too late for it.
    """
    global _atexit_registered, _joins, _place
    wanted_ranks = part_of_job.ranks_of(comm)
    wanted_sets = sets.check_new(process_sets)
    if forked():
        raise ValueError(FORKED)
    library = _native.library()  # here, so that the caller gets an ImportError
    joining = not library.is_initialized()
    place = {}
    if joining:
        place = part_of_job.variables(os.environ, wanted_ranks)
        rendezvous.offer(library)
    with part_of_job.environment(place):
        status, text = _interruptibly(lambda: _native_init(library))
    if status == _native.OUT_OF_RANGE and is_elastic() and not _finished:
        _log.warning(
            "maypole: %s; this process came too late and ends, with status 0",
            text)
        raise SystemExit(0)
    if status != _native.OK:
        raise from_status(status, text)
    note_joined()
    if joining:
        _joins += 1
        begin_epoch(_joins, is_elastic())
        _place = {name: getattr(library, name)() for name in _PLACES}
        sets.forget_all()
        _set_horovods_places()
        for function in _after_joining:
            function()
    # Ends the native threads while the tensors they may write to still live.
    if not _atexit_registered:
        atexit.register(shutdown)
        _atexit_registered = True
    if joining:
        try:
            part_of_job.check_size(wanted_ranks, size())
        except NotImplementedError:
            shutdown()
            raise
    sets.add_all(wanted_sets)


def _set_horovods_places() -> None:
    """Sets HOROVOD_RANK and the like for scripts, in an elastic job, whose launcher does not know them."""
    if os.environ.get("HOROVOD_ELASTIC") != "1" or not is_elastic():
        return
    for place in (rank, size, local_rank, local_size, cross_rank, cross_size):
        os.environ["HOROVOD_" + place.__name__.upper()] = str(place())


def _native_init(library: Any) -> tuple[int, str]:
    status = library.init()
    while status == _native.CANCELLED:
        status = library.init()
    # last_error() belongs to the calling thread, so it is read here.
    return status, library.last_error() if status != _native.OK else ""


def _interruptibly(function: Callable[[], Any]) -> Any:
    """Runs function() in a thread, so that Ctrl-C ends the main thread's wait for it."""
    if threading.current_thread() is not threading.main_thread():
        return function()
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(function()),
                              name="maypole-init", daemon=True)
    thread.start()
    while thread.is_alive():
        # A signal that arrives just before a sleep does not end the sleep.
        thread.join(operations.WAIT_SLICE_MS / 1000)
    return results[0]


def call_at_epochs(after_joining: Callable[[], None], before_leaving: Callable[[], None]) -> None:
    """Makes init() call the first function when it has joined a job, and shutdown() and the like the second one.

    The first one is called now if this process has joined one. Neither may raise an error.
    """
    _after_joining.append(after_joining)
    _before_leaving.append(before_leaving)
    if in_job():
        after_joining()


def _prepare_to_leave() -> None:
    if in_job():
        for function in _before_leaving:
            function()


def _forget_epoch() -> None:
    _place.clear()
    sets.forget_all()
    forget_end_of_epoch()


def shutdown() -> None:
    """Leaves the job. Pending operations end with an error.

    Process sets end as well. Does nothing when not initialized.
    """
    _prepare_to_leave()
    _native.library().shutdown()
    _forget_epoch()


def leave_epoch() -> None:
    """shutdown() for a process that will call init() again.

    In an elastic job the next epoch waits for this process.
    """
    _prepare_to_leave()
    _native.library().leave_epoch()
    _forget_epoch()


def abandon_epoch() -> None:
    """leave_epoch() for a process that did not get the job's state in this epoch.

    The process rejoins with the seniority it had before this epoch, so processes that hold newer state come first.
    """
    _prepare_to_leave()
    _native.library().abandon_epoch()
    _forget_epoch()


def set_finished(finished: bool) -> None:
    """Reports that this process of an elastic job has trained to the end, or that it begins another training.

    When it leaves permanently after it has finished, the job's training is
    over: the coordinator refuses processes that come later.
    """
    global _finished
    if finished != _finished and is_elastic():
        _finished = finished
        _native.library().set_finished(int(finished))


def has_finished() -> bool:
    """The argument of the last set_finished()."""
    return _finished


def is_elastic() -> bool:
    """Whether ranks of this job may come and go (MAYPOLE_ELASTIC=1)."""
    return os.environ.get("MAYPOLE_ELASTIC") == "1"


def joins() -> int:
    """How often this process has joined a job; it changes with each membership epoch."""
    return _joins


def is_initialized() -> bool:
    """Whether init() has been called (and shutdown() has not), here or in the rank that has forked this process."""
    return in_job() or bool(_place and forked())


def in_job() -> bool:
    """Whether this process is a rank: False in a forked child, which can ask for its parent's place but do nothing."""
    return _native.library().is_initialized()


def _placed(name: str) -> int:
    value = getattr(_native.library(), name)()
    # The library answers -1 outside a job.
    if value < 0 and forked():
        value = _place.get(name, -1)
    if value < 0:
        raise ValueError(not_initialized())
    return value


def rank() -> int:
    """This process's number in the job, 0 to size() - 1."""
    return _placed("rank")


def size() -> int:
    """Number of processes in the job."""
    return _placed("size")


def local_rank() -> int:
    """This process's number on its node, 0 to local_size() - 1."""
    return _placed("local_rank")


def local_size() -> int:
    """Number of the job's processes on this node."""
    return _placed("local_size")


def cross_rank() -> int:
    """This node's number among the job's nodes, 0 to cross_size() - 1."""
    return _placed("cross_rank")


def cross_size() -> int:
    """Number of the job's nodes."""
    return _placed("cross_size")


def is_homogeneous() -> bool:
    """Whether every node has the same number of ranks."""
    size()
    return bool(_place["is_homogeneous"] if forked() else _native.library().is_homogeneous())


def mpi_threads_supported() -> bool:
    """False: Maypole does not use MPI."""
    size()
    return False


def mpi_enabled() -> bool:
    """False: Maypole does not use MPI."""
    return False


def mpi_built(verbose: bool = False) -> bool:
    """False: Maypole does not use MPI."""
    return False


def gloo_enabled() -> bool:
    """True, which is Horovod's answer if a job needs no MPI.

    Maypole does not use Gloo: between nodes it has a TCP transport of its own.
    """
    return True


def gloo_built(verbose: bool = False) -> bool:
    """True, as gloo_enabled()."""
    return True


def nccl_built(verbose: bool = False) -> int:
    """0: nothing is compiled against NCCL.

    The executors use NCCL where there is one (`python3 -m maypole`). But scripts
    call this to learn how Adasum treats the ranks of a node: with NCCL, Horovod
    averages within the node, so they multiply the learning rate by local_size().
    Maypole's Adasum combines single ranks.

    Args:
      verbose: no effect, as in all functions of this kind: Horovod prints what
        it finds.
    """
    return 0


def ddl_built(verbose: bool = False) -> bool:
    """False."""
    return False


def ccl_built(verbose: bool = False) -> bool:
    """False."""
    return False


def cuda_built(verbose: bool = False) -> bool:
    """True: CUDA tensors are supported.

    A GPU need not be present, because the driver is opened when the first CUDA
    tensor is submitted.
    """
    return True


def rocm_built(verbose: bool = False) -> bool:
    """False."""
    return False


def counter(name: str) -> Optional[int]:
    """Returns a counter of this process; None if no counter has that name.

    `operations`, `completed`, `failed`, `bytes`, `pending`, ...: maypole.h has the list.

    Args:
        name: the counter's name.
    """
    value = _native.library().counter(name)
    return None if value < 0 else value
