"""The way into XLA: registers libmaypole_jax.so's handler, and calls it.

XLA's foreign function interface changes between versions of jaxlib, so its
version and the places of its functions are read from the C header that each
jaxlib wheel contains (client/xla/xla_ffi.h).

Thread contract: any thread; register() takes effect once per process.
"""

import ctypes
import functools
import logging
import os
import re
import sys
import time
from collections.abc import Sequence
from typing import Any, Optional

import jaxlib
import numpy as np

from maypole import _native
from maypole.common import basics, xla_header
from maypole.jax import _internals

OLDEST_JAXLIB = (0, 4, 38)

_TARGET = "maypole_collective"
_DIGEST = "maypole_digest"
_POLL_SECONDS = 0.002
_PATIENCE_SECONDS = 60.0  # with programs that make no progress, when this process leaves the job

_log = logging.getLogger("maypole.jax")


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
def register() -> Any:
    """Makes the handler known to JAX, once; returns the library.

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
    _jax_ffi.register_ffi_target(_DIGEST, _jax_ffi.pycapsule(library.maypole_jax_digest), platform="cpu")
    begin_epoch = library.maypole_jax_begin_epoch
    begin_epoch.argtypes, begin_epoch.restype = (ctypes.c_int64,), None
    library.maypole_jax_take_failure.restype = ctypes.c_char_p
    basics.call_at_epochs(lambda: begin_epoch(basics.joins()), _end_programs)
    return library


def take_failure() -> Optional[str]:
    """Returns the text of the first error of a program's collective in this membership epoch, once; None without one.

    jaxlib 0.4.38 may not raise it (collective.h).
    """
    text = register().maypole_jax_take_failure()
    return None if text is None else text.decode("utf-8", "replace")


def _end_programs() -> None:
    """Waits until the programs that were dispatched have run: their collectives need this rank.

    Not if the process ends by an error, after which other ranks may wait for something else, and only while
    operations end: other ranks may have dispatched fewer programs.
    """
    failure = None
    if getattr(sys, "last_value", None) is None:
        pending, deadline = None, 0.0
        while not _internals.programs_have_ended():
            now, done = time.monotonic(), basics.counter("completed")
            if done != pending:
                pending, deadline = done, now + _PATIENCE_SECONDS
            elif now > deadline:
                _log.error("maypole.jax: programs of this rank have not ended for %.0f s: other ranks have not called "
                           "their collectives; leaving the job", _PATIENCE_SECONDS)
                break
            time.sleep(_POLL_SECONDS)
        else:
            _internals.forget_ended_programs()
        failure = take_failure()
    if failure is not None:
        _log.error("maypole.jax: a collective of a program has failed; if this error was not raised, results that "
                   "depend on it are wrong: %s", failure)


def lower_digest(context: Any, *operands: Any) -> Any:
    """The custom call of client/jax/digest.h."""
    register()
    return _jax_ffi.ffi_lowering(_DIGEST)(context, *operands)


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
        names="\n".join(plan.names), check="\n".join(plan.check))
