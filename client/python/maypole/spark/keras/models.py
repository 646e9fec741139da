"""Keras models and optimizers as bytes, for Keras 3 on any backend and Keras 2.12 and newer."""

import os
import tempfile
from collections.abc import Sequence
from typing import Any, Optional

import keras
import numpy

SUFFIX = ".keras"


def to_bytes(model: Any) -> bytes:
    """What model.save() writes: the model, and optimizer and losses if it is compiled."""
    with tempfile.TemporaryDirectory(prefix="maypole-spark-") as directory:
        path = os.path.join(directory, "model" + SUFFIX)
        model.save(path)
        with open(path, "rb") as f:
            return f.read()


def from_bytes(data: bytes, custom_objects: Any, compiled: bool, load: Any = None) -> Any:
    """load: keras.models.load_model, or maypole.keras.load_model."""
    with tempfile.TemporaryDirectory(prefix="maypole-spark-") as directory:
        path = os.path.join(directory, "model" + SUFFIX)
        with open(path, "wb") as f:
            f.write(data)
        if load is not None:
            return load(path, custom_objects=custom_objects)
        return keras.models.load_model(path, custom_objects=custom_objects, compile=compiled)


def shapes(tensors: Any) -> list[list[int]]:
    """Returns the shapes of a batch, with -1 for its size (and for other sizes that the model leaves open)."""
    return [[-1 if size is None else int(size) for size in tensor.shape] for tensor in tensors]


def inputs(arrays: Sequence[numpy.ndarray], wanted: Sequence[Sequence[int]]) -> Any:
    """Returns the arrays in the shapes of the model's inputs; floats in Keras' default type."""
    out = [_typed(array).reshape(shape) for array, shape in zip(arrays, wanted)]
    return out[0] if len(out) == 1 else tuple(out)


def labels(arrays: Sequence[numpy.ndarray], outputs: Sequence[Sequence[int]], given: Optional[Sequence[Any]]) -> Any:
    """Returns the labels in the given shapes; otherwise in the output's shape, if that has as many elements."""
    out = []
    for i, array in enumerate(arrays):
        array = _typed(array)
        if given:
            array = array.reshape(given[i])
        elif abs(int(numpy.prod(outputs[i][1:], dtype=int))) == array[0].size:
            array = array.reshape([-1, *outputs[i][1:]])
        out.append(array)
    return out[0] if len(out) == 1 else tuple(out)


def _typed(array: numpy.ndarray) -> numpy.ndarray:
    return array.astype(keras.backend.floatx()) if array.dtype.kind == "f" else array


def rate_of(optimizer: Any) -> Optional[float]:
    """The learning rate; None if it is a schedule."""
    rate = keras.optimizers.get(optimizer).get_config().get("learning_rate")
    return None if rate is None or isinstance(rate, dict) else float(rate)
