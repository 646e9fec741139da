"""Scale factors for integer tensors.

libmaypole scales floating dtypes only. As in Horovod, an integer is multiplied in
float64 and rounded toward zero; a product outside the dtype's range becomes its
nearest limit.
"""

from collections.abc import Sequence
from typing import Any, Callable

import tensorflow as tf

from maypole.common.constants import Average, ReduceOp, Sum


def reduced(tensors: Sequence[Any], op: ReduceOp, prescale: float, postscale: float,
            size: Callable[[], Any],
            reduce: Callable[[Sequence[Any], ReduceOp, float, float], list[Any]]) -> list[Any]:
    """reduce() of the tensors, where integers are multiplied here.

    All have one dtype, or none is an integer, else ValueError. size() gives the
    number of ranks, as a tensor.
    """
    if any(t.dtype.is_floating or t.dtype.is_bool for t in tensors):
        raise ValueError("prescale_factor and postscale_factor need a group of floating tensors or "
                         f"one of integers, got {[t.dtype.name for t in tensors]}")
    factor: Any = postscale
    if op == Average:  # rounded only once: a sum and a factor
        op, factor = Sum, postscale / tf.cast(size(), tf.float64)
    results = reduce([scaled(t, prescale) for t in tensors], op, 1.0, 1.0)
    return [scaled(t, factor) for t in results]


def scaled(tensor: Any, factor: Any) -> Any:
    """The tensor times the factor, a number or a scalar tensor."""
    if isinstance(factor, float) and factor == 1.0:
        return tensor
    dtype = tensor.dtype
    if dtype.is_floating:
        return tensor * tf.cast(factor, dtype)
    product = tf.cast(tensor, tf.float64) * tf.cast(factor, tf.float64)
    # float64 has no 2^63 - 1, and 2^63 does not fit into int64.
    product = tf.where(tf.math.is_nan(product), tf.zeros_like(product), product)
    too_large = product >= float(dtype.max)
    product = tf.where(too_large, tf.zeros_like(product), product)
    kept = tf.cast(tf.maximum(product, float(dtype.min)), dtype)
    return tf.where(too_large, tf.fill(tf.shape(kept), tf.constant(dtype.max, dtype)), kept)
