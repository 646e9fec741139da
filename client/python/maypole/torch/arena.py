"""Tensors in memory that the ranks of a node share: reduced without copies.

    weights = maypole.torch.empty(1000, 1000)
    hvd.allreduce_(weights, name="w")   # in place: no copies

An allreduce in place on such a tensor, or on a contiguous part of it that
begins at a multiple of 64 bytes, reads every rank's tensor in place and writes
the result there. In every other respect it is an ordinary tensor: each rank has
its own, and no other rank sees what it writes.

The memory is freed when the last tensor, view or storage that uses it is gone,
which may be after shutdown(). If the arena is full, the tensor is in ordinary
memory; this is counted in arena_statistics(), and the first time is a warning.

The arena is host memory. A tensor on a CUDA device is an ordinary one, which is
counted, too, but without a warning.

Thread contract: any thread may call any function.
"""

import ctypes
import threading
import warnings
import weakref
from typing import Any, Dict, Optional

import torch

from maypole import _native
from maypole.common.exceptions import forked, from_status, not_initialized

# address -> bytes of allocations that are not freed. A finalizer may run inside
# any allocation, so this is changed by single dict operations, without a lock.
_live: Dict[int, int] = {}

_fallbacks: Dict[str, int] = {}
_fallbacks_lock = threading.Lock()


def empty(*size: Any,
          dtype: Optional[torch.dtype] = None,
          device: Any = None,
          requires_grad: bool = False) -> torch.Tensor:
    """torch.empty() in the arena; the tensor is contiguous.

    size: numbers, or one sequence of numbers. dtype: None for torch's default.
    device: None or the CPU for the arena. A CUDA device gives an ordinary
    tensor, which the ranks do not share yet. Other devices raise
    NotImplementedError.
    Raises ValueError outside a job (before init() or in a forked child).
    """
    device = torch.device("cpu" if device is None else device)
    if device.type not in ("cpu", "cuda"):
        raise NotImplementedError(
            f"maypole.torch.empty(device={str(device)!r}): only the CPU and "
            "CUDA devices are supported")
    # torch checks size and dtype, and raises its own errors.
    plan = torch.empty(*size, dtype=dtype, device="meta")
    tensor = _in_arena(plan.numel(), plan.dtype, device)
    if tensor is None:
        tensor = torch.empty(plan.shape, dtype=plan.dtype, device=device)
    return tensor.view(plan.shape).requires_grad_(requires_grad)


def empty_like(tensor: torch.Tensor,
               dtype: Optional[torch.dtype] = None,
               requires_grad: bool = False) -> torch.Tensor:
    """empty() with the shape, device and (unless given) dtype of `tensor`.

    The result is contiguous even if `tensor` is not. Raises NotImplementedError
    if `tensor` is neither on the CPU nor on a CUDA device.
    """
    return empty(tensor.shape, dtype=dtype or tensor.dtype,
                 device=tensor.device, requires_grad=requires_grad)


def zeros_flat(count: int, dtype: torch.dtype,
               device: torch.device) -> torch.Tensor:
    """`count` zeros in the arena, or in ordinary memory of the device when the
    arena is full or the device is not the CPU."""
    tensor = _in_arena(count, dtype, device)
    if tensor is None:
        tensor = torch.zeros(count, dtype=dtype, device=device)
    return tensor


def arena_statistics() -> Dict[str, Any]:
    """What this process has in the arena, and how often it had to fall back.

    bytes, tensors: total size and number of the live tensors of empty(),
    empty_like() and gradient buckets. fallbacks: counts by reason:
      arena_full: an allocation was made in ordinary memory;
      no_gpu_arena: an allocation was made on a CUDA device, where there is no
        arena;
      gradient_replaced: a gradient was found outside of its bucket (for example
        after model.zero_grad(set_to_none=True)) and copied into it.
    """
    with _fallbacks_lock:
        fallbacks = dict(_fallbacks)
    live = list(_live.values())
    return {"bytes": sum(live), "tensors": len(live), "fallbacks": fallbacks}


def note_fallback(reason: str, advice: str) -> None:
    """Counts a fallback; warns at the first one with this reason."""
    if _count_fallback(reason) == 1:
        warnings.warn(f"{advice} (this warning appears once; see "
                      "maypole.torch.arena_statistics())", stacklevel=3)


def _count_fallback(reason: str) -> int:
    """Returns how many there were with this reason."""
    with _fallbacks_lock:
        count = _fallbacks.get(reason, 0) + 1
        _fallbacks[reason] = count
    return count


def _in_arena(count: int, dtype: torch.dtype,
              device: torch.device) -> Optional[torch.Tensor]:
    """A flat, zeroed tensor; None, and counted, when the arena is full or the
    device has none."""
    nothing = torch.empty(0, dtype=dtype, device="cpu")
    size = count * nothing.element_size()
    library = _native.library()
    if device.type != "cpu" or size == 0:
        if not library.is_initialized():
            raise ValueError(not_initialized())
        if device.type == "cpu":
            return nothing
        _count_fallback("no_gpu_arena")
        return None
    try:
        address = library.allocate(size)
    except _native.StatusError as error:
        if not library.is_initialized():
            raise ValueError(not_initialized()) from None
        if error.code != _native.RESOURCE_EXHAUSTED:
            raise from_status(error.code, str(error)) from None
        note_fallback(
            "arena_full",
            f"a tensor of {size} bytes is in ordinary memory, so that its "
            f"allreduce makes copies: {error}")
        return None
    _live[address] = size
    memory = (ctypes.c_ubyte * size).from_address(address)
    # The tensor's storage holds `memory`.
    free = weakref.finalize(memory, _free, library, address)
    # At exit tensors may still be used; the memory ends with the process.
    free.atexit = False
    return torch.frombuffer(memory, dtype=dtype)


def _free(library: Any, address: int) -> None:
    if forked():
        return  # the memory is the rank's, not this child's
    _live.pop(address, None)
    library.free(address)
