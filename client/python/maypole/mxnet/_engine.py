"""libmaypole_mxnet.so: collectives as operations of MXNet's engine.

Thread contract: any thread.
"""

import ctypes
import os
from typing import Any

import mxnet
from mxnet.base import _LIB

from maypole import _native


class _Functions(ctypes.Structure):
    """EngineFunctions of client/mxnet/engine.h."""

    _fields_ = [
        *((name, ctypes.c_void_p)
          for name in ("push_async", "get_data", "shallow_copy", "free",
                       "last_error", "reorder")),
        ("must_block", ctypes.c_int),
    ]


def _address(name: str) -> Any:
    """A function of MXNet; None if it is not there."""
    function = getattr(_LIB, name, None)
    return function and ctypes.cast(function, ctypes.c_void_p).value


def _load() -> Any:
    """Raises ImportError if a part is missing or MXNet is of another version."""
    if mxnet.__version__.split(".")[:2] != ["1", "9"]:
        raise ImportError(f"maypole.mxnet works with MXNet 1.9.1, its last "
                          f"version; this is {mxnet.__version__}")
    library = ctypes.CDLL(_native.framework_library("mxnet"))
    for function in (library.maypole_mxnet_start, library.maypole_mxnet_push):
        function.restype = ctypes.c_char_p
    functions = _Functions(
        _address("MXEnginePushAsyncND"), _address("MXNDArrayGetData"),
        _address("MXShallowCopyNDArray"), _address("MXNDArrayFree"),
        _address("MXGetLastError"),
        _address("_ZNK5mxnet7NDArray20Reorder2DefaultAsyncEv"),
        os.environ.get("MXNET_ENGINE_TYPE") == "NaiveEngine")
    error = library.maypole_mxnet_start(
        os.fsencode(_native.library().path), ctypes.byref(functions))
    if error is not None:
        raise ImportError(error.decode())
    return library


_library = _load()


def push(kind: int, dtype: int, op: int, root: int, prescale: float,
         postscale: float, name: str, process_set: int, tensor: mxnet.nd.NDArray,
         output: mxnet.nd.NDArray, priority: int) -> None:
    """Pushes a collective; in place if `output` is `tensor`.

    It never blocks, except with MXNET_ENGINE_TYPE=NaiveEngine. The operation's
    error is raised where the program waits for `output`. Raises MXNetError if
    the engine refuses it.
    """
    operation, kept = _native.library().packed(
        kind, dtype, op, root, tensor.shape, prescale, postscale, name,
        tensor.handle.value, output.handle.value, False, process_set)
    error = _library.maypole_mxnet_push(operation, ctypes.c_int(priority))
    del kept
    if error is not None:
        raise mxnet.base.MXNetError(error.decode("utf-8", "replace"))
