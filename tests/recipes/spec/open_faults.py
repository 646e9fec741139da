"""Faults that the oracle has found and that are not fixed yet: reason_of() says which one a recipe has.

The tests leave out programs with such a fault; recipes_test.py fails when the fault is fixed, so that its line is
removed.

Thread contract: pure.
"""

from typing import Callable, Dict, List, NamedTuple, Optional

from recipe import Recipe


class Fault(NamedTuple):
    """example: a recipe that has it. of: whether a recipe has it."""

    reason: str
    example: Dict[str, object]
    of: Callable[[Recipe], bool]


FAULTS: List[Fault] = []


def reason_of(recipe: Recipe) -> Optional[str]:
    """The reason for which the recipe is left out; None if it has no known fault."""
    return next((fault.reason for fault in FAULTS if fault.of(recipe)), None)
