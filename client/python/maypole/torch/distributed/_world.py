"""The default group, as far as other modules need it.

torch.distributed counts ranks from 0 in the default group ("global ranks"), Maypole in the job. The numbers are equal
until shrink_group() or reconfigure() leaves a default group of only some ranks of the job.

Thread contract: one thread at a time makes and closes groups.
"""

from typing import Callable, Optional

from maypole.common import basics
from maypole.torch.distributed._offers import Offers


class World:
    """What belongs to a default group, and lives as long as it.

    Args:
        ranks: ranks in the job, by rank in the default group.
        rank: this process's rank in the job.
        address_of: as for Offers.
    """

    def __init__(self, ranks: list[int], rank: int, address_of: Callable[[int], str]):
        self.ranks = ranks
        self.offers = Offers(rank, address_of)


current: Optional[World] = None

# How many groups with a name and ranks there were in this membership epoch, and basics.joins() of it.
_groups: dict[tuple[str, tuple[int, ...]], int] = {}
_groups_in = -1


def name_of_operations(group: str, ranks: list[int]) -> str:
    """Returns the name of a new group in the names of its operations: "world", later "world~2".

    It differs from those of earlier groups, of which operations may be pending. All members get the same one, also
    processes that have joined later than others: each of them makes every group of these ranks in this epoch.

    Args:
        group: the group's name.
        ranks: its members' ranks in the job.
    """
    global _groups_in
    if _groups_in != basics.joins():
        _groups_in = basics.joins()
        _groups.clear()
    key = group, tuple(ranks)
    _groups[key] = number = _groups.get(key, 0) + 1
    return group if number == 1 else f"{group}~{number}"


def close(world: World) -> None:
    """The default group of this world has ended."""
    global current
    world.offers.close()
    if current is world:
        current = None


def replace(world: World) -> None:
    """Makes `world` the current one, and closes the former.

    Older versions of torch do not tell a group that it is destroyed.
    """
    global current
    if current is not None:
        current.offers.close()
    current = world
