"""The library's types for JAX's."""

from typing import Any

import numpy as np

from maypole import _native
from maypole.common.constants import Sum
from maypole.jax._plans import KIND_NAMES, Plan

# The library has no type for these, but can move their bits. Summed as signed
# integers of their size, the unsigned ones are also correct.
_SUMMED = {"uint32": _native.INT32, "uint64": _native.INT64}
_MOVED = {**_SUMMED, "complex64": _native.INT64}


def code(dtype: Any, plan: Plan, leaf: int) -> int:
    """The library's number for `dtype` in the operation of `plan` on this leaf.

    Raises ValueError if they cannot have this type.
    """
    name = np.dtype(dtype).name
    found = _native.DTYPES.get(name)
    if found is not None:
        return found
    others = {}
    if plan.kind not in (_native.ALLREDUCE, _native.REDUCESCATTER):
        others = _MOVED
    elif plan.op == Sum:
        others = _SUMMED
    if name not in others:
        raise ValueError(
            f"{KIND_NAMES[plan.kind]} of {plan.label(leaf) or 'an array'!r}: dtype "
            f"{name} is not supported here, expected one of "
            f"{', '.join([*_native.DTYPES, *others])}")
    return others[name]
