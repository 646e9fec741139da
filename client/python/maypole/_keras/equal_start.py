"""Checks that the ranks train the same weights, optimizer states and settings.

    equal_start.watch(keras)    # fit() compares: at the beginning of each epoch, and at its end
    with equal_start.checked_loop(optimizer, step, grads):    # the same, in loops of the program's own
        ... reduce the gradients

Ranks that begin differently, because fit() has no BroadcastGlobalVariablesCallback, or because only some ranks have
loaded a checkpoint, would apply equal gradients to different weights, and nothing else would detect it; nor that a
callback has changed weights or rates by a rank's own logs. So they compare checksums, after the callbacks of that event
have run, and where they are in their training: a rank that leaves fit() earlier would reduce the gradients of its next
fit() with those of the others' present one. There is no such check

    outside of fit()            a program's own loop may broadcast after its first step, as Horovod's examples do:
                                checked_loop() compares later, and again from time to time (maypole.arrays.same_values);
                                on JAX from the first step on, as maypole.jax does
    of local variables          those of BroadcastGlobalVariablesCallback(local_variables=...) included
    of sums over passes         which are each rank's own until the last pass
    of what may round           variables with sparse gradients, once a step has been made
    in version 1 graphs         of Keras 2, whose variables may have no values yet

Weights that are not trained, such as the averages of batch norm, are not compared; with Adasum, neither are states.
MAYPOLE_CHECK_START=0 turns this off on a rank that differs on purpose; the others still compare.

Thread contract: the thread that trains.
"""

import contextlib
import functools
import sys
import zlib
from collections.abc import Collection, Sequence
from types import FrameType
from typing import Any, Optional

import numpy as np

from maypole._keras import classes
from maypole._keras import variables as values_of
from maypole._keras.values import as_array, session
from maypole.arrays import same_on_all, same_values
from maypole.arrays.same_values import Fact
from maypole.common import basics
from maypole.common.constants import Adasum

_PLAIN = (bool, int, float, str, type(None))


def watch(keras: Any) -> None:
    """Makes fit() of this Keras compare the ranks if its model has distributed optimizers."""
    kind = keras.callbacks.CallbackList  # fit() calls all callbacks by one; without any, too
    if kind in _watched:
        return
    _watched.add(kind)
    on_epoch_begin, on_train_end = kind.on_epoch_begin, kind.on_train_end

    @functools.wraps(on_epoch_begin)
    def begin(self: Any, epoch: int, logs: Any = None) -> None:
        on_epoch_begin(self, epoch, logs)
        _compare_in_fit(self, f"beginning of epoch {epoch}")

    @functools.wraps(on_train_end)
    def end(self: Any, logs: Any = None) -> None:
        on_train_end(self, logs)
        _compare_in_fit(self, "end")

    kind.on_epoch_begin, kind.on_train_end = begin, end


_watched: set[type] = set()


def _compare_in_fit(callbacks: Any, place: str) -> None:
    """Compares the ranks. Raises ValueError, on all ranks, that names the first difference."""
    fit = _variables_of_fit()
    if not fit or session() is not None or fit["callbacks"] is not callbacks:
        return
    model = fit["self"]
    values_of.warn_of_local_batch_norm(model)
    local = {at for callback in callbacks.callbacks for at in getattr(callback, "local_ids", ())}
    for optimizer in [model.optimizer] + values_of.other_optimizers(model):
        if classes.is_distributed(optimizer) and classes.reduction_of(optimizer).active():
            values_of.build_optimizer(model, model.optimizer)  # Keras on TensorFlow does so in the first step
            _compare(model, optimizer, local, f"the {place} of fit()")


def _compare(model: Any, optimizer: Any, local: Collection[int], place: str) -> None:
    reduction, inner = classes.reduction_of(optimizer), values_of.optimizer_of(optimizer)
    name = f"keras.{reduction.name}.fit"
    built = values_of.is_built(model) and getattr(inner, "built", True)
    if not places(place, [built], name, reduction.process_set).all():
        return  # some rank gets its variables only in its first step
    variables = [v for v in getattr(inner, "_trainable_variables", None) or model.trainable_variables
                 if id(v) not in local and not reduction.is_local(v, id)]
    state = [v for v in _state_of(optimizer, reduction) if not (local and v.shape)]
    if basics.is_elastic():  # a new rank has not seen the gradients
        seen = places(place, [id(v) in reduction.sparse for v in variables], name, reduction.process_set).any(axis=0)
        reduction.sparse.update(id(v) for v, sparse in zip(variables, seen) if sparse)
    facts = [fact for fact in _facts(optimizer, variables, {}, state, reduction.sparse) if not fact.may_round]
    difference = same_values.find_difference(facts, name, reduction.process_set, _other_shapes)
    if difference is not None:
        raise ValueError(f"DistributedOptimizer: at {place} the ranks have {difference}. {_REMEDY}")


def places(where: str, values: Sequence[float], name: str, process_set: Any) -> np.ndarray:
    """Returns all ranks' values. Raises ValueError, on all ranks, if they are not at the same place of training."""
    return same_on_all.gather(np.array(values, np.float64), [where], name, process_set, _other_place)


