"""Reads and writes the variables of models and optimizers, of Keras 2 and 3, on any backend.

On Keras' JAX backend fit() moves the variables' values into its own state; settle() moves them
back. Every callback that reads or writes a variable must call it first.

Thread contract: the thread that trains.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from maypole._keras.values import as_array, assign
from maypole.arrays import _submissions, same_on_all
from maypole.common import operations
from maypole.common.process_sets import global_process_set

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


def build_optimizer(model: Any, optimizer: Any) -> None:
    """Creates the optimizer's variables, if the model has its variables."""
    if not model.built or optimizer is None:
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


def of_training(model: Any, optimizer: Any) -> list[Any]:
    """Returns the variables on which a model's training depends: its weights and its optimizer's, each once.

    They do not include states of random numbers, which differ between ranks on purpose, nor metrics.
    """
    found, seen = [], set()
    # Keras 2 does not list the learning rate among the optimizer's variables.
    rate = getattr(optimizer, "learning_rate", None)
    rates = [rate] if hasattr(rate, "assign") else []
    for variable in list(model.weights) + of_optimizer(optimizer) + rates:
        if id(variable) not in seen and getattr(variable, "name", "") != _SEED:
            seen.add(id(variable))
            found.append(variable)
    return found


def read(variables: Sequence[Any]) -> list[np.ndarray]:
    """Returns copies of the variables' values."""
    return [np.array(as_array(variable), order="C") for variable in variables]


def write(variables: Sequence[Any], values: Sequence[np.ndarray]) -> None:
    """Assigns the values."""
    for variable, value in zip(variables, values):
        assign(variable, value)


def broadcast(variables: Sequence[Any], root_rank: int, name: str) -> None:
    """Overwrites the variables with those of rank root_rank.

    Variables are matched by their position. Raises ValueError, on all ranks, if a rank has different ones.
    """
    values = read(variables)
    same_on_all.gather(np.zeros(0), [f"{i}: {value.dtype}{list(value.shape)}" for i, value in enumerate(values)],
                       f"{name}.shapes", global_process_set, _other_variables)
    pending = [operations.start(_submissions.broadcast(value, root_rank, f"{name}.{i}", 0, True))
               for i, value in enumerate(values)]
    _, error = operations.wait_all(pending)
    if error is not None:
        raise error
    write(variables, values)


def _other_variables(difference: str) -> ValueError:
    return ValueError(f"broadcast of a model's variables: the ranks have different ones: {difference}; all ranks must "
                      "create and build the same model and optimizer")
