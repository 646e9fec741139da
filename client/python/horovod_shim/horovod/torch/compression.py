"""Compression, and the classes in it."""

from maypole.torch.compression import (BF16Compressor, Compression, Compressor,
                                       FP16Compressor, NoneCompressor)
