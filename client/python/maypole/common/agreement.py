"""Decides whose state counts when a membership epoch begins, from what each rank has.

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

    synced: the rank has taken part in the training, so its current values
    count. commit: its last commit; for a new process the one that it has loaded
    from its node's executor, None if there was none.
    """

    synced: bool
    commit: Optional[Commit]


class Plan(NamedTuple):
    """The decision that follows from all ranks' offers.

    root: the rank whose current values all ranks get. commit: the commit from
    which these values come. generation: of the commits in the epoch that
    begins. compare: whether a rank besides the root may already have some of
    the values.
    """

    root: int
    commit: Optional[Commit]
    generation: int
    compare: bool


def decide(offers: Sequence[Offer]) -> Plan:
    """Chooses the rank whose state all ranks take.

    It is the first rank that has taken part in the training; if all are new,
    the first one with the newest commit; if there is no commit, rank 0.
    """
    ranks = range(len(offers))
    synced = [r for r in ranks if offers[r].synced]
    commits = {r: commit for r in ranks for commit in [offers[r].commit] if commit is not None}
    root = 0
    if synced:
        root = synced[0]
    elif commits:
        # Among equal commits, that of the first rank.
        root = max(commits, key=lambda r: (commits[r], -r))
    seen = [commit.generation for commit in commits.values()]
    return Plan(root, offers[root].commit, 1 + max(seen, default=0),
                any(r != root for r in [*synced, *commits]))
