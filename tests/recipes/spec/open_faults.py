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
    Fault("with Adasum, a parameter that is frozen later moves by each rank's own momentum",
          {"frozen": "since", "optimizer": "Adam", "op": "Adasum"},
          lambda r: r.op == "Adasum" and r.frozen == "since"),
    Fault("a scheduler made before wrapping is detached when a state is loaded",
          {"scheduler": "StepLR", "made": "before", "start": "broadcast"},
          lambda r: r.made == "before" and (r.start in ("broadcast", "resume", "resume_root") or
                                            r.copied in ("states", "rebuilt") or r.uneven != "no")),
    Fault("a wrapped optimizer cannot be copied or pickled", {"copied": "pickle"},
          lambda r: r.copied in ("deepcopy", "pickle", "save") or r.scheduler == "OneCycleLR" and
          (r.copied in ("states", "rebuilt") or r.start == "resume_root")),
    Fault("a rank without batches in the first epoch does not know what the others have learnt", {"uneven": "first"},
          lambda r: r.uneven == "first" or r.uneven != "no" and (r.frozen == "until" or r.usage not in ("all", "nobody"))),
    Fault("gradients changed between backward() and step() are not noticed", {"clip": "early_norm"},
          lambda r: r.clip.startswith("early") or r.by_hand == "early" or r.scaler == "early"),
    Fault("a scheduler in the state of an elastic job becomes a copy whose optimizer is another one",
          {"elastic": "death", "scheduler": "ExponentialLR"},
          lambda r: r.elastic != "no" and r.scheduler != "none"),
    Fault("different weights or states at the start are not noticed", {"start": "unequal"},
          lambda r: r.start in UNEQUAL),
    Fault("gradients of two models whose parameters have the same names can be mixed",
          {"second": "crossed", "same_names": True},
          lambda r: r.second.startswith("crossed") and r.same_names),
    Fault("broadcast_optimizer_state changes dtypes of the state on all ranks but the root",
          {"optimizer": "ASGD", "uneven": "join"},
          lambda r: r.optimizer in ("ASGD", "NAdam", "RAdam") and (r.start.startswith("resume_root") or r.uneven != "no")),
]


def reason_of(recipe: Recipe) -> Optional[str]:
    """The reason for which the recipe is left out; None if it has no known fault."""
    return next((fault.reason for fault in FAULTS if fault.of(recipe)), None)
