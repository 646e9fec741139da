"""Scale factors for integer tensors.

libmaypole scales floating dtypes only. As in Horovod, an integer is multiplied
in float64 and rounded toward zero; other than in Horovod, a product outside the
dtype's range becomes its nearest limit (and NaN becomes 0).
"""

from typing import Optional

import torch


def scales_here(tensor: torch.Tensor, prescale: float,
                postscale: float) -> bool:
    """Whether the factors are for scaled(), not for the library."""
    return ((prescale != 1.0 or postscale != 1.0)
            and not tensor.dtype.is_floating_point
            and not tensor.dtype.is_complex and tensor.dtype != torch.bool)


def scaled(tensor: torch.Tensor, factor: float,
           out: Optional[torch.Tensor] = None) -> torch.Tensor:
    """`tensor` times `factor`, as a new tensor or in `out`."""
    if out is None:
        out = torch.empty_like(tensor, memory_format=torch.contiguous_format)
    with torch.no_grad():
        if factor == 1.0:
            return out.copy_(tensor)
        limits = torch.iinfo(tensor.dtype)
        product = torch.nan_to_num(tensor.to(torch.float64) * factor, nan=0.0)
        # float64 has no 2^63 - 1, and 2^63 does not fit into int64.
        too_large = product >= float(limits.max)
        product = product.clamp(float(limits.min), float(limits.max)).trunc()
        product.masked_fill_(too_large, 0.0)
        out.copy_(product)
        return out.masked_fill_(too_large, limits.max)
