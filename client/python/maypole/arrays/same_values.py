"""Compares values that must be equal on all ranks, such as weights: at once, or from time to time in a training loop.

    difference = find_difference(facts, name, process_set, other_facts)   # a text, or None
    compared = Recurring(hint)
    left = compared.run(facts, name, process_set)   # when due: raises ValueError on all ranks; the steps until the next

A loop of the program's own may broadcast after its first step, as Horovod's examples do, and may reduce gradients
several times before it steps. So Recurring compares

    in the first step       nothing: it only keeps this rank's checksums
    from the second step on in each step, until weights have changed on some rank, or all ranks are equal. Ranks that
                            differ then have begun differently, and have not broadcast
    later                   after 2, 4, 8, ... steps (maypole.common.recurrence): a rank that has skipped a step, or has
                            another learning rate, differs then

A value that TensorFlow may round otherwise on each rank (rows that occur twice in a sparse gradient are added in any
order) counts as different only if it was also different before.

MAYPOLE_CHECK_START=0 turns this off on a rank that differs on purpose; the others still compare.

Thread contract: one thread at a time for each name. Invariant: all ranks of the set get the same answer.
"""

import collections
import os
import zlib
from collections.abc import Sequence
from typing import Any, Callable, NamedTuple, Optional

import numpy as np

from maypole.arrays import same_on_all
from maypole.common import collectives, objects
from maypole.common.process_sets import id_of
from maypole.common.recurrence import Recurrence

_LEFT_OUT = -1  # no checksum


class Fact(NamedTuple):
    """What must be equal.

    what: "weights of parameter 'dense/kernel'". label: what identifies it on all ranks. shown: a readable value or a
    checksum. is_weight: whether a change of it shows that the program has made a step. may_round: see above.
    """

    what: str
    label: str
    checksum: int
    shown: str
    is_weight: bool = False
    may_round: bool = False


def fact_of_array(what: str, label: str, value: np.ndarray, is_weight: bool = False, may_round: bool = False) -> Fact:
    """Returns the fact of an array's elements, dtype and shape."""
    checksum = checksum_of(value)
    return Fact(what, f"{label} {value.dtype}{list(value.shape)}", checksum,
                str(value) if value.ndim == 0 else f"checksum {checksum:08x}", is_weight, may_round)


def checksum_of(value: np.ndarray) -> int:
    """Returns a checksum of an array's bits, also of dtypes that are not NumPy's own."""
    return zlib.crc32(np.ascontiguousarray(value).reshape(-1).view(np.uint8))


def is_left_out() -> bool:
    """Whether this rank differs on purpose."""
    return os.environ.get("MAYPOLE_CHECK_START") == "0"


def find_difference(facts: Sequence[Fact], name: str, process_set: Any,
                    other_facts: Callable[[str], Exception]) -> Optional[str]:
    """Returns "different <what>: <value> on rank <r> and <value> on rank <s>" of the first difference; None: all equal.

    Raises other_facts(what differs), on all ranks, if ranks have other facts; HorovodInternalError if a rank is lost.
    """
    row = [_LEFT_OUT if is_left_out() else fact.checksum for fact in facts]
    rows = same_on_all.gather(np.array(row, np.int64), [fact.label for fact in facts], name, process_set, other_facts)
    compared = [i for i, theirs in enumerate(rows) if _LEFT_OUT not in theirs]
    different = _columns_that_differ(rows[compared])
    return _described(facts, different[0], rows, compared, name, process_set) if different else None


def _columns_that_differ(rows: np.ndarray) -> list[int]:
    return np.flatnonzero((rows != rows[:1]).any(axis=0)).tolist()


def _described(facts: Sequence[Fact], at: int, rows: np.ndarray, compared: Sequence[int], name: str,
               process_set: Any) -> str:
    everyones = objects.allgather_object(facts[at].shown, name + ".details", process_set)
    ranks = collectives.ranks_of(id_of(process_set))
    if len(ranks) != len(everyones):  # some have joined
        ranks = range(len(everyones))
    other = next(i for i in compared if rows[i][at] != rows[compared[0]][at])
    values = " and ".join(f"{everyones[i]} on rank {ranks[i]}" for i in (compared[0], other))
    return f"different {facts[at].what}: {values}"


