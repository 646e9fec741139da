"""Variables as keys of dicts and sets, and helpers for variables and tensors.

A tf.Variable compares by value, so it cannot be a key; its reference can. A
Keras 3 variable has no reference, but holds a tf.Variable that has one.
"""

import itertools
import re
from collections.abc import Iterable, Sequence
from typing import Any, Callable


def tf_variable(variable: Any) -> Any:
    """Returns the tf.Variable of a Keras 3 variable; variables and tensors of TensorFlow themselves."""
    if hasattr(variable, "ref"):
        return variable
    # Not .value, which may be a copy of another type (Keras' autocast).
    return variable._value


def vars_to_refs(vars: Any) -> Any:
    """Returns the reference of a variable, or those of all variables in (nested) lists or tuples."""
    if isinstance(vars, (list, tuple)):
        return tuple(vars_to_refs(variable) for variable in vars)
    return tf_variable(vars).ref()


def refs_to_vars(refs: Any) -> Any:
    """Reverses vars_to_refs(); returns the tf.Variable of a Keras 3 variable."""
    if isinstance(refs, (list, tuple)):
        return [refs_to_vars(ref) for ref in refs]
    return refs.deref()


def without_counts(labels: Sequence[str]) -> list[str]:
    """Returns variables' names with numbers that count within them ("dense_7" and "dense_9": "dense" and "dense_1").

    Keras and TensorFlow count what the process has made.
    """
    counts: dict[str, set[int]] = {}
    parts = [re.split(r"([./:])", label) for label in labels]
    for part in itertools.chain(*parts):
        base, count = _counted(part)
        counts.setdefault(base, set()).add(count)
    places = {base: sorted(found) for base, found in counts.items()}

    def counted_anew(part: str) -> str:
        base, count = _counted(part)
        place = places[base].index(count)
        return f"{base}_{place}" if place else base

    return ["".join(map(counted_anew, each)) for each in parts]


def _counted(part: str) -> tuple[str, int]:
    """Returns ("dense", 7) for "dense_7", ("dense", 0) for "dense"."""
    base, _, count = part.rpartition("_")
    return (base, int(count)) if base and count.isdecimal() else (part, 0)


def assign(variable: Any, value: Any, session: Any) -> None:
    """Assigns an array. session: the version 1 graph's session (the graph may be finalized); None: there is none."""
    if session is None:
        variable.assign(value)
    else:  # adds nothing to the graph
        start = variable.initializer
        session.run(start, {start.inputs[1]: value})


def groups_of(items: Iterable[Any], tensor_of: Callable[[Any], Any], limit: int) -> list[list[Any]]:
    """Divides the items, in order, into lists whose tensors have at most `limit` bytes together (or are one tensor)."""
    groups: list[list[Any]] = []
    room = 0
    for item in items:
        tensor = tensor_of(item)
        size = (tensor.shape.num_elements() or 0) * tensor.dtype.size
        if not groups or size > room:
            groups.append([])
            room = limit
        groups[-1].append(item)
        room -= size
    return groups
