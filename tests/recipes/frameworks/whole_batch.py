"""Compares training on all ranks with one process that sees the whole batch, for recipes made from seeds.

    whole_batch.main(make)        # in a program that runs on every rank: program.py FIRST COUNT

make(seed) -> (what it is, function of a `Rows` -> the trained values, a dict of arrays, tolerance). The function is called
with this rank's rows, and again with all rows, without Maypole. Allowed ends: the same bits on all ranks, and the values
of one process to rounding; or an error on every rank that names a variable.
"""

import sys
import traceback
from typing import NamedTuple

import numpy as np

import rank
from maypole.common import basics, objects


class Rows(NamedTuple):
    """Which rows of each batch a process sees, and whether it reduces."""

    distributed: bool
    first: int
    step: int

    def of(self, batch):
        return batch[self.first::self.step]


def outcome(function, rows):
    """(values, None) or (None, error)"""
    try:
        return function(rows), None
    except Exception as error:  # pylint: disable=broad-except
        traceback.print_exc()
        return None, f"{type(error).__name__}: {error}"


def compare(seed, what, function, tolerance):
    """How the recipe ended: "equal" or "refused"; raises AssertionError otherwise."""
    mine, error = outcome(function, Rows(True, basics.rank(), basics.size()))
    kept = {name: value.tobytes() for name, value in (mine or {}).items()}
    everyones = objects.allgather_object((kept, error), f"recipe.{seed}")
    errors = [error for _, error in everyones]
    if any(errors):
        assert all(error and "'" in error for error in errors), (
            seed, what, "expected an error on every rank that names a variable", errors)
        return "refused"
    for other, (values, _) in enumerate(everyones):
        for name, value in values.items():
            assert value == everyones[0][0][name], (seed, what, f"{name} differs between rank 0 and {other}")
    alone, error = outcome(function, Rows(False, 0, 1))
    assert error is None, (seed, what, "one process ends with an error, the ranks do not", error)
    for name, value in alone.items():
        apart = np.max(np.abs(mine[name].astype(np.float64) - value), initial=0.0)
        limit = tolerance * max(np.max(np.abs(value), initial=0.0), 1.0)
        assert apart <= limit, (seed, what, f"{name} is {apart} from one process's, allowed {limit}")
    return "equal"


def main(make):
    """Runs the recipes FIRST .. FIRST + COUNT - 1 of the command line."""
    first, count = int(sys.argv[1]), int(sys.argv[2])
    ends = {}
    for seed in range(first, first + count):
        what, function, tolerance = make(seed)
        print(seed, what, flush=True)
        ends[seed] = compare(seed, what, function, tolerance)
    rank.record(ends=list(ends.values()))
    basics.shutdown()
