"""Which tensors can be submitted: dtype, layout, device and dimensions.

Thread contract: pure functions.
"""

from typing import Dict, Optional

import torch

from maypole import _native

DTYPES: Dict[torch.dtype, int] = {
    torch.uint8: _native.UINT8,
    torch.int8: _native.INT8,
    torch.int16: _native.INT16,
    torch.int32: _native.INT32,
    torch.int64: _native.INT64,
    torch.float16: _native.FLOAT16,
    torch.bfloat16: _native.BFLOAT16,
    torch.float32: _native.FLOAT32,
    torch.float64: _native.FLOAT64,
    torch.bool: _native.BOOL,
}
if hasattr(torch, "uint16"):  # torch 2.3 and newer
    DTYPES[torch.uint16] = _native.UINT16


def dtype_code(tensor: torch.Tensor, kind: str, name: Optional[str]) -> int:
    """Checks that `tensor` can be submitted; returns its maypole_dtype.

    Raises TypeError (not a tensor), NotImplementedError (not in host memory) or
    ValueError (dtype, layout, dimensions); the text names the tensor.
    """
    code = None
    if isinstance(tensor, torch.Tensor):
        code = DTYPES.get(tensor.dtype)
    if (code is None or tensor.layout is not torch.strided
            or not tensor.is_cpu
            or tensor.dim() > _native.MAX_DIMS):
        raise _refusal(tensor, kind, name)
    return code


def title(kind: str, name: Optional[str]) -> str:
    """What errors call an operation that was not submitted."""
    return f"{kind} of " + (f"tensor {name!r}" if name else "an unnamed tensor")


def _refusal(tensor: torch.Tensor, kind: str,
             name: Optional[str]) -> Exception:
    what = title(kind, name)
    if not isinstance(tensor, torch.Tensor):
        return TypeError(f"{what}: expected a torch.Tensor, got "
                         f"{type(tensor).__name__}")
    if tensor.device.type != "cpu":
        return NotImplementedError(
            f"{what}: it is on {tensor.device}, but this version of Maypole "
            "supports only CPU tensors; pass tensor.cpu()")
    if tensor.layout is not torch.strided:
        return ValueError(
            f"{what}: its layout is {tensor.layout}, expected torch.strided; "
            "pass tensor.to_dense() or use sparse_allreduce_async")
    if tensor.dim() > _native.MAX_DIMS:
        return ValueError(f"{what}: it has {tensor.dim()} dimensions, but at "
                          f"most {_native.MAX_DIMS} are supported; reshape it")
    names = ", ".join(str(dtype).replace("torch.", "") for dtype in DTYPES)
    return ValueError(f"{what}: dtype {tensor.dtype} is not supported; "
                      f"supported are {names}")
