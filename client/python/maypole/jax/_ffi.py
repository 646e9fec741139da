"""The way into XLA: registers libmaypole_jax.so's handler, and calls it.

XLA's foreign function interface changes between versions of jaxlib, so its
version and the places of its functions are read from the C header that each
jaxlib wheel contains (client/xla/xla_ffi.h).

Thread contract: any thread; register() takes effect once per process.
"""

import ctypes
import functools
import os
import re
from collections.abc import Sequence
from typing import Any

import jaxlib
import numpy as np

from maypole import _native
from maypole.common import xla_header

OLDEST_JAXLIB = (0, 4, 38)

_TARGET = "maypole_collective"


def check_version(version: str) -> None:
    """Raises ImportError for a jaxlib that is too old."""
    numbers = tuple(int(n) for n in re.findall(r"\d+", version)[:3])
    if numbers < OLDEST_JAXLIB:
        raise ImportError(
            f"maypole.jax needs jaxlib {'.'.join(map(str, OLDEST_JAXLIB))} or "
            f"newer, found {version}: older ones have no asynchronous custom "
            "calls; upgrade with pip install --upgrade jax jaxlib")


# Before modules are imported that old versions lack.
check_version(jaxlib.__version__)

try:
    from jax import ffi as _jax_ffi
except ImportError:  # before jax 0.5
    from jax.extend import ffi as _jax_ffi


@functools.cache
def register() -> None:
    """Makes the handler known to JAX, once.

    Raises ImportError if the library or jaxlib's header is missing.
    """
    path = os.path.join(_jax_ffi.include_dir(), "xla", "ffi", "api", "c_api.h")
    try:
        with open(path, encoding="utf-8") as f:
            numbers = xla_header.layout(f.read(), f"jaxlib {jaxlib.__version__}")
    except OSError as error:
        raise ImportError(f"jaxlib {jaxlib.__version__}: no {path}, from which "
                          "maypole.jax reads XLA's interface") from error
    library = ctypes.CDLL(_native.framework_library("jax"))
    set_up = library.maypole_jax_set_up
    set_up.argtypes = (ctypes.c_char_p, ctypes.c_void_p)
    set_up.restype = ctypes.c_char_p
    places = (ctypes.c_int32 * len(numbers))(*numbers)
    failure = set_up(_native.library().path.encode(), places)
    if failure is not None:
        raise ImportError(failure.decode())
    _jax_ffi.register_ffi_target(
        _TARGET, _jax_ffi.pycapsule(library.maypole_jax_collective),
        platform="cpu")


def lower(context: Any, operands: Sequence[Any], plan: Any) -> Any:
    """The custom call in the program that is being lowered: one collective for each name of `plan`, a _plans.Plan.

    Further operands are not read.

    context: of the lowering rule.
    """
    register()
    return _jax_ffi.ffi_lowering(_TARGET, has_side_effect=True)(
        context, *operands, kind=np.int32(plan.kind), op=np.int32(plan.op),
        root=np.int32(plan.root), process_set=np.int32(plan.process_set),
        prescale=np.float64(plan.prescale), postscale=np.float64(plan.postscale),
        names="\n".join(plan.names))
