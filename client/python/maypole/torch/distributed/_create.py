"""Registers the backend, and makes the process groups that torch.distributed asks for."""

from typing import Any, Optional

import torch
import torch.distributed as dist

from maypole.common import basics, process_sets

NAME = "maypole"
OLDEST_TORCH = (2, 1)


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


def _create(options: Any, backend_options: Optional[Any]) -> Any:
    """A process group for these options of torch.distributed (its _DistributedBackendOptions)."""
    from maypole.torch.distributed._process_group import ProcessGroup

    whole_job = not options.global_ranks_in_group
    if whole_job:
        basics.init()
        _check_ranks(options)
        process_set: process_sets.ProcessSet = process_sets.global_process_set
    else:
        process_set = process_sets.of_members(options.global_ranks_in_group)
    group = ProcessGroup(options.group_rank, options.group_size)
    group.open(str(options.group_id), options.timeout, process_set, list(options.global_ranks_in_group) or
               list(range(options.group_size)), options.store)
    return group


def _check_ranks(options: Any) -> None:
    """torch.distributed and Maypole must mean the same rank by a number."""
    rank, size = basics.rank(), basics.size()
    if (rank, size) != (options.group_rank, options.group_size):
        raise RuntimeError(
            f"init_process_group('{NAME}'): torch.distributed's rank {options.group_rank} of {options.group_size} is "
            f"rank {rank} of {size} of the Maypole job; give init_process_group() no rank and world_size, or those of "
            "the launcher (maypolerun, torchrun, srun, mpirun)")
