"""Loads models such that their training continues as they were saved.

Thread contract: one thread.
"""

import os
from collections.abc import Sequence
from typing import Any, Callable, Optional

from maypole._keras import variables


def load_model(keras: Any, distribute: Callable[[Any], Any], filepath: Any,
               custom_optimizers: Optional[Sequence[type]], custom_objects: Any,
               legacy_opts: bool) -> Any:
    """See maypole.keras.load_model(). distribute: DistributedOptimizer with all arguments."""
    objects = {cls.__name__: cls for cls in custom_optimizers or ()}
    objects.update(custom_objects or {})
    if legacy_opts:
        objects.update(_legacy(keras))
    model = keras.models.load_model(filepath, custom_objects=objects)
    optimizer = getattr(model, "optimizer", None)
    if optimizer is None:
        return model
    if _lost_state(optimizer):
        optimizer = _restored(model, optimizer, filepath)
    elif os.path.isdir(filepath):
        _restore_from_saved_model(model, filepath)
    model.optimizer = distribute(optimizer)
    return model


def _legacy(keras: Any) -> Any:
    """Returns the optimizers from before TensorFlow 2.11, by the names under which they were saved."""
    found = getattr(keras.optimizers, "legacy", None)
    if found is None:
        return {}
    return {name: getattr(found, name) for name in dir(found)
            if isinstance(getattr(found, name), type)}


def _lost_state(optimizer: Any) -> bool:
    """Whether the optimizer was built without variables, as by Keras 3's loader of .h5 files.

    Such an optimizer has no state, and would refuse the model's variables at the first step.
    """
    return (getattr(optimizer, "built", False)
            and not getattr(variables.optimizer_of(optimizer), "_trainable_variables", True))


def _restored(model: Any, optimizer: Any, filepath: Any) -> Any:
    """Returns the optimizer with the state from the .h5 file."""
    import h5py  # Keras needs it to load such a file
    optimizer = type(optimizer).from_config(optimizer.get_config())
    optimizer.build(model.trainable_variables)
    with h5py.File(filepath, "r") as file:
        if "optimizer_weights" in file:
            group = file["optimizer_weights"]
            values = [group[name][()] for name in _names(group.attrs)]
            mine = variables.of_optimizer(optimizer)
            if [tuple(v.shape) for v in mine] != [value.shape for value in values]:
                raise ValueError(f"{filepath}: the optimizer's {len(values)} variables in the file "
                                 f"are not those of a {optimizer.name} for this model")
            variables.write(mine, values)
    return optimizer


def _restore_from_saved_model(model: Any, directory: Any) -> None:
    """Reads the optimizer's variables from a SavedModel, which Keras 2 itself does not do."""
    import tensorflow as tf
    variables.build_optimizer(model, model.optimizer)
    checkpoint = os.path.join(directory, "variables", "variables")
    tf.train.Checkpoint(root=model).restore(checkpoint).expect_partial()


def _names(attributes: Any) -> list[str]:
    """Returns the names of the variables; a long list is split over several attributes."""
    if "weight_names" in attributes:
        parts = [attributes["weight_names"]]
    else:
        parts = []
        while f"weight_names{len(parts)}" in attributes:
            parts.append(attributes[f"weight_names{len(parts)}"])
    return [name.decode() if isinstance(name, bytes) else name for part in parts for name in part]
