"""What the ranks compare while they reduce gradients: the optimizer, and whether they train one model.

An optimizer's reduction has one leaf more, of integers of 32 bits: for each fact a
number, then the numbers' complements. Its minimum over the ranks (client/xla/collective.cc,
Call::Compare()) shows the least and the greatest of each number. If they are further
apart than _TOLERANCE, the reduction fails on all ranks, before anything is changed.

    numbers, labels = facts(instance, steps, params, state)

    fact                  in which steps       number
    the optimizer         each                 a digest of where it was made, and how many were made there before
    steps made            each                 their number
    a leaf of the         the first            a digest of its bits
    weights or the        2nd, 4th, 8th, ...   of floating leaves the weighted sum of their absolute values, because
    optimizer's state                          ranks' programs may round in other ways; of others a digest of the bits

A learning rate is not a leaf: the weights differ after the first step. MAYPOLE_CHECK_START=0
leaves out all but the first fact on a rank that differs on purpose. In programs for several
devices, or for others than the CPU, leaves are not compared.

Thread contract: any thread.
"""

import os
import zlib
from collections.abc import Sequence
from typing import Any, NamedTuple, Optional

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import ShapedArray
from jax.extend.core import Primitive
from jax.interpreters import batching, mlir

from maypole import _native
from maypole.jax import _ffi, _internals, _names

_TOLERANCE = 1024
_SPREAD = 11  # different digests differ by more than the tolerance
_DIGEST = (1 << 20) - 1
_LEFT_OUT = np.int32(2**31 - 1)  # for a number and its complement

_CURE = ("; before the first step, and after join(), give all ranks the same weights, state "
         "(hvd.broadcast_parameters() and broadcast_optimizer_state()) and settings, and change them alike on all "
         "ranks (MAYPOLE_CHECK_START=0: do not compare)")


class Instance(NamedTuple):
    """An optimizer. who: the function that made it; place: its caller; number: of those made there before."""

    who: str
    place: str
    number: int


def new_instance(who: str, name: Optional[str]) -> Instance:
    """Counts an optimizer; those made at one place in the same order on all ranks have equal numbers."""
    place = _names.maker()
    if not _internals.is_top_level():  # a rank may trace again
        return Instance(who, place, 0)
    counts = _native.library().counts
    key = ("jax optimizer", place, name or "")
    counts[key] += 1
    return Instance(who, place, counts[key] - 1)


def of_instance(instance: Instance) -> tuple[Any, tuple[str, ...]]:
    """Returns (the leaf, the text of the error for each of its facts) of only the first fact."""
    return _leaf([_spread(zlib.crc32(repr(instance[1:]).encode()))]), (_label_of(instance),)


def facts(instance: Instance, steps: Any, params: Any, state: Any) -> tuple[Any, tuple[str, ...]]:
    """Returns (the leaf, the text of the error for each of its facts)."""
    first = _spread(zlib.crc32(repr(instance[1:]).encode()))
    labels = [_label_of(instance), f"{instance.who}: the ranks have made different numbers of steps{_CURE}"]
    leaves: list[Any] = []
    # The cause first: weights become different by a learning rate in the state, not the other way round.
    for what, tree in (("optimizer state", state), ("weights", params)):
        for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]:
            at = jax.tree_util.keystr(path)
            labels.append(f"{instance.who}: the ranks have different {what}{at and ' at '}{at}{_CURE}")
            leaves.append(leaf)
    labels = [label.replace("\n", " ") for label in labels]
    if os.environ.get("MAYPOLE_CHECK_START") == "0":
        left_out = jnp.full(len(labels) - 1, _LEFT_OUT)
        own = jnp.asarray([first], jnp.int32)
        return jnp.concatenate([own, left_out, ~own, left_out]), tuple(labels)
    leaves = [_plain(leaf) for leaf in leaves]
    if not leaves:
        compared = np.zeros(0, np.int32)
    elif _internals.is_top_level():
        compared = _digests(steps, *leaves)
    else:
        compared = _digest.bind(jnp.asarray(steps, jnp.int32), *map(jnp.asarray, leaves))
    own = jnp.stack([jnp.asarray(first, jnp.int32), _spread(jnp.asarray(steps, jnp.int32))])
    count = len(leaves)
    return jnp.concatenate([own, compared[:count], ~own, compared[count:]]), tuple(labels)


