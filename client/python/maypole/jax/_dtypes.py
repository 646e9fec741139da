"""The library's types for JAX's."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from maypole import _native
from maypole.common.constants import Sum
from maypole.jax._plans import KIND_NAMES, Plan

# The library has no type for these, but can move their bits. Summed as signed
# integers of their size, the unsigned ones are also correct, without factors. The
# operation's shape gets further dimensions of 1, so that it does not match that of a
# rank whose array has the other type (client/xla/collective.cc does the same).
_SUMMED = {"uint32": _native.INT32, "uint64": _native.INT64}
_MOVED = {**_SUMMED, "complex64": _native.INT64}
_FOREIGN_DIMS = {"uint32": 1, "uint64": 1, "complex64": 2}
MAX_DIMS = 8  # MAYPOLE_MAX_DIMS of maypole.h


def foreign_dims(dtype: Any) -> int:
    """Returns how many dimensions of 1 the library's operation has more than the array."""
    return _FOREIGN_DIMS.get(np.dtype(dtype).name, 0)


def code(dtype: Any, plan: Plan, leaf: int) -> int:
    """The library's number for `dtype` in the operation of `plan` on this leaf.

    Raises ValueError if they cannot have this type.
    """
    what = f"{KIND_NAMES[plan.kind]} of {plan.label(leaf) or 'an array'!r}"
    if jnp.issubdtype(dtype, jax.dtypes.prng_key):
        raise ValueError(f"{what}: a key of jax.random; give broadcast_parameters() the key, or other functions its "
                         "jax.random.key_data()")
    if dtype == jax.dtypes.float0:
        raise ValueError(f"{what}: the gradient (float0) of an integer, which has no values; leave it out")
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
            f"{what}: dtype {name} is not supported here, expected one of "
            f"{', '.join([*_native.DTYPES, *others])}")
    if name in _SUMMED and (plan.prescale, plan.postscale) != (1.0, 1.0):
        raise ValueError(f"{what}: dtype {name} with prescale_factor or postscale_factor, which are for signed "
                         "integers and floats; multiply the array instead")
    return others[name]
