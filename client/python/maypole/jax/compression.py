"""Gradient compression: fewer bytes to move, at the cost of precision.

Thread contract: stateless.
"""

from typing import Any, Tuple

import jax.numpy as jnp


class Compressor:
    """Makes an array smaller before an allreduce and restores it after.

    Subclasses may be passed as `compression=`. Both functions are traced; what
    compress() returns is reduced, so it must be linear in its input.
    """

    @staticmethod
    def compress(tensor: Any) -> Tuple[Any, Any]:
        """Returns (the array to send, context for decompress)."""
        raise NotImplementedError

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """Returns the reduced array in its original form."""
        raise NotImplementedError


class NoneCompressor(Compressor):
    """Sends arrays as they are."""

    @staticmethod
    def compress(tensor: Any) -> Tuple[Any, Any]:
        """Returns the array itself."""
        return tensor, None

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """Returns the array itself."""
        del ctx
        return tensor


class _CastCompressor(Compressor):
    """Sends float32 and float64 as `wire`; other dtypes as they are."""

    wire: Any

    @classmethod
    def compress(cls, tensor: Any) -> Tuple[Any, Any]:
        if tensor.dtype in (jnp.float32, jnp.float64):
            return tensor.astype(cls.wire), tensor.dtype
        return tensor, None

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        return tensor if ctx is None else tensor.astype(ctx)


class FP16Compressor(_CastCompressor):
    """Sends float32 and float64 as float16 (values over 65504 overflow)."""

    wire = jnp.float16


class BF16Compressor(_CastCompressor):
    """Sends float32 and float64 as bfloat16: float32's range, 8 bits of precision."""

    wire = jnp.bfloat16


class Compression:
    """What may be passed as `compression=`."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
