"""Gathers numbers of all ranks, and checks that they mean the same on all ranks.

    rows = gather(np.array([0.5, 0.25]), ["accuracy", "loss"], "metrics", process_set, error)

Ranks with different lists would otherwise wait for each other, or mistake one number for another.

Thread contract: any thread; one thread at a time per name.
"""

import hashlib
from collections.abc import Sequence
from typing import Any, Callable

import numpy as np

from maypole import arrays
from maypole.common import collectives, objects
from maypole.common.process_sets import id_of

_DIGEST_BYTES = 8


def gather(row: np.ndarray, labels: Sequence[str], name: str, process_set: Any,
           error: Callable[[str], Exception]) -> np.ndarray:
    """Returns the rows of the set's ranks, [ranks, labels], without those of ranks that have joined (hvd.join()).

    row: [labels], of the same dtype on all ranks. labels: what each number is.
    Raises error(what differs), on all ranks, if the labels of two ranks differ;
    HorovodInternalError if a rank is lost.
    """
    digest = hashlib.sha256("\n".join(labels).encode()).digest()[:_DIGEST_BYTES]
    mine = np.frombuffer(digest + row.tobytes(), np.uint8)
    # As one dimension, whose length may differ between ranks.
    everyones = arrays.allgather(mine, name=name, process_set=process_set)
    rows = everyones.reshape(-1, len(mine)) if len(everyones) % len(mine) == 0 else None
    if rows is None or (rows[:, :_DIGEST_BYTES] != mine[:_DIGEST_BYTES]).any():
        raise error(difference(
            objects.allgather_object(list(labels), name + ".labels", process_set),
            collectives.ranks_of(id_of(process_set))))
    return np.frombuffer(rows[:, _DIGEST_BYTES:].tobytes(), row.dtype).reshape(len(rows), -1)


def difference(everyones: list[list[str]], ranks: Sequence[int]) -> str:
    """Describes the first difference between two ranks' labels."""
    first = everyones[0]
    at, theirs = next((at, labels) for at, labels in enumerate(everyones) if labels != first)
    rank, zero = (ranks[at], ranks[0]) if len(ranks) == len(everyones) else (at, 0)
    missing = [label for label in first if label not in theirs]
    more = [label for label in theirs if label not in first]
    if not missing and not more:
        place = next((i for i, (a, b) in enumerate(zip(first, theirs)) if a != b),
                     min(len(first), len(theirs)))
        return (f"rank {rank} has {len(theirs)}, rank {zero} has {len(first)}, in another order from "
                f"number {place} on: {theirs[place:place + 1]} and {first[place:place + 1]}")
    parts = [f"{_named(labels)} on rank {on} but not on rank {off}"
             for labels, on, off in ((missing, zero, rank), (more, rank, zero)) if labels]
    return ", ".join(parts)


def _named(labels: list[str]) -> str:
    more = f" and {len(labels) - 3} more" if len(labels) > 3 else ""
    return ", ".join(repr(label) for label in labels[:3]) + more
