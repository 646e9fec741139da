"""Whose state counts when an epoch begins: decided from what each rank has.

    offers = allgather_object(Offer(synced=False, commit=loaded))
    plan = decide(offers)       # the same on all ranks

Pure functions: no communication, no framework. docs/elastic.md has the user's
view.
"""

from collections.abc import Sequence
from typing import NamedTuple, Optional

from maypole.common.commit_memory import Commit


class Offer(NamedTuple):
    """What a rank brings to a sync().

    synced: it has taken part in the training, so its current values count.
    commit: its last commit; of a new process the one that it has loaded from
    its node's executor, None if there was none.
    """

    synced: bool
    commit: Optional[Commit]


class Plan(NamedTuple):
    """What follows from all ranks' offers.

    root: the rank whose current values all ranks get. commit: the one that
    these come from. generation: of the commits of the epoch that begins.
    compare: a rank besides the root may have some of the values already.
    """

    root: int
    commit: Optional[Commit]
    generation: int
    compare: bool


def decide(offers: Sequence[Offer]) -> Plan:
    """The rank whose state all take.

    The first one that has taken part in the training; if all are new, the first
    one with the newest commit; if there is none, rank 0.
    """
    ranks = range(len(offers))
    synced = [r for r in ranks if offers[r].synced]
    commits = {r: commit for r in ranks for commit in [offers[r].commit] if commit is not None}
    root = 0
    if synced:
        root = synced[0]
    elif commits:
        # Of equal commits the one of the first rank.
        root = max(commits, key=lambda r: (commits[r], -r))
    seen = [commit.generation for commit in commits.values()]
    return Plan(root, offers[root].commit, 1 + max(seen, default=0),
                any(r != root for r in [*synced, *commits]))
