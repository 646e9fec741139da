"""Compression of gradients for the way between ranks."""

from typing import Any

import mxnet as mx
import numpy as np

from maypole.common.compression import Compressor, NoneCompressor


class FP16Compressor(Compressor):
    """Sends float32 and float64 in 16 bits."""

    @staticmethod
    def compress(tensor: mx.nd.NDArray) -> tuple[mx.nd.NDArray, Any]:
        """The array as float16, and its dtype; None for an array that is sent as it is."""
        if tensor.dtype not in (np.float32, np.float64):
            return tensor, None
        return tensor.astype("float16"), tensor.dtype

    @staticmethod
    def decompress(tensor: mx.nd.NDArray, ctx: Any) -> mx.nd.NDArray:
        """The array with its former dtype."""
        return tensor if ctx is None else tensor.astype(ctx)


class Compression:
    """What DistributedTrainer's `compression` can be."""

    none = NoneCompressor
    fp16 = FP16Compressor
