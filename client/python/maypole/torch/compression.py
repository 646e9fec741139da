"""Gradient compression: fewer bytes to move, at the cost of precision."""

from typing import Any, Optional, Tuple

import torch


class Compressor:
    """Makes a tensor smaller before an allreduce and restores it after.

    Subclasses may be passed as `compression=`. `decompress` gets the context
    that `compress` returned.
    """

    @staticmethod
    def compress(tensor: torch.Tensor) -> Tuple[torch.Tensor, Any]:
        """Returns (the tensor to send, context for decompress)."""
        raise NotImplementedError

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        """Returns the reduced tensor in its original form."""
        raise NotImplementedError


class NoneCompressor(Compressor):
    """Sends tensors as they are."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> Tuple[torch.Tensor, None]:
        return tensor, None

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        return tensor


class FP16Compressor(Compressor):
    """Sends float32 and float64 as float16 (values over 65504 overflow).

    16-bit floats and other dtypes are sent as they are.
    """

    @staticmethod
    def compress(
            tensor: torch.Tensor
    ) -> Tuple[torch.Tensor, Optional[torch.dtype]]:
        if tensor.dtype in (torch.float32, torch.float64):
            return tensor.to(torch.float16), tensor.dtype
        return tensor, None

    @staticmethod
    def decompress(tensor: torch.Tensor,
                   ctx: Optional[torch.dtype]) -> torch.Tensor:
        return tensor if ctx is None else tensor.to(ctx)


class Compression:
    """The compressors: `Compression.none` and `Compression.fp16`."""

    none = NoneCompressor
    fp16 = FP16Compressor
