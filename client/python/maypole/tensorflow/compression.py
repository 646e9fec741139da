"""Gradient compression: fewer bytes to move, at the cost of precision."""

from typing import Any

import tensorflow as tf

from maypole.common.compression import Compressor, NoneCompressor


class _CastCompressor(Compressor):
    """Sends floating tensors as `wire`; others as they are."""

    wire: Any

    @classmethod
    def compress(cls, tensor: Any) -> tuple[Any, Any]:
        tensor = tf.convert_to_tensor(tensor)
        if not tensor.dtype.is_floating:
            return tensor, tensor.dtype
        return tf.cast(tensor, cls.wire), tensor.dtype

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        return tensor if tensor.dtype == ctx else tf.cast(tensor, ctx)


class FP16Compressor(_CastCompressor):
    """Sends floating tensors as float16."""

    wire = tf.float16


class BF16Compressor(_CastCompressor):
    """Sends floating tensors as bfloat16."""

    wire = tf.bfloat16


class Compression:
    """The values of `compression=`."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
