"""Names of operations, by which ranks match them.

A name that the program gives is used as it is. Otherwise an operation in a
traced function is named after the place in the program that calls it:

    allreduce.loss:42.5c1d3f7a.1['dense']['kernel']
              |       |        | path in the pytree
              |       |        the second time in this trace (0: left out)
              |       digest of the calls between the traced function and here
              innermost function and line

So the name is the same on all ranks, whatever else they have traced and how
often, and differs between the calls of a traced function. JAX keeps the program of a
jitted function for all its callers, so the name does not depend on these. docs/jax.md
says what follows for programs.

Outside traced functions, the leaves of a pytree are named after their paths, so that
ranks with other trees do not mix them up: `allreduce.tree['dense']`.

Thread contract: any thread.
"""

import functools
import os
import sys
import weakref
import zlib
from types import FrameType
from typing import Any, Optional

import jax

from maypole.jax import _internals
from maypole.jax._plans import limited

_JAX = os.path.dirname(os.path.abspath(jax.__file__)) + os.sep
_JITTED = os.path.join("jax", "_src", "pjit.py")  # calls functions to trace them
_MAYPOLE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep

# How often a place was called, by trace. A trace disappears when its function has been compiled.
_counts: "weakref.WeakKeyDictionary[Any, dict[str, int]]" = (
    weakref.WeakKeyDictionary())


@functools.lru_cache(maxsize=1024)
def of_leaves(base: str, structure: Any) -> tuple[str, ...]:
    """Returns the names of the leaves of a pytree of this structure."""
    return tuple(limited(base + path) for path in paths_of(structure))


@functools.lru_cache(maxsize=1024)
def paths_of(structure: Any) -> tuple[str, ...]:
    """Returns the paths of the leaves of a pytree of this structure."""
    tree = structure.unflatten([0] * structure.num_leaves)
    paths, _ = jax.tree_util.tree_flatten_with_path(tree)
    return tuple(jax.tree_util.keystr(path) for path, _ in paths)


@functools.lru_cache(maxsize=1024)
def outside(kind: str, process_set: int, structure: Any) -> tuple[str, ...]:
    """Returns the names of unnamed leaves outside traced functions; "" for one that is the whole tree."""
    base = f"{kind}.tree" + (f".{process_set}" if process_set else "")
    return tuple(path and limited(base + path) for path in paths_of(structure))


def of_place(kind: str) -> str:
    """Returns a name for the calling place in a traced function."""
    place = f"{kind}.{_place()}"
    counts = _counts.setdefault(_internals.outer_trace(), {})
    count = counts.get(place, 0)
    counts[place] = count + 1
    return f"{place}.{count}" if count else place


def maker() -> str:
    """Describes the caller of maypole.jax that is no part of it, of JAX or of Optax: `make:12`."""
    frame: Optional[FrameType] = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if not code.co_filename.startswith((_JAX, _MAYPOLE)) and f"{os.sep}optax{os.sep}" not in code.co_filename:
            return f"{code.co_name}:{frame.f_lineno} of {os.path.basename(code.co_filename)}"
        frame = frame.f_back
    return "?"


def _place() -> str:
    """Describes the calls from the innermost jitted function to here, innermost first."""
    calls: list[tuple[str, str, int]] = []
    inside = 0
    frame: Optional[FrameType] = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if code.co_filename.startswith(_JAX):
            inside = len(calls)
            if code.co_filename.endswith(_JITTED):
                break
        elif not code.co_filename.startswith(_MAYPOLE):
            calls.append((os.path.basename(code.co_filename), code.co_name,
                          frame.f_lineno))
        frame = frame.f_back
    # The callers of JAX, and their other work, may differ between ranks.
    calls = calls[:inside]
    if not calls:
        return "jit"
    digest = zlib.crc32(repr(calls).encode("utf-8"))
    return f"{calls[0][1]}:{calls[0][2]}.{digest:08x}"
