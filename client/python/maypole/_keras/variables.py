"""Reads and writes the variables of models and optimizers, of Keras 2 and 3, on any backend.

On Keras' JAX backend fit() moves the variables' values into its own state; settle() moves them
back. Every callback that reads or writes a variable must call it first.

Thread contract: the thread that trains.
"""

import gc
import itertools
import logging
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from maypole._keras import classes
from maypole._keras.values import as_array, assign
from maypole.arrays import _submissions, same_on_all
from maypole.common import basics, operations
from maypole.common.process_sets import global_process_set

_log = logging.getLogger("maypole.keras")
_NUMBER = re.compile(r"_?\d+")
_SEED = "seed_generator_state"


def is_of_tensorflow(model: Any) -> bool:
    """Whether the model is TensorFlow's: those of Keras 2, and of Keras 3 on TensorFlow, have a base class of it."""
    return any("tensorflow" in base.__module__ for base in type(model).__mro__)


def settle(model: Any) -> None:
    """Makes the model's and its optimizer's variables valid, also inside fit()."""
    if hasattr(model, "jax_state_sync"):
        model.jax_state_sync()


def drop_jax_state(model: Any) -> None:
    """Forgets the values that fit() has taken and an error has lost; write() sets new ones."""
    if hasattr(model, "_jax_state_synced"):
        model._jax_state_synced = True


def is_built(model: Any) -> bool:
    """Whether the model has its variables. A class's build() may leave them to the first step."""
    return bool(model.built and model.weights)


def build_optimizer(model: Any, optimizer: Any) -> None:
    """Makes the model's variables valid, and creates the optimizer's, if the model has its variables."""
    settle(model)
    if not is_built(model) or optimizer is None:
        return
    if hasattr(optimizer, "_create_all_weights"):  # tf.keras.optimizers.legacy
        optimizer._create_all_weights(model.trainable_variables)
        return
    inner = optimizer_of(optimizer)
    if hasattr(inner, "_create_all_weights"):
        inner._create_all_weights(model.trainable_variables)
    elif not getattr(optimizer, "built", False):
        optimizer.build(model.trainable_variables)


def optimizer_of(optimizer: Any) -> Any:
    """Returns the optimizer itself, without the LossScaleOptimizer around it."""
    return getattr(optimizer, "inner_optimizer", optimizer)


def of_optimizer(optimizer: Any) -> list[Any]:
    """The optimizer's variables: iteration, learning rate, momentums, ..."""
    if optimizer is None:
        return []
    variables = optimizer.variables
    return list(variables() if callable(variables) else variables)


def of_training_optimizer(optimizer: Any) -> list[Any]:
    """Returns the optimizer's variables, also the learning rate, which Keras 2 does not list, each once."""
    rate = getattr(optimizer, "learning_rate", None)
    found = {id(v): v for v in of_optimizer(optimizer) + ([rate] if hasattr(rate, "assign") else [])}
    return list(found.values())


def sums_over_passes(optimizer: Any) -> list[Any]:
    """Returns Keras 3's sums of gradients, which are each rank's own until the last pass of a step."""
    return list(getattr(optimizer_of(optimizer), "_accumulated_gradients", None) or ())


def schedule_of(optimizer: Any) -> Any:
    """Returns the optimizer's keras.optimizers.schedules.LearningRateSchedule; None if it has none."""
    schedule = getattr(optimizer_of(optimizer), "_learning_rate", None)
    return schedule if hasattr(schedule, "get_config") and callable(schedule) else None


def passes_if_within_step(optimizer: Any) -> int:
    """Returns the passes of a step, if the optimizer has made some of them and not yet used their gradients; else 0."""
    inner = optimizer_of(optimizer)
    passes = getattr(inner, "gradient_accumulation_steps", None)
    if passes:  # Keras 3
        return int(passes) if int(as_array(inner._iterations)) % passes else 0
    if not classes.is_distributed(optimizer):
        return 0
    state = classes.state_of(optimizer)  # Keras 2's has sums
    counter = getattr(getattr(state, "sums", None), "counter", None)
    return 0 if counter is None or not int(as_array(counter)) else int(state.reduction.passes)