def _other_place(difference: str) -> ValueError:
    return ValueError(f"the ranks are not at the same place of their training: {difference}; all ranks must call fit() "
                      "equally often, with the same epochs, and stop in the same one: let MetricAverageCallback come "
                      "before EarlyStopping")


def _variables_of_fit() -> dict[str, Any]:
    """Returns the local variables of Keras' fit() that makes this step; none outside of it.

    Optimizers do not know who calls them, so this searches the call stack. A fit() of the program's own has no
    CallbackList.
    """
    frame: Optional[FrameType] = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name == "fit" and hasattr(frame.f_locals.get("self"), "train_step"):
            if hasattr(frame.f_locals.get("callbacks"), "callbacks"):
                return frame.f_locals
        frame = frame.f_back
    return {}


def checked_loop(optimizer: Any, step: Any, grads: Sequence[Any]) -> Any:
    """Compares the ranks, outside of fit(), if that is due.

    step: the Step of these gradients. grads: as all ranks have them. Returns a context in which they must be reduced.
    Raises ValueError, on all ranks, if the ranks differ.
    """
    reduction, gradients = step.reduction, step.reduction.gradients
    shared = [(v, grad) for v, grad, local in zip(step.variables, grads, step.local) if not local and grad is not None]
    sparse = {id(variable) for variable, grad in shared if type(grad).__name__ == "IndexedSlices"}
    reduction.sparse |= sparse
    if not shared or session() is not None or not gradients.can_compare() or _variables_of_fit():
        return contextlib.nullcontext()
    trained = [variable for variable, _ in shared]
    with gradients.outside():
        compared = trained + _state_of(optimizer, reduction)

    def facts_of(values: Sequence[Any]) -> list[Fact]:
        held = {id(variable): value for variable, value in zip(compared, values)}
        return _facts(optimizer, trained, held, compared[len(trained):], sparse)

    return gradients.compared(optimizer, reduction, compared, facts_of, f"keras.{reduction.name}.loop")


def _state_of(optimizer: Any, reduction: Any) -> list[Any]:
    """Returns the optimizer's variables that must be equal."""
    if reduction.op == Adasum:
        return []
    sums = set(map(id, values_of.sums_over_passes(optimizer)))
    state = [variable for variable in values_of.of_training_optimizer(optimizer) if id(variable) not in sums]
    if reduction.has_local():  # of variables that may differ
        state = [variable for variable in state if not variable.shape]
    return state


def _facts(optimizer: Any, variables: Sequence[Any], held: dict[int, Any], state: Sequence[Any],
           sparse: Collection[int]) -> list[Fact]:
    """Returns what must be equal on this rank and others.

    held: by the id() of a variable, the value that is compared instead of its own. state: of the optimizer. sparse: the
    id() of variables with sparse gradients.
    """
    facts = [_of_array("weights", variable, held, id(variable) in sparse) for variable in variables]
    facts += [_of_array("state", variable, held, bool(sparse) and bool(variable.shape)) for variable in state]
    # Not get_config(), which reads the learning rate, also where fit() holds it.
    settings = {key: repr(value) for key, value in vars(values_of.optimizer_of(optimizer)).items()
                if key not in ("name", "built") and key[0] != "_" and isinstance(value, _PLAIN)}
    schedule = values_of.schedule_of(optimizer)
    if schedule is not None:
        settings["learning_rate"] = _text_of(schedule)
    facts += [Fact(f"settings of the optimizer, {key}", f"settings {key}", zlib.crc32(text.encode()), text)
              for key, text in sorted(settings.items())]
    return facts


def _text_of(value: Any) -> str:
    """Returns a text of a schedule, or of a part of its configuration, without addresses of objects."""
    if isinstance(value, _PLAIN):
        return repr(value)
    if isinstance(value, dict):
        parts = [f"{key}: {_text_of(of)}" for key, of in sorted(value.items(), key=str) if key != "name"]
        return "{" + ", ".join(parts) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_text_of, value)) + "]"
    if isinstance(value, (np.ndarray, np.generic)) or hasattr(value, "numpy"):
        return repr(as_array(value).tolist())
    if not hasattr(value, "get_config"):
        return type(value).__name__
    try:
        config = value.get_config()
    except NotImplementedError:  # a program's own class may not have it
        config = vars(value)
    return f"{type(value).__name__} {_text_of(config)}"


def _of_array(kind: str, variable: Any, held: dict[int, Any], may_round: bool = False) -> Fact:
    name = getattr(variable, "path", None) or variable.name
    return same_values.fact_of_array(
        f"{kind} of {'parameter' if kind == 'weights' else 'the optimizer,'} {name!r}",
        f"{kind}{values_of.name_of(variable)}", as_array(held.get(id(variable), variable)), kind == "weights",
        may_round)


_REMEDY = ("They would train different models: give fit() a "
           "hvd.callbacks.BroadcastGlobalVariablesCallback(root_rank=0), let MetricAverageCallback come before "
           "callbacks that act on logs, and change weights and learning rates alike on all ranks; or set "
           "MAYPOLE_CHECK_START=0 if the ranks are to differ")


def _other_shapes(difference: str) -> ValueError:
    return ValueError("DistributedOptimizer: the ranks train different weights, optimizer states or settings: "
                      f"{difference}. {_REMEDY}")
