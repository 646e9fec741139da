"""Faults that the oracle has found and nobody has mended yet: reason_of() says which one a recipe has.

Programs with one of them are left out of the tests; recipes_test.py fails when such a fault is mended, so that its line
is taken out.

Thread contract: pure.
"""

from typing import Callable, Dict, NamedTuple, Optional

from recipe import UNEQUAL, Recipe


class Fault(NamedTuple):
    """example: a recipe that has it. of: whether a recipe has it."""

    reason: str
    example: Dict[str, object]
    of: Callable[[Recipe], bool]


FAULTS = [
    Fault("SparseAdam fails on a cleared gradient of a rank that is idle while the others have joined",
          {"model": "words", "usage": "idle", "optimizer": "SparseAdam", "uneven": "first"},
          lambda r: r.optimizer == "SparseAdam" and r.usage == "idle" and (r.elastic != "no" or r.uneven != "no")),
    Fault("a rank without a gradient in a step that all ranks leave out goes on with the others' gradients of it",
          {"usage": "idle", "skipped": "after"},
          lambda r: r.usage == "idle" and r.skipped == "after"),
    Fault("different weights or states at the start are not noticed", {"start": "unequal"},
          lambda r: r.start in UNEQUAL),
    Fault("broadcast_optimizer_state changes dtypes of the state on all ranks but the root",
          {"optimizer": "ASGD", "uneven": "join"},
          lambda r: r.optimizer in ("ASGD", "NAdam", "RAdam") and (r.start.startswith("resume_root") or r.uneven != "no")),
]


def reason_of(recipe: Recipe) -> Optional[str]:
    """The reason for which the recipe is left out; None if it has no known fault."""
    return next((fault.reason for fault in FAULTS if fault.of(recipe)), None)