def other_optimizers(model: Any) -> list[Any]:
    """Returns the optimizers that are attributes of the model besides `optimizer` (a GAN has two)."""
    own = getattr(model, "optimizer", None)
    found = {id(value): value for _, value in sorted(vars(model).items())  # the same order on all ranks
             if hasattr(value, "apply_gradients") and hasattr(value, "variables") and value is not own}
    return list(found.values())


def layers_of(model: Any) -> list[Any]:
    """Returns the model's layers, also those within layers."""
    return list(model._flatten_layers()) if hasattr(model, "_flatten_layers") else []


_has_warned = False


def warn_of_local_batch_norm(model: Any) -> None:
    """Warns once, on rank 0, of BatchNormalization(synchronized=True), whose statistics stay those of each rank."""
    global _has_warned
    if _has_warned or not basics.is_initialized() or basics.size() == 1:
        return
    names = [layer.name for layer in layers_of(model) if getattr(layer, "synchronized", False)]
    if not names:
        return
    _has_warned = True
    if basics.rank() == 0:
        _log.warning("maypole: BatchNormalization(synchronized=True) synchronizes the replicas of tf.distribute, not "
                     "the ranks: %s normalizes with the statistics of each rank's own batch; use "
                     "maypole.tensorflow.SyncBatchNormalization, which takes all ranks' rows", ", ".join(names[:3]))


def forget_compiled_steps(optimizer: Any) -> None:
    """Makes fit() compile again for the models that have this optimizer: how it steps has changed.

    Optimizers do not know their models, so this asks the garbage collector.
    """
    for holder in gc.get_referrers(optimizer):
        attributes = holder if isinstance(holder, dict) else getattr(holder, "__dict__", {})
        if attributes.get("optimizer") is optimizer:
            for name in ("train_function", "train_tf_function"):
                if attributes.get(name) is not None:
                    attributes[name] = None


def of_training(model: Any, *optimizers: Any) -> list[Any]:
    """Returns the variables on which a model's training depends: its weights and its optimizers', each once.

    They do not include states of random numbers, which differ between ranks on purpose, nor metrics.
    """
    found, seen = [], set()
    of_optimizers = itertools.chain.from_iterable(map(of_training_optimizer, optimizers))
    for variable in itertools.chain(model.weights, of_optimizers):
        if id(variable) not in seen and getattr(variable, "name", "") != _SEED:
            seen.add(id(variable))
            found.append(variable)
    return found


def name_of(variable: Any) -> str:
    """Returns " 'dense/kernel'", the end of the variable's name without numbers; "" if it has none.

    Keras numbers what the process has made, so the numbers may differ between ranks.
    """
    name = getattr(variable, "path", None) or (variable.name if hasattr(variable, "read_value") else "")
    parts = [_NUMBER.sub("", part) for part in name.partition(":")[0].split("/")]
    return f" {'/'.join(parts[-2:])!r}" if name else ""


def read(variables: Sequence[Any]) -> list[np.ndarray]:
    """Returns copies of the variables' values."""
    return [np.array(as_array(variable), order="C") for variable in variables]


def write(variables: Sequence[Any], values: Sequence[np.ndarray]) -> None:
    """Assigns the values."""
    for variable, value in zip(variables, values):
        assign(variable, value)


def broadcast(variables: Sequence[Any], root_rank: int, name: str, labels: Sequence[str] = ()) -> None:
    """Overwrites the variables with those of rank root_rank.

    Variables are matched by their position. labels: texts that must also be equal on all ranks. Raises ValueError, on
    all ranks, if a rank has different ones.
    """
    values = read(variables)
    same_on_all.gather(np.zeros(0), [f"{i}: {value.dtype}{list(value.shape)}" for i, value in enumerate(values)]
                       + list(labels),
                       f"{name}.shapes", global_process_set, _other_variables)
    pending = [operations.start(_submissions.broadcast(value, root_rank, f"{name}.{i}", 0, True))
               for i, value in enumerate(values)]
    _, error = operations.wait_all(pending)
    if error is not None:
        raise error
    write(variables, values)


def _other_variables(difference: str) -> ValueError:
    return ValueError(f"broadcast of a model's variables: the ranks have different ones: {difference}; all ranks must "
                      "create and build the same model and optimizers, and adapt() layers to the same data")