class Recurring(Recurrence):
    """Compares the ranks of a training loop from time to time; see the head of this file.

    All ranks count the same steps. who: the beginning of the errors' texts. until_next: the steps until the next run().
    were_equal: whether the ranks were equal in an earlier run().
    """

    def __init__(self, who: str):
        super().__init__()
        self._who = who
        self.forget()

    def forget(self) -> None:
        """Begins again, on all ranks: some may have missed steps, or have broadcast."""
        super().forget()
        self._steps = 0
        self.were_equal = False
        self._before: dict[str, int] = {}  # checksums, by label

    def run(self, facts: Sequence[Fact], name: str, process_set: Any) -> int:
        """Compares; returns until_next. Raises ValueError, on all ranks, if they differ."""
        self._steps += self.interval
        labels = _numbered([fact.label for fact in facts])
        now = [fact.checksum for fact in facts]
        grows = self._steps > 1 and self._compared(facts, labels, f"{name}.{self._steps}", process_set)
        if not self.were_equal:
            self._before = {**dict(zip(labels, now)), **self._before}
        return self.follow(grows)

    def _compared(self, facts: Sequence[Fact], labels: list[str], name: str, process_set: Any) -> bool:
        """Compares; returns whether the next comparison may be farther away."""
        now = [fact.checksum for fact in facts]
        # What was not there before, such as momentum, comes from steps; a weight that was not trained is unchanged.
        before = [0 if self.were_equal else self._before.get(label, fact.checksum if fact.is_weight else 0)
                  for label, fact in zip(labels, facts)]
        stepped = any(old != new for fact, old, new in zip(facts, before, now) if fact.is_weight)
        row = np.array([*now, *before, stepped], np.int64)
        if is_left_out():
            row[:] = _LEFT_OUT
        rows = same_on_all.gather(row, [fact.label for fact in facts], name, process_set, self._other_facts)
        compared = [i for i, theirs in enumerate(rows) if _LEFT_OUT not in theirs]
        columns = _columns_that_differ(rows[compared][:, :-1])
        different = [at for at in columns if at < len(facts)
                     and (not facts[at].may_round or at + len(facts) in columns)]
        if not different:
            self.were_equal, self._before = True, {}
            return True
        if not self.were_equal and not rows[compared][:, -1].any():
            # Nobody has made a step, so the program may still broadcast after it.
            return self._steps >= 64
        # The cause: what differed before, too, or else learning rates and iterations.
        cause = min(different, key=lambda at: (at + len(facts) not in columns, facts[at].is_weight))
        found = _described(facts, cause, rows, compared, name, process_set)
        if self.were_equal:
            raise ValueError(
                f"{self._who}: the ranks have {found}, and were equal before. Since then a rank has skipped a step "
                "after its gradients were reduced, or has another learning rate, or its program has changed weights: "
                "skip steps by reduced values (the reduced gradients are finite on all ranks or on none), change "
                "weights and learning rates alike on all ranks, or set MAYPOLE_CHECK_START=0 if the ranks are to "
                "differ, or their processors round differently")
        raise ValueError(f"{self._who}: the ranks begin with {found}. They would train different models; {_REMEDY}")

    def _other_facts(self, difference: str) -> ValueError:
        return ValueError(f"{self._who}: the ranks train different weights, optimizer states or settings: "
                          f"{difference}. They would train different models; {_REMEDY}")


def _numbered(labels: Sequence[str]) -> list[str]:
    """Returns the labels with a number for those that repeat."""
    counts: collections.Counter = collections.Counter()
    numbered = []
    for label in labels:
        counts[label] += 1
        numbered.append(f"{label} {counts[label]}")
    return numbered


_REMEDY = ("call hvd.broadcast_variables(model.variables, root_rank=0), and the same for the optimizer's variables, "
           "before the first step or right after it, and again after join() (in an elastic job make all that the "
           "steps depend on, such as learning rates, part of the state); or set MAYPOLE_CHECK_START=0 if the "
           "ranks are to differ")
