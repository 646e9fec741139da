"""What may be submitted: dtypes, and a tensor's memory as the library sees it.

Thread contract: pure functions.
"""

from typing import Callable, Dict, Optional

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

# The others only travel: they are gathered and broadcast, not reduced.
REDUCIBLE: Dict[torch.dtype, int] = {
    dtype: code
    for dtype, code in DTYPES.items()
    if dtype not in (torch.int8, torch.int16, torch.bool)
}


def dtype_code(tensor: torch.Tensor, kind: str, name: Optional[str],
               supported: Dict[torch.dtype, int]) -> int:
    """Checks that `tensor` can be submitted; returns its maypole_dtype.

    Raises TypeError (no tensor), NotImplementedError (not in host memory) and
    ValueError (dtype, layout, dimensions), each naming the tensor.
    """
    code = None
    if isinstance(tensor, torch.Tensor):
        code = supported.get(tensor.dtype)
    if (code is None or tensor.layout is not torch.strided
            or not tensor.is_cpu
            or tensor.dim() > _native.MAX_DIMS):
        raise _refusal(tensor, kind, name, supported)
    return code


def _refusal(tensor: torch.Tensor, kind: str, name: Optional[str],
             supported: Dict[torch.dtype, int]) -> Exception:
    what = f"{kind} of " + (f"tensor {name!r}" if name else "an unnamed tensor")
    if not isinstance(tensor, torch.Tensor):
        return TypeError(f"{what}: expected a torch.Tensor, got "
                         f"{type(tensor).__name__}")
    if tensor.device.type != "cpu":
        return NotImplementedError(
            f"{what}: it is on {tensor.device}; this version of Maypole moves "
            "CPU tensors only, pass tensor.cpu()")
    if tensor.layout is not torch.strided:
        return ValueError(
            f"{what}: its layout is {tensor.layout}, expected torch.strided; "
            "pass tensor.to_dense() or use sparse_allreduce_async")
    if tensor.dim() > _native.MAX_DIMS:
        return ValueError(f"{what}: it has {tensor.dim()} dimensions, at most "
                          f"{_native.MAX_DIMS} are supported; reshape it")
    names = ", ".join(str(dtype).replace("torch.", "") for dtype in supported)
    return ValueError(f"{what}: dtype {tensor.dtype} is not supported; "
                      f"supported are {names}")


def copy_back(target: torch.Tensor,
              work: torch.Tensor) -> Callable[[int], torch.Tensor]:
    """A `finish` that brings `work` into the non-contiguous `target`."""

    def finish(_: int) -> torch.Tensor:
        with torch.no_grad():
            target.copy_(work)
        return target

    return finish
