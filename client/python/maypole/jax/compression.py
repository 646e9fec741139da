"""Gradient compression: fewer bytes to move, at the cost of precision.

Thread contract: stateless.
"""

from typing import Any

import jax.numpy as jnp

from maypole.common.compression import CastCompressor, NoneCompressor
from maypole.common.compression import Compressor as Compressor


class _CastCompressor(CastCompressor):
    """Sends float32 and float64 as `wire`; other dtypes as they are."""

    casts = (jnp.float32, jnp.float64)

    @staticmethod
    def cast(tensor: Any, dtype: Any) -> Any:
        return tensor.astype(dtype)


class FP16Compressor(_CastCompressor):
    """Sends float32 and float64 as float16 (values over 65504 overflow)."""

    wire = jnp.float16


class BF16Compressor(_CastCompressor):
    """Sends float32 and float64 as bfloat16: float32's range, 8 bits of precision."""

    wire = jnp.bfloat16


class Compression:
    """The values of `compression=`."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
