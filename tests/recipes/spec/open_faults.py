"""Faults that the oracle has found and nobody has mended yet: reason_of() says which one a recipe has.

Programs with one of them are left out of the tests; recipes_test.py fails when such a fault is mended, so that its line
is taken out.

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
