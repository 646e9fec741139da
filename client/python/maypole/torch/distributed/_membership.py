"""shrink_group() and reconfigure() of torch 2.15: change the ranks of a group.

Both may begin a membership epoch (_epochs.py), for which the job must be elastic if ranks have died. In it each rank
says who it was: shrink_group() by its rank in the group, reconfigure() by the handle of its process.

Thread contract: one thread at a time.
"""

from typing import Any, Optional

import torch
from torch._C._distributed_c10d import Backend as _TorchBackend

from maypole.common import basics, process_sets
from maypole.common.exceptions import HorovodInternalError
from maypole.torch.distributed import _epochs, _world
from maypole.torch.distributed._process_group import ProcessGroup

_METHODS = ("allreduce", "allreduce_coalesced", "reduce", "broadcast", "allgather", "allgather_coalesced",
            "all_gather_single", "all_gather_single_coalesced", "gather", "scatter", "reduce_scatter",
            "reduce_scatter_single", "reduce_scatter_single_coalesced", "alltoall", "all_to_all_single", "send", "recv",
            "recv_anysource", "barrier", "abort", "shutdown", "set_timeout", "shrink", "get_reconfigure_handle")


class Backend(_TorchBackend):
    """A group in the form in which shrink_group() puts it into a ProcessGroup of torch's: passes all calls to ours.

    Args:
        group: a group of ours.
    """

    supports_shrinking = True
    supports_coalescing = False
    supports_splitting = False

    def __init__(self, group: ProcessGroup):
        super().__init__(group.rank(), group.size())
        self._group = group

    def getBackendName(self) -> str:
        return "maypole"

    def monitored_barrier(self, opts: Any, wait_all_ranks: bool = False) -> None:
        """As barrier()."""
        self._group.monitored_barrier(getattr(opts, "timeout", None), wait_all_ranks)


def _passed_on(name: str) -> Any:

    def method(self: Backend, *args: Any, **kwargs: Any) -> Any:
        return getattr(self._group, name)(*args, **kwargs)

    method.__name__ = name
    return method


for _name in _METHODS:
    setattr(Backend, _name, _passed_on(_name))


def shrunk(group: ProcessGroup, world: Optional[_world.World], ranks: list[int], excluded: list[int],
           flags: int) -> Backend:
    """Returns the group without the excluded ranks.

    Args:
        group: the group that shrinks.
        world: its World, if it is the default group.
        ranks: its members' ranks in the job.
        excluded: ranks in the group.
        flags: not 0: begin a membership epoch even if this one is not over.
    """
    stay = [rank for rank in range(len(ranks)) if rank not in excluded]
    now = [ranks[rank] for rank in stay]
    if flags or _epochs.is_over():
        if world is None:
            raise HorovodInternalError("the membership epoch is over, so all ranks of the job must call shrink_group() "
                                       "of the default group first")
        world.offers.close()
        _epochs.begin()
        new_world, members = _new_world(group.rank(), process_sets.global_process_set)
        now = _places([member.rank for member in members], stay)
    elif world is not None:
        new_world, _ = _new_world(group.rank(), process_sets.of_members(now))
    if world is not None:
        new_world.ranks = now
        _world.replace(new_world)
    smaller = ProcessGroup.of(stay.index(group.rank()), len(stay),
                              f"{group.getGroupName()}-{'.'.join(map(str, excluded))}", group.timeout,
                              group.get_group_store())
    assert _world.current is not None
    smaller.open(process_sets.of_members(now), now, _world.current, is_default=world is not None)
    return Backend(smaller)


def _new_world(rank: int, process_set: process_sets.ProcessSet) -> tuple[_world.World, list[_epochs.Member]]:
    """Returns a World, and its ranks' Members by rank in the job, or in the set; all these ranks must make the call."""
    addresses: dict[int, str] = {}
    world = _world.World([], basics.rank(), addresses.__getitem__)
    members = _epochs.members(rank, world.offers.address, process_set)
    addresses.update(zip(process_set.ranks or (), (member.address for member in members)))
    return world, members


def _places(said: list[Any], expected: list[Any]) -> list[int]:
    """Returns the rank in the job of each expected entry."""
    missing = [each for each in expected if each not in said]
    if missing:
        raise HorovodInternalError(f"the membership epoch has begun without {missing}; there are {said}")
    return [said.index(each) for each in expected]


def reconfigure(group: ProcessGroup, world: Optional[_world.World], opts: Any) -> None:
    """Gives a default group the ranks whose handles are in torch's ReconfigureOptions."""
    if world is not None:
        world.offers.close()
        _epochs.leave()
    _epochs.join()
    new_world, members = _new_world(-1, process_sets.global_process_set)
    said = [member.handle for member in members]
    wanted = list(opts.handles)
    if not isinstance(opts.handles, list):  # a set: we choose the order of the job
        wanted.sort(key=lambda handle: said.index(handle) if handle in said else -1)
    new_world.ranks = _places(said, wanted)
    _world.replace(new_world)
    group.open(process_sets.of_members(new_world.ranks), new_world.ranks, new_world, is_default=True)
    torch.distributed.distributed_c10d._world.pg_group_ranks[group] = {rank: rank for rank in range(len(wanted))}
