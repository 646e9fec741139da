"""Checks in the first step of fit() that the ranks begin with the same weights, optimizer states and settings.

    equal_start.check(optimizer, reduction, variables)    # in each step; raises ValueError on all ranks

Ranks that begin differently, because fit() has no BroadcastGlobalVariablesCallback, or because only some ranks have
loaded a checkpoint, would apply equal gradients to different weights, and nothing else would detect it. So they compare
checksums once, when fit() makes its first step or traces it. There is no check

    outside of fit()            a program's own loop may broadcast after its first step, as Horovod's examples do
    if a callback broadcasts    the ranks are equal then; variables that the callback leaves out may differ
    in elastic jobs             a state's sync() makes them equal
    in version 1 graphs         of Keras 2, whose variables may have no values yet

Weights that are not trained, such as the averages of batch norm, are not compared; with Adasum, neither are states.
MAYPOLE_CHECK_START=0 turns this off on a rank that differs on purpose; the others still compare.

Thread contract: the thread that trains.
"""

import os
import sys
import zlib
from collections.abc import Sequence
from types import FrameType
from typing import Any, NamedTuple, Optional

import numpy as np

from maypole._keras import variables as values_of
from maypole._keras.values import as_array, session
from maypole.arrays import same_on_all
from maypole.common import basics, collectives, objects
from maypole.common.constants import Adasum
from maypole.common.process_sets import id_of

_LEFT_OUT = -1
_PLAIN = (bool, int, float, str, type(None))


class _Fact(NamedTuple):
    """What must be equal. what: "weights of parameter 'dense/kernel'". shown: a readable value or a checksum."""

    what: str
    label: str
    checksum: int
    shown: str


def check(optimizer: Any, reduction: Any, variables: Sequence[Any]) -> None:
    """Compares the ranks if that is due. variables: those that the step trains, except local ones.

    Raises ValueError, on all ranks, that names the first difference; HorovodInternalError if a rank is lost.
    """
    if reduction.has_checked_start or basics.is_elastic() or session() is not None:
        return
    fit = _variables_of_fit()
    callbacks = getattr(fit.get("callbacks"), "callbacks", None)
    if callbacks is None:
        return
    broadcasts = [done for done in (getattr(callback, "broadcast_done", None) for callback in callbacks)
                  if done is not None]
    if not all(broadcasts):
        return
    reduction.has_checked_start = True
    if broadcasts:
        return
    with reduction.gradients.outside():
        held = reduction.gradients.held(fit["self"], fit.get("state"))
        _compare(_facts(optimizer, reduction, variables, held), f"keras.{reduction.name}.start", reduction.process_set)


def _variables_of_fit() -> dict[str, Any]:
    """Returns the local variables of the fit() that makes this step; none outside of fit().

    Optimizers do not know who calls them, so this searches the call stack.
    """
    frame: Optional[FrameType] = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name == "fit" and hasattr(frame.f_locals.get("self"), "train_step"):
            return frame.f_locals
        frame = frame.f_back
    return {}


def _facts(optimizer: Any, reduction: Any, variables: Sequence[Any], held: dict[int, Any]) -> list[_Fact]:
    """Returns what this rank begins with. held: see BackendGradients.held()."""
    facts = [_of_array("weights", variable, held) for variable in variables]
    if reduction.op != Adasum:
        state = values_of.of_training_optimizer(optimizer)
        if reduction.has_local():  # of variables that may differ
            state = [variable for variable in state if not variable.shape]
        facts += [_of_array("state", variable, held) for variable in state]
    # Not get_config(), which reads the learning rate, also where fit() holds it.
    facts += [_Fact(f"settings of the optimizer, {key}", f"settings {key}", zlib.crc32(repr(value).encode()),
                    repr(value))
              for key, value in sorted(vars(values_of.optimizer_of(optimizer)).items())
              if key not in ("name", "built") and key[0] != "_" and isinstance(value, _PLAIN)]
    return facts


def _of_array(kind: str, variable: Any, held: dict[int, Any]) -> _Fact:
    value = as_array(held.get(id(variable), variable))
    checksum = zlib.crc32(value.tobytes())
    name = getattr(variable, "path", None) or variable.name
    return _Fact(f"{kind} of {'parameter' if kind == 'weights' else 'the optimizer,'} {name!r}",
                 f"{kind}{values_of.name_of(variable)} {value.dtype}{list(value.shape)}", checksum,
                 str(value) if value.ndim == 0 else f"checksum {checksum:08x}")


def _compare(facts: Sequence[_Fact], name: str, process_set: Any) -> None:
    left_out = os.environ.get("MAYPOLE_CHECK_START") == "0"
    row = np.array([_LEFT_OUT if left_out else fact.checksum for fact in facts], np.int64)
    rows = same_on_all.gather(row, [fact.label for fact in facts], name, process_set, _other_shapes)
    compared = [i for i, theirs in enumerate(rows) if _LEFT_OUT not in theirs]
    at = next((j for j in range(len(facts)) if len({int(rows[i][j]) for i in compared}) > 1), None)
    if at is None:
        return
    everyones = objects.allgather_object(facts[at].shown, name + ".details", process_set)
    ranks = collectives.ranks_of(id_of(process_set))
    other = next(i for i in compared if rows[i][at] != rows[compared[0]][at])
    values = " and ".join(f"{everyones[i]} on rank {ranks[i]}" for i in (compared[0], other))
    raise ValueError(f"DistributedOptimizer: the ranks begin with different {facts[at].what}: {values}. They would "
                     f"train different models; {_REMEDY}")


_REMEDY = ("give fit() a hvd.callbacks.BroadcastGlobalVariablesCallback(root_rank=0), or set MAYPOLE_CHECK_START=0 if "
           "the ranks are to differ")


def _other_shapes(difference: str) -> ValueError:
    return ValueError("DistributedOptimizer: the ranks begin with different weights, optimizer states or settings: "
                      f"{difference}. They would train different models; {_REMEDY}")
