"""Tensors in memory that the ranks of a node share: reduced without copies.

    weights = maypole.torch.empty(1000, 1000)
    hvd.allreduce_(weights, name="w")   # in place: nobody copies

An allreduce in place on such a tensor, or on a contiguous part of it that
begins at a multiple of 64 bytes, reads every rank's tensor where it lies and
writes the result there. Everything else with it is as with any other tensor:
each rank's is its own, and what one rank writes no other rank sees.

The memory is given back when the last tensor, view or storage on it is gone,
which may be after shutdown(). Where the arena is full, memory is ordinary: one
warning, and counted in arena_statistics().

Thread contract: any function, any thread.
"""

import ctypes
import threading
import warnings
import weakref
from typing import Any, Dict, Optional

import torch

from maypole import _native
from maypole.common.exceptions import forked, from_status, not_initialized

# address -> bytes of what has not been given back. A finalizer may run inside
# any allocation, so this is changed by single dict operations, with no lock.
_live: Dict[int, int] = {}

_fallbacks: Dict[str, int] = {}
_fallbacks_lock = threading.Lock()


def empty(*size: Any,
          dtype: Optional[torch.dtype] = None,
          device: Any = None,
          requires_grad: bool = False) -> torch.Tensor:
    """torch.empty() in the arena; the tensor is contiguous.

    size: numbers, or one sequence of them. dtype: None for torch's default.
    device: None or the CPU; others raise NotImplementedError.
    Raises ValueError outside a job (before init(), in a forked child).
    """
    if device is not None and torch.device(device).type != "cpu":
        raise NotImplementedError(
            f"maypole.torch.empty(device={str(device)!r}): the arena is host "
            "memory; leave device out")
    # torch's own checks of size and dtype, with its own texts.
    plan = torch.empty(*size, dtype=dtype, device="meta")
    tensor = _in_arena(plan.numel(), plan.dtype)
    if tensor is None:
        tensor = torch.empty(plan.shape, dtype=plan.dtype)
    return tensor.view(plan.shape).requires_grad_(requires_grad)


def empty_like(tensor: torch.Tensor,
               dtype: Optional[torch.dtype] = None,
               requires_grad: bool = False) -> torch.Tensor:
    """empty() with the shape and (unless given) dtype of `tensor`.

    Contiguous also where `tensor` is not. NotImplementedError for a tensor
    that is not on the CPU.
    """
    return empty(tensor.shape, dtype=dtype or tensor.dtype,
                 device=tensor.device, requires_grad=requires_grad)


def zeros_flat(count: int, dtype: torch.dtype) -> torch.Tensor:
    """`count` zeros in the arena, or in ordinary memory when it is full."""
    tensor = _in_arena(count, dtype)
    return torch.zeros(count, dtype=dtype) if tensor is None else tensor


def arena_statistics() -> Dict[str, Any]:
    """What this process has in the arena, and how often it could not.

    bytes, tensors: of empty(), empty_like() and gradient buckets that still
    live. fallbacks: by reason:
      arena_full: an allocation that became ordinary memory;
      gradient_replaced: a gradient that was found outside of its bucket (after
        model.zero_grad(set_to_none=True), for one) and copied into it.
    """
    with _fallbacks_lock:
        fallbacks = dict(_fallbacks)
    live = list(_live.values())
    return {"bytes": sum(live), "tensors": len(live), "fallbacks": fallbacks}


def note_fallback(reason: str, advice: str) -> None:
    """Counts it; warns at the first one of this reason in the process."""
    with _fallbacks_lock:
        count = _fallbacks.get(reason, 0) + 1
        _fallbacks[reason] = count
    if count == 1:
        warnings.warn(f"{advice} (said once; see "
                      "maypole.torch.arena_statistics())", stacklevel=3)


def _in_arena(count: int, dtype: torch.dtype) -> Optional[torch.Tensor]:
    """A flat, zeroed tensor; None when the arena is full."""
    size = count * torch.empty(0, dtype=dtype).element_size()
    library = _native.library()
    if size == 0:
        if not library.is_initialized():
            raise ValueError(not_initialized())
        return torch.empty(0, dtype=dtype)
    try:
        address = library.allocate(size)
    except _native.StatusError as error:
        if not library.is_initialized():
            raise ValueError(not_initialized()) from None
        if error.code != _native.RESOURCE_EXHAUSTED:
            raise from_status(error.code, str(error)) from None
        note_fallback(
            "arena_full",
            f"a tensor of {size} bytes is in ordinary memory, and its "
            f"allreduce copies: {error}")
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
        return  # the rank's, not this child's
    _live.pop(address, None)
    library.free(address)
