"""Gradient compression: fewer bytes to move, at the cost of precision.

Compression.none, .fp16 and .bf16 have no state. Compression.powersgd(rank) is
lossy and has state for each tensor: the part of a step's gradient that it leaves
out is added to the next step's gradient (error feedback).

Thread contract: any thread, but one at a time for a tensor's name.
"""

import zlib
from typing import Any, Optional, Union

import torch

from maypole.common import basics
from maypole.common.compression import CastCompressor, Compressor, NoneCompressor


class _CastCompressor(CastCompressor):
    """Sends float32 and float64 as `wire`; other dtypes as they are."""

    casts = (torch.float32, torch.float64)
    cast = staticmethod(torch.Tensor.to)


def wire_dtype(compression: "CompressorLike",
               dtype: torch.dtype) -> Optional[torch.dtype]:
    """Returns the dtype to which the compression casts tensors of `dtype`; None if it does not cast."""
    if compression not in (FP16Compressor, BF16Compressor):
        return None
    return compression.wire if dtype in _CastCompressor.casts else None


class FP16Compressor(_CastCompressor):
    """Sends float32 and float64 as float16 (values over 65504 overflow).

    16-bit floats and other dtypes are sent as they are.
    """

    wire = torch.float16


class BF16Compressor(_CastCompressor):
    """Sends float32 and float64 as bfloat16, with float32's range and 8 bits of precision.

    16-bit floats and other dtypes are sent as they are.
    """

    wire = torch.bfloat16


class PowerSGD:
    """Sends the gradient of a matrix as one factor of a low-rank approximation.

    After Vogels et al., "PowerSGD" (arXiv:1905.13727). A gradient M (a tensor
    as a matrix of its first dimension by all others) is approximated by
    P Q^T, with `rank` columns. PowerSGD reduces P = M Q and then Q = M^T P in
    each step. Here the steps alternate: one step reduces P for the last step's
    Q, the next one Q for that P. So a step has one allreduce, as with any other
    Compressor, and sends half as much.

    Each rank keeps the difference between its own M and P Q^T, and adds it to
    its next M. Tensors of less than two dimensions, and those that would not
    become smaller, are sent as they are.

    Invariants: P and Q are equal on all ranks of the set: first they are
    derived from the tensor's name, later they come from an allreduce. After an
    error, in a new membership epoch, and after a gradient that was not finite,
    each tensor starts again.
    """

    def __init__(self, rank: int = 4):
        if not isinstance(rank, int) or rank < 1:
            raise ValueError(f"Compression.powersgd(rank={rank!r}): expected a "
                             "positive integer")
        self.rank = rank
        self._tensors: dict[str, _LowRank] = {}

    def named(self, name: Optional[str]) -> "_LowRank":
        """Returns the compressor of the tensor with this name."""
        if name is None:
            raise ValueError("Compression.powersgd keeps what it left out of a "
                             "tensor for the next one of that name: pass name=")
        if name not in self._tensors:
            self._tensors[name] = _LowRank(name, self.rank)
        return self._tensors[name]

    def reset(self) -> None:
        """Forgets all tensors; all ranks must do this at the same step."""
        self._tensors.clear()


class _LowRank:
    """PowerSGD for one tensor."""

    def __init__(self, name: str, rank: int):
        self._seed = zlib.crc32(name.encode("utf-8"))
        self._rank = rank
        self._joins = basics.joins()
        self._left_out: Optional[torch.Tensor] = None  # rows x columns
        # The factor reduced last, and whether it is Q, which has a row for each
        # column of the matrix.
        self._factor: Optional[torch.Tensor] = None
        self._has_q = True

    @torch.no_grad()
    def compress(self, tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """See Compressor."""
        rows = tensor.shape[0] if tensor.dim() > 1 else 0
        columns = tensor.numel() // rows if rows else 0
        rank = min(self._rank, rows, columns)
        if (rank == 0 or not tensor.dtype.is_floating_point
                or (rows + columns) * rank >= tensor.numel()):
            return tensor, None
        # 16-bit floats could not hold the part that is left out.
        work = torch.promote_types(tensor.dtype, torch.float32)
        matrix = tensor.reshape(rows, columns).to(work)
        self._begin(matrix, rank)
        matrix = matrix + self._left_out
        basis = torch.linalg.qr(self._factor).Q
        if self._has_q:
            small = matrix @ basis
            self._left_out = matrix - small @ basis.t()
        else:
            small = matrix.t() @ basis
            self._left_out = matrix - basis @ small.t()
        return small.contiguous(), (basis, tensor.shape, tensor.dtype)

    def _begin(self, matrix: torch.Tensor, rank: int) -> None:
        left = self._left_out
        if (left is not None and left.shape == matrix.shape
                and left.dtype == matrix.dtype
                and self._joins == basics.joins()):
            return
        self._joins = basics.joins()
        self._left_out = torch.zeros_like(matrix)
        generator = torch.Generator("cpu").manual_seed(self._seed)
        self._factor = torch.randn(matrix.shape[1], rank, generator=generator,
                                   dtype=matrix.dtype, device="cpu").to(matrix.device)
        self._has_q = True

    @torch.no_grad()
    def decompress(self, tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        """See Compressor."""
        if ctx is None:
            return tensor
        basis, shape, dtype = ctx
        full = tensor @ basis.t() if self._has_q else basis @ tensor.t()
        # After an infinity, which all ranks see here, what is kept would be NaN forever. No branch: a GPU's answer
        # would have to be waited for.
        finite = torch.isfinite(tensor).all()
        anew = torch.eye(*tensor.shape, dtype=tensor.dtype, device=tensor.device)
        self._left_out = torch.where(finite, self._left_out, torch.zeros_like(self._left_out))
        self._factor = torch.where(finite, tensor, anew)  # no view: the caller may reuse the tensor's memory
        self._has_q = not self._has_q
        return full.reshape(shape).to(dtype)


def compressor_of(compression: Any, name: Optional[str]) -> Any:
    """Returns the object whose compress() and decompress() apply to the tensor `name`."""
    named = getattr(compression, "named", None)
    return compression if named is None else named(name)


class Compression:
    """The values of `compression=`."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
    powersgd = PowerSGD


# The type of `compression=`.
CompressorLike = Union[type[Compressor], PowerSGD]
