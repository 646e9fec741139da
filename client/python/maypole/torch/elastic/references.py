"""Copies values that refer to the model or the optimizer of a state.

    references = References({"model": model, "optimizer": optimizer})
    copied = references.copy(trainer)           # copied.model is model
    data = references.dumps(trainer)            # on one rank
    received = references.loads(data)           # on another: its own model

A model, its modules, parameters and buffers, and an optimizer and its groups
are not copied, because they are restored in place. A copy would be a second
model that nobody trains.

Thread contract: pure functions of the objects.
"""

import copy
from collections.abc import Iterator
from typing import Any

import torch

from maypole.common import objects

_PLAIN = (int, float, complex, str, bytes, bool, type(None))


class References:
    """See the head of this file.

    values: the objects that may be referred to, by names that are the same on all ranks.
    """

    def __init__(self, values: dict[str, Any]):
        self._named: dict[str, Any] = {}
        for name, value in values.items():
            for part, found in _parts(value):
                self._named[f"{name}{part}"] = found

    def copy(self, value: Any) -> Any:
        """copy.deepcopy(), but keeps references."""
        return copy.deepcopy(value, {id(v): v for v in self._named.values()})

    def dumps(self, value: Any) -> bytearray:
        """`value` pickled; references become names."""
        return objects.dumps(value, self._named)

    def loads(self, data: Any) -> Any:
        """Reverses dumps() with this process's objects."""
        return objects.loads(data, self._named)


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    yield "", value
    if isinstance(value, torch.nn.Module):
        for kind in ("modules", "parameters", "buffers"):
            for name, part in getattr(value, f"named_{kind}")():
                if part is not value:
                    yield f".{kind}.{name}", part
    elif isinstance(value, torch.optim.Optimizer):
        yield ".param_groups", value.param_groups
        yield ".state", value.state
        for number, group in enumerate(value.param_groups):
            yield f".param_groups.{number}", group
            for place, parameter in enumerate(group["params"]):
                yield f".param_groups.{number}.{place}", parameter


def is_plain(value: Any) -> bool:
    """Whether `value` certainly refers to nothing."""
    if type(value) in (list, tuple, set, frozenset):
        return all(type(item) in _PLAIN for item in value)
    return type(value) in _PLAIN