def first_difference(own: Any, least: Any, labels: Sequence[str]) -> Optional[str]:
    """Returns the label of the first fact in which the ranks differ; None if there is none.

    own: the leaf. least: its minimum over the ranks. As Call::Compare() of client/xla.
    """
    shape = (-1, 2, len(labels))
    own, least = (np.asarray(values, np.int64).reshape(shape) for values in (own, least))
    compared = (own != _LEFT_OUT).any(axis=1)
    apart = ((~least[:, 1] - least[:, 0] > _TOLERANCE) & compared).any(axis=0)
    return labels[int(apart.argmax())] if apart.any() else None


def _label_of(instance: Instance) -> str:
    return (f"{instance.who}: the ranks use different optimizers here, this rank number {instance.number} of those "
            f"made at {instance.place}; make them, and call update(), in the same order on all ranks")


def _leaf(numbers: Any) -> Any:
    numbers = jnp.stack([jnp.asarray(number, jnp.int32) for number in numbers])
    return jnp.concatenate([numbers, ~numbers])


def _spread(number: Any) -> Any:
    return (number & _DIGEST) << _SPREAD


def _plain(leaf: Any) -> Any:
    """Returns the leaf as an array of numbers that has no derivative."""
    if isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        leaf = jax.random.key_data(leaf)
    return jax.lax.stop_gradient(leaf)


# The arguments are the number of steps and the leaves; the result is a vector of a number for each leaf and of their
# complements. In a program of the CPU it is a custom call, which computes the same numbers (client/jax/digest.cc).
_digest = Primitive("maypole_digest")
_digest.def_abstract_eval(lambda steps, *leaves: ShapedArray((2 * len(leaves),), np.dtype(np.int32)))


@_digest.def_impl
def _digests(steps: Any, *leaves: Any) -> Any:
    steps = int(steps)
    if steps & (steps + 1):
        return jnp.full(2 * len(leaves), _LEFT_OUT)
    numbers = np.array([(_rough if steps else _exact)(np.asarray(leaf)) for leaf in leaves], np.int32)
    return jnp.asarray(np.concatenate([numbers, ~numbers]))


def _left_out(*operands: Any) -> Any:
    return jnp.full(2 * (len(operands) - 1), _LEFT_OUT)


_lower_left_out = mlir.lower_fun(_left_out, multiple_results=False)


def _lower(context: Any, *operands: Any) -> Any:
    # Not where the leaves would be moved in each step: on several devices, or another one than the CPU.
    if _internals.devices(context, "DistributedOptimizer") > 1 or jax.default_backend() != "cpu":
        return _lower_left_out(context, *operands)
    return _ffi.lower_digest(context, *operands)


mlir.register_lowering(_digest, _lower)
# The leaves of jax.vmap's models are not compared.
batching.primitive_batchers[_digest] = lambda operands, batched: (_left_out(*operands), batching.not_mapped)


def _exact(leaf: np.ndarray) -> int:
    words = {1: np.uint8, 2: np.uint16}.get(leaf.dtype.itemsize, np.uint32)
    bits = np.ascontiguousarray(leaf).reshape(-1).view(words).astype(np.uint32)
    total = int(np.sum((bits ^ (bits >> 16)) * (_hashed(bits.size) | np.uint32(1)), dtype=np.uint32))
    return _spread(total ^ (total >> 15))


def _rough(leaf: np.ndarray) -> int:
    if leaf.dtype.name not in ("float16", "bfloat16", "float32", "float64"):
        return _exact(leaf)
    weights = 1 + (_hashed(leaf.size) >> 24) / 256.0
    with np.errstate(over="ignore"):
        total = np.float32(np.sum(np.abs(leaf.reshape(-1).astype(np.float64)) * weights))
    # The bits of numbers that are not negative are in the order of the numbers; a step is 2^-24 to 2^-23 of the number.
    bits = int((total if np.isfinite(total) else np.float32(np.inf)).view(np.int32))
    return bits >> 6 if leaf.dtype.itemsize < 4 else bits


def _hashed(count: int) -> np.ndarray:
    number = np.arange(1, count + 1, dtype=np.uint32) * np.uint32(0x9E3779B1)
    number = (number ^ (number >> 15)) * np.uint32(0x2C1B3C6D)
    return number ^ (number >> 12)
