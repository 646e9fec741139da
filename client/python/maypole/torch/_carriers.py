"""Sends tensors of dtypes that libmaypole does not know as tensors of dtypes that it knows.

    carrier = carrier_of(tensor, "broadcast", name)   # None: submit the tensor itself
    ... submit carrier.tensor ...
    carrier.result(output)

Operations that only move data (broadcast, allgather, alltoall) send float8, uint32, uint64,
complex and quantized tensors as bytes. Operations that add (allreduce, reducescatter) take
complex tensors as pairs of real numbers.

A carrier has the tensor's shape plus dimensions of length 1, whose number depends on the
dtype. So ranks with different dtypes submit different shapes and get an error.

Thread contract: pure functions.
"""

from typing import Callable, NamedTuple, Optional

import torch

from maypole.common.collectives import title
from maypole.common.constants import Average, Sum
from maypole.torch._tensors import DTYPES, has_no_memory


class Carrier(NamedTuple):
    """A tensor that travels in place of another one.

    tensor: contiguous. in_memory: whether it uses the original's memory.
    result: makes the result from the carrier's result.
    """

    tensor: torch.Tensor
    in_memory: bool
    result: Callable[[torch.Tensor], torch.Tensor]


# dtype -> (dtype of the same size, number of further dimensions).
_AS_BYTES: dict[torch.dtype, tuple[torch.dtype, int]] = {}
for _number, (_name, _carrier) in enumerate((
        ("uint32", torch.int32), ("uint64", torch.int64),
        ("float8_e4m3fn", torch.uint8), ("float8_e5m2", torch.uint8),
        ("float8_e4m3fnuz", torch.uint8), ("float8_e5m2fnuz", torch.uint8),
        ("float8_e8m0fnu", torch.uint8))):
    if hasattr(torch, _name):
        _AS_BYTES[getattr(torch, _name)] = (_carrier, max(_number - 1, 1))

_MOVING = ("broadcast", "allgather", "alltoall")

_QUANTIZED: dict[torch.dtype, torch.dtype] = {
    torch.qint8: torch.int8,
    torch.quint8: torch.uint8,
    torch.qint32: torch.int32,
}


def carrier_of(tensor: torch.Tensor, kind: str, name: Optional[str],
               op: int = Sum) -> Optional[Carrier]:
    """The carrier of `tensor` for an operation of this kind.

    None if the library knows the dtype, or if nothing can carry it (then
    _tensors.dtype_code() refuses it).

    Raises ValueError for a reduction of complex numbers other than Sum and
    Average, and for a quantized tensor with a scale for each channel.
    """
    if (tensor.dtype in DTYPES or tensor.layout is not torch.strided
            or has_no_memory(tensor)):
        return None
    if tensor.dtype.is_complex:
        return _pairs(tensor, kind, name, op)
    if kind not in _MOVING:
        return None
    if tensor.is_quantized:
        return _quantized(tensor, kind, name)
    if tensor.dtype in _AS_BYTES:
        return _bytes(tensor)
    return None


def _bytes(tensor: torch.Tensor) -> Carrier:
    dtype, (carrier, more) = tensor.dtype, _AS_BYTES[tensor.dtype]
    source = tensor.contiguous()
    return Carrier(
        source.view(carrier).reshape(source.shape + (1,) * more),
        source is tensor,
        lambda result: result.reshape(result.shape[:result.dim() - more]).view(
            dtype))


def _pairs(tensor: torch.Tensor, kind: str, name: Optional[str],
           op: int) -> Carrier:
    if kind not in _MOVING and op not in (Average, Sum):
        raise ValueError(
            f"{title(kind, name)}: dtype {tensor.dtype} can be reduced by "
            "Average and Sum only")
    source = tensor.resolve_conj().resolve_neg().contiguous()
    return Carrier(
        torch.view_as_real(source).unsqueeze(-1),
        source.data_ptr() == tensor.data_ptr() and not tensor.is_conj()
        and not tensor.is_neg() and tensor.is_contiguous(),
        lambda result: torch.view_as_complex(result.squeeze(-1).contiguous()))


def _quantized(tensor: torch.Tensor, kind: str,
               name: Optional[str]) -> Carrier:
    """Rows of bytes, each with the scale and the zero point at its end; a broadcast has one row."""
    if tensor.qscheme() not in (torch.per_tensor_affine,
                                torch.per_tensor_symmetric):
        raise ValueError(
            f"{title(kind, name)}: it is quantized by {tensor.qscheme()}, but "
            "only tensors with one scale are supported; pass "
            "tensor.int_repr(), tensor.q_per_channel_scales() and "
            "tensor.q_per_channel_zero_points()")
    integers = _QUANTIZED[tensor.dtype]
    shape = tuple(tensor.shape)
    rows = 1 if kind == "broadcast" or not shape else shape[0]
    one = _scale_as_bytes(tensor)
    values = tensor.int_repr().contiguous().reshape(-1).view(torch.uint8)
    width = values.numel() // rows if rows else _row_bytes(tensor)
    carrier = torch.cat(
        (values.reshape(rows, width), one.expand(rows, one.numel())), dim=1)

    def result(received: torch.Tensor) -> torch.Tensor:
        scales = received[:, width:].cpu()
        if (scales != scales[:1]).any():
            raise ValueError(
                f"{title(kind, name)}: the ranks' tensors are quantized with "
                "different scales or zero points; pass tensor.dequantize()")
        scale, zero = tensor.q_scale(), tensor.q_zero_point()
        if scales.shape[0] > 0:
            scale = scales[0, :8].clone().view(torch.float64).item()
            zero = scales[0, 8:].clone().view(torch.int64).item()
        whole = received[:, :width].contiguous().reshape(-1).view(integers)
        whole = whole.reshape(shape if kind == "broadcast" else
                              (received.shape[0],) + shape[1:])
        return torch._make_per_tensor_quantized_tensor(whole, scale, zero)

    return Carrier(carrier, False, result)


def _row_bytes(tensor: torch.Tensor) -> int:
    length = tensor.element_size()
    for size in tensor.shape[1:]:
        length *= size
    return length


def _scale_as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    scale = torch.tensor([tensor.q_scale()], dtype=torch.float64, device="cpu")
    zero = torch.tensor([tensor.q_zero_point()], dtype=torch.int64, device="cpu")
    return torch.cat((scale.view(torch.uint8), zero.view(torch.uint8))).to(
        tensor.device)
