"""Finds out which Keras this is, and what reduces its gradients.

Thread contract: any thread.
"""

import importlib
from typing import Any

_BACKENDS = ("tensorflow", "jax", "torch")


def is_keras3(keras: Any) -> bool:
    """Whether this is Keras 3 or newer."""
    return hasattr(keras, "ops")  # tf.keras of Keras 2 has no __version__


def backend_of(keras: Any) -> str:
    """Returns "tensorflow", "jax" or "torch". Raises ImportError for another backend of Keras 3."""
    if not is_keras3(keras):
        return "tensorflow"
    backend = keras.backend.backend()
    if backend not in _BACKENDS:
        raise ImportError(f"Keras uses the backend {backend!r}, with which it cannot train, or not "
                          "with Maypole; set KERAS_BACKEND to one of " + ", ".join(_BACKENDS))
    return backend


def keras_of(optimizer: Any, keras: Any) -> Any:
    """Returns the optimizer's Keras: `keras`, or another one in the process (tf_keras beside Keras 3)."""
    roots = [base.__module__.partition(".")[0] for base in type(optimizer).__mro__]
    if keras.optimizers.Optimizer.__module__.partition(".")[0] in roots:
        return keras
    other = next((root for root in roots if root in ("keras", "tf_keras")), None)
    return keras if other is None else importlib.import_module(other)


def gradients_of(keras: Any) -> Any:
    """Returns the object for Reduction.gradients of one optimizer."""
    return importlib.import_module("maypole._keras.gradients_" + backend_of(keras)).Gradients()


def compression_of(keras: Any) -> Any:
    """Returns the class Compression of the backend's binding."""
    return importlib.import_module(f"maypole.{backend_of(keras)}.compression").Compression


def translated(compression: Any, of: Any, to: Any) -> Any:
    """Returns the compression of `to`'s backend that corresponds to that of `of`'s backend."""
    if backend_of(of) == backend_of(to):
        return compression
    name = next((n for n, c in vars(compression_of(of)).items() if c is compression), None)
    return compression if name is None else getattr(compression_of(to), name)
