"""libmaypole_tensorflow.so: Maypole's operations for TensorFlow.

`ops` has the functions that TensorFlow generates for them (maypole_allreduce,
...; client/tensorflow/registration.cc has their arguments).
"""

import ctypes
from typing import Any

import tensorflow as tf

from maypole import _native


def _load() -> tuple[Any, bool, Any]:
    """Returns (the operations, whether their kernels are asynchronous, the library)."""
    libmaypole = _native.library().path
    path = _native.framework_library("tensorflow")
    # TensorFlow must be the first to load the file, so that it registers the operations.
    generated = tf.load_op_library(path)
    library = ctypes.CDLL(path)
    connect = library.maypole_tensorflow_connect
    connect.argtypes, connect.restype = [ctypes.c_char_p], ctypes.c_char_p
    error = connect(libmaypole.encode()).decode("utf-8", "replace")
    if error:
        raise ImportError(f"maypole.tensorflow with TensorFlow {tf.__version__}: {error}")
    return generated, bool(library.maypole_tensorflow_has_async_kernels()), library


ops, ASYNC, library = _load()

# For functions that build operations: in a tf.function, AutoGraph would
# otherwise convert their Python code, and that of everything they call, each
# time.
as_it_is = tf.autograph.experimental.do_not_convert
