"""Compression of gradients that are sent between ranks."""

from typing import Any

import mxnet as mx
import numpy as np

from maypole.common.compression import CastCompressor, NoneCompressor
from maypole.common.compression import Compressor as Compressor


class FP16Compressor(CastCompressor):
    """Sends float32 and float64 in 16 bits."""

    wire = "float16"
    casts = (np.float32, np.float64)

    @staticmethod
    def cast(tensor: mx.nd.NDArray, dtype: Any) -> mx.nd.NDArray:
        """The array in another dtype."""
        return tensor.astype(dtype)


class Compression:
    """The values of DistributedTrainer's `compression`."""

    none = NoneCompressor
    fp16 = FP16Compressor
