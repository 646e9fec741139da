"""Checks that the ranks train the same weights, optimizer states and settings.

    equal_start.check(optimizer, reduction, variables)    # in each step; raises ValueError on all ranks
    with equal_start.checked_loop(optimizer, step, grads):    # the same, in loops of the program's own
        ... reduce the gradients

Ranks that begin differently, because fit() has no BroadcastGlobalVariablesCallback, or because only some ranks have
loaded a checkpoint, would apply equal gradients to different weights, and nothing else would detect it. So they compare
checksums once, when fit() makes its first step or traces it. There is no such check

    outside of fit()            a program's own loop may broadcast after its first step, as Horovod's examples do:
                                checked_loop() compares later, and again from time to time (maypole.arrays.same_values);
                                on TensorFlow and PyTorch
    if a callback broadcasts    the ranks are equal then; variables that the callback leaves out may differ
    in elastic jobs             a state's sync() makes them equal
    in version 1 graphs         of Keras 2, whose variables may have no values yet

Weights that are not trained, such as the averages of batch norm, are not compared; with Adasum, neither are states.
MAYPOLE_CHECK_START=0 turns this off on a rank that differs on purpose; the others still compare.

Thread contract: the thread that trains.
"""

import contextlib
import sys
import zlib
from collections.abc import Collection, Sequence
from types import FrameType
from typing import Any, Optional

from maypole._keras import variables as values_of
from maypole._keras.values import as_array, session
from maypole.arrays import same_values
from maypole.arrays.same_values import Fact
from maypole.common import basics
from maypole.common.constants import Adasum

_PLAIN = (bool, int, float, str, type(None))


def check(optimizer: Any, reduction: Any, variables: Sequence[Any]) -> None:
    """Compares the ranks if that is due. variables: those that the step trains, except local ones.

    Raises ValueError, on all ranks, that names the first difference; HorovodInternalError if a rank is lost.
    """
    if reduction.has_checked_start or basics.is_elastic() or session() is not None:
        return
    fit = _variables_of_fit()
    if fit:
        values_of.warn_of_local_batch_norm(fit["self"])
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


def checked_loop(optimizer: Any, step: Any, grads: Sequence[Any]) -> Any:
    """Compares the ranks, outside of fit(), if that is due.

    step: the Step of these gradients. grads: as all ranks have them. Returns a context in which they must be reduced.
    Raises ValueError, on all ranks, if the ranks differ.
    """
    reduction, gradients = step.reduction, step.reduction.gradients
    if basics.is_elastic() or session() is not None or not gradients.can_compare() or _variables_of_fit():
        return contextlib.nullcontext()
    shared = [(v, grad) for v, grad, local in zip(step.variables, grads, step.local) if not local and grad is not None]
    if not shared:
        return contextlib.nullcontext()
    trained = [variable for variable, _ in shared]
    sparse = {id(variable) for variable, grad in shared if type(grad).__name__ == "IndexedSlices"}
    with gradients.outside():
        compared = trained + _state_of(optimizer, reduction)

    def facts_of(values: Sequence[Any]) -> list[Fact]:
        held = {id(variable): value for variable, value in zip(compared, values)}
        return _facts(optimizer, reduction, trained, held, compared[len(trained):], sparse)

    return gradients.compared(reduction, compared, facts_of, f"keras.{reduction.name}.loop")


def _state_of(optimizer: Any, reduction: Any) -> list[Any]:
    """Returns the optimizer's variables that must be equal."""
    if reduction.op == Adasum:
        return []
    state = values_of.of_training_optimizer(optimizer)
    if reduction.has_local():  # of variables that may differ
        state = [variable for variable in state if not variable.shape]
    return state


def _facts(optimizer: Any, reduction: Any, variables: Sequence[Any], held: dict[int, Any],
           state: Optional[Sequence[Any]] = None, sparse: Collection[int] = ()) -> list[Fact]:
    """Returns what this rank begins with.

    held: see BackendGradients.held(). state: of the optimizer. sparse: the id() of variables with sparse gradients.
    """
    facts = [_of_array("weights", variable, held, id(variable) in sparse) for variable in variables]
    if state is None:
        state = _state_of(optimizer, reduction)
    facts += [_of_array("state", variable, held, bool(sparse) and bool(variable.shape)) for variable in state]
    # Not get_config(), which reads the learning rate, also where fit() holds it.
    facts += [Fact(f"settings of the optimizer, {key}", f"settings {key}", zlib.crc32(repr(value).encode()),
                   repr(value))
              for key, value in sorted(vars(values_of.optimizer_of(optimizer)).items())
              if key not in ("name", "built") and key[0] != "_" and isinstance(value, _PLAIN)]
    return facts


def _of_array(kind: str, variable: Any, held: dict[int, Any], may_round: bool = False) -> Fact:
    name = getattr(variable, "path", None) or variable.name
    return same_values.fact_of_array(
        f"{kind} of {'parameter' if kind == 'weights' else 'the optimizer,'} {name!r}",
        f"{kind}{values_of.name_of(variable)}", as_array(held.get(id(variable), variable)), kind == "weights",
        may_round)


def _compare(facts: Sequence[Fact], name: str, process_set: Any) -> None:
    difference = same_values.find_difference(facts, name, process_set, _other_shapes)
    if difference is not None:
        raise ValueError(f"DistributedOptimizer: the ranks begin with {difference}. They would train different models; "
                         f"{_REMEDY}")


_REMEDY = ("give fit() a hvd.callbacks.BroadcastGlobalVariablesCallback(root_rank=0), or set MAYPOLE_CHECK_START=0 if "
           "the ranks are to differ")


def _other_shapes(difference: str) -> ValueError:
    return ValueError("DistributedOptimizer: the ranks begin with different weights, optimizer states or settings: "
                      f"{difference}. They would train different models; {_REMEDY}")
