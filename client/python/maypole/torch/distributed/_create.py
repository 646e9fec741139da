"""Registers the backend, and makes the process groups that torch.distributed asks for."""

import datetime
import itertools
import logging
import time
from collections.abc import Iterator
from typing import Any, Optional

import torch
import torch.distributed as dist

from maypole.common import basics, objects, process_sets

_log = logging.getLogger("maypole.torch.distributed")

NAME = "maypole"
OLDEST_TORCH = (2, 1)

# The limits of all attempts to connect to the store, as in torch, and of one.
_CONNECT_SECONDS = 300
_ATTEMPT_SECONDS = 2


def register() -> None:
    """Makes "maypole" a backend of torch.distributed; a second call does nothing.

    Raises:
        ImportError: torch is older than 2.1, or has no torch.distributed.
    """
    version = tuple(int(part) for part in torch.__version__.split(".")[:2])
    if version < OLDEST_TORCH or not dist.is_available():
        raise ImportError(f"maypole.torch.distributed needs torch 2.1 or newer with torch.distributed; this is torch "
                          f"{torch.__version__}{'' if dist.is_available() else ', which has none'}")
    if NAME.upper() in dist.Backend._plugins:
        return
    dist.Backend.register_backend(NAME, _create, extended_api=True, devices=["cpu", "cuda"])
    dist.register_rendezvous_handler(NAME, _rendezvous)


def _create(options: Any, backend_options: Optional[Any]) -> Any:
    """A process group for these options of torch.distributed (its _DistributedBackendOptions)."""
    from maypole.torch.distributed import _epochs, _methods, _world
    from maypole.torch.distributed._process_group import ProcessGroup

    group = ProcessGroup.of(options.group_rank, options.group_size, str(options.group_id), options.timeout,
                            options.store)
    others = {device: name for device, name in _methods.backends_of_group().items() if name != NAME}
    if others:
        group.others = _methods.OtherDevices(others, options)
    is_default = not options.global_ranks_in_group
    if is_default and getattr(options, "enable_reconfigure", False):
        return group
    if is_default:
        _epochs.join()
        _check_ranks(options)
        rank, key = options.group_rank, f"maypole/offers/{next(_worlds)}"
        world = _world.World(list(range(options.group_size)), rank,
                             lambda other: options.store.get(f"{key}/{other}").decode())
        options.store.set(f"{key}/{rank}", world.offers.address)
        _world.replace(world)
        group.open(process_sets.global_process_set, world.ranks, world, is_default=True)
    else:
        of_job = _world.current.ranks if _world.current is not None else range(dist.get_world_size())
        group.open_for_ranks([of_job[rank] for rank in options.global_ranks_in_group])
    return group


# Counts default groups with one store, in the same way on all ranks, so that their addresses have different keys.
_worlds = itertools.count()


def _check_ranks(options: Any) -> None:
    """Checks that torch.distributed and Maypole give this process the same rank."""
    rank, size = basics.rank(), basics.size()
    if (rank, size) != (options.group_rank, options.group_size):
        raise RuntimeError(
            f"init_process_group('{NAME}'): torch.distributed's rank {options.group_rank} of {options.group_size} is "
            f"rank {rank} of {size} of the Maypole job; give init_process_group() no rank and world_size, or those of "
            f"the launcher (maypolerun, torchrun, srun, mpirun); in an elastic job init_method='{NAME}://'")


def _rendezvous(url: str, **_: Any) -> Iterator[tuple[Any, int, int]]:
    """init_method="maypole://": rank and size are the job's; in an elastic job they change with the membership epoch.

    Rank 0 serves the store.
    """
    from maypole.torch.distributed import _epochs, _offers
    global _worlds

    _epochs.join()
    _worlds = itertools.count()  # the store is new, and other processes may have joined the job later
    rank, size = basics.rank(), basics.size()
    store: Any = None
    if rank == 0:
        store = dist.TCPStore("0.0.0.0" if basics.cross_size() > 1 else "127.0.0.1", 0, size, True,
                              wait_for_workers=False)
    host = "127.0.0.1" if basics.cross_size() == 1 else _offers.own_address()
    address = objects.broadcast_object((host, store.port) if rank == 0 else None, 0, "maypole.distributed.store")
    if rank != 0:
        store = _connected(address, size)
    yield store, rank, size


def _connected(address: tuple[str, int], size: int) -> Any:
    """Returns a client of rank 0's store.

    The constructor answers no signal, and does not know that rank 0 has died. So it may wait only briefly, and between
    two attempts an operation of this rank alone fails if the membership epoch is over.

    Raises:
        HorovodInternalError: the membership epoch is over.
    """
    until = time.monotonic() + _CONNECT_SECONDS
    while True:
        try:
            store = dist.TCPStore(*address, size, False, datetime.timedelta(seconds=_ATTEMPT_SECONDS),
                                  wait_for_workers=False)
            store.set_timeout(datetime.timedelta(seconds=_CONNECT_SECONDS))
            return store
        except RuntimeError:
            process_sets.of_members([basics.rank()])
            if time.monotonic() >= until:
                raise
            _log.info("maypole: rank 0's store at %s does not answer yet", address)
