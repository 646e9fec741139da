"""Names of operations, by which ranks match them.

A name that the program gives is used as it is. Otherwise an operation in a
traced function is named after the place in the program that calls it:

    allreduce.loss:42.5c1d3f7a.1['dense']['kernel']
              |       |        | path in the pytree
              |       |        the second time in this trace (0: left out)
              |       digest of the calls between the traced function and here
              innermost function and line

So the name is the same on all ranks, whatever else they have traced and how
often, and differs between the calls of a traced function. docs/jax.md says what
follows for programs.

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

_MAX_BYTES = 511  # of the library

_JAX = os.path.dirname(os.path.abspath(jax.__file__)) + os.sep
_MAYPOLE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep

# How often a place was called, by trace. A trace disappears when its function has been compiled.
_counts: "weakref.WeakKeyDictionary[Any, dict[str, int]]" = (
    weakref.WeakKeyDictionary())


@functools.lru_cache(maxsize=1024)
def of_leaves(base: str, structure: Any) -> tuple[str, ...]:
    """Returns the names of the leaves of a pytree of this structure."""
    tree = structure.unflatten([0] * structure.num_leaves)
    paths, _ = jax.tree_util.tree_flatten_with_path(tree)
    return tuple(
        _limited(base + jax.tree_util.keystr(path)) for path, _ in paths)


def of_place(kind: str) -> str:
    """Returns a name for the calling place in a traced function."""
    place = f"{kind}.{_place()}"
    counts = _counts.setdefault(_internals.outer_trace(), {})
    count = counts.get(place, 0)
    counts[place] = count + 1
    return f"{place}.{count}" if count else place


def _place() -> str:
    """Describes the calls from the traced function to here, innermost first."""
    calls: list[tuple[str, str, int]] = []
    inside = 0
    frame: Optional[FrameType] = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if code.co_filename.startswith(_JAX):
            inside = len(calls)
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


def _limited(name: str) -> str:
    """Returns `name` in a form that the library accepts."""
    name = name.replace("\n", " ")
    encoded = name.encode("utf-8")
    if len(encoded) <= _MAX_BYTES:
        return name
    kept = encoded[:_MAX_BYTES - 9].decode("utf-8", "ignore")
    return f"{kept}.{zlib.crc32(encoded):08x}"
