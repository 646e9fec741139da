"""Tensors in memory that the ranks of a node share: reduced without copies.

    weights = maypole.torch.empty(1000, 1000)
    hvd.allreduce_(weights, name="w")   # in place: no copies

An allreduce in place on such a tensor, or on a contiguous part of it that
begins at a multiple of 64 bytes, reads every rank's tensor in place and writes
the result there. In every other respect it is an ordinary tensor: each rank has
its own, and no rank sees what another one writes to its tensor.

The memory is freed with the last tensor, view or storage that uses it, which may
be after shutdown(). If the arena is full, the tensor is in ordinary memory;
arena_statistics() counts this, and the first time causes a warning.

On a CUDA device (device="cuda") the memory is shared with the node's executor,
and an allreduce in place that the executor runs on that GPU makes no copies; a
part must begin at a multiple of 256 bytes. If there is no room, or memory cannot
be shared, the tensor is an ordinary one; this is counted as well, but without a
warning. As with torch's own tensors, the memory is reused only after the work
that two streams have when the tensor is freed: the stream that was current at
the allocation, and the one that is current then. If another stream uses the
tensor, one of these two must wait for it (record_stream() has no effect). A
stream that is not torch's must exist as long as the tensor. A tensor that a CUDA
graph uses must live as long as the graph.

Thread contract: any thread may call any function.
"""

import ctypes
import threading
import warnings
import weakref
from typing import Any, Callable, Optional

import torch

from maypole import _native
from maypole.common.exceptions import forked, from_status, not_initialized
from maypole.torch import _tensors
from maypole.torch._compiling import not_compiled

# address -> bytes of live allocations. A finalizer may run inside any
# allocation, so this is changed by single dict operations, without a lock.
_live: dict[int, int] = {}

_fallbacks: dict[str, int] = {}
_fallbacks_lock = threading.Lock()


@not_compiled
def empty(*size: Any,
          dtype: Optional[torch.dtype] = None,
          device: Any = None,
          requires_grad: bool = False) -> torch.Tensor:
    """torch.empty() in the arena; the tensor is contiguous.

    Args:
        dtype: None for torch's default.
        device: None or the CPU for the arena, where the tensor is zeroed, or a CUDA device, where it is not.
            Other devices raise NotImplementedError.
        requires_grad: as for torch.empty.
        *size: numbers, or one sequence of numbers.

    Raises:
        ValueError: outside a job (before init() or in a forked child).
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


@not_compiled
def empty_like(tensor: torch.Tensor,
               dtype: Optional[torch.dtype] = None,
               requires_grad: bool = False) -> torch.Tensor:
    """empty() with the shape, device and (unless given) dtype of `tensor`.

    Args:
        tensor: any shape and dtype.
        dtype: None: as `tensor`.
        requires_grad: as for torch.empty.

    Returns:
        The result is contiguous even if `tensor` is not.

    Raises:
        NotImplementedError: `tensor` is neither on the CPU nor on a CUDA device.
    """
    return empty(tensor.shape, dtype=dtype or tensor.dtype,
                 device=tensor.device, requires_grad=requires_grad)


def zeros_flat(count: int, dtype: torch.dtype,
               device: torch.device) -> torch.Tensor:
    """Returns `count` zeros in the arena or in shared memory of a CUDA device.

    They are in ordinary memory if there is no room, and on other devices.
    """
    tensor = _in_arena(count, dtype, device)
    if tensor is None:
        return torch.zeros(count, dtype=dtype, device=device)
    return tensor.zero_() if device.type == "cuda" else tensor


def arena_statistics() -> dict[str, Any]:
    """Returns what this process has in the arena, and how often it had to fall back.

    bytes, tensors: total size and number of the live tensors of empty(),
    empty_like() and gradient buckets. fallbacks: counts by reason:
      arena_full: an allocation was made in ordinary memory;
      no_gpu_arena: an allocation on a CUDA device was made in ordinary memory:
        there was no room, or the device's memory cannot be shared;
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
    """Counts a fallback; returns the number of those with this reason."""
    with _fallbacks_lock:
        count = _fallbacks.get(reason, 0) + 1
        _fallbacks[reason] = count
    return count


def _in_arena(count: int, dtype: torch.dtype,
              device: torch.device) -> Optional[torch.Tensor]:
    """A flat tensor, zeroed on the CPU; None, which is counted, if there is no room or no such memory on the device."""
    nothing = torch.empty(0, dtype=dtype, device="cpu")
    size = count * nothing.element_size()
    library = _native.library()
    if size == 0 or device.type not in ("cpu", "cuda"):
        if not library.is_initialized():
            raise ValueError(not_initialized())
        if device.type == "cpu":
            return nothing
        if size > 0:
            _count_fallback("no_gpu_arena")
        return None
    try:
        if device.type == "cuda":
            return _on_gpu(library, size, dtype, device)
        return _on_cpu(library, size, dtype)
    except _native.StatusError as error:
        if not library.is_initialized():
            raise ValueError(not_initialized()) from None
        if error.code != _native.RESOURCE_EXHAUSTED:
            raise from_status(error.code, str(error)) from None
        if device.type == "cuda":
            _count_fallback("no_gpu_arena")
        else:
            note_fallback(
                "arena_full",
                f"a tensor of {size} bytes is in ordinary memory, so that its "
                f"allreduce makes copies: {error}")
        return None


def _on_cpu(library: Any, size: int, dtype: torch.dtype) -> torch.Tensor:
    address = library.allocate(size)
    memory = (ctypes.c_ubyte * size).from_address(address)
    # The tensor's storage keeps `memory` alive.
    _free_with(memory, address, size, library.free, address)
    return torch.frombuffer(memory, dtype=dtype)


def _on_gpu(library: Any, size: int, dtype: torch.dtype,
            device: torch.device) -> Optional[torch.Tensor]:
    if not library.is_initialized():
        raise ValueError(not_initialized())  # before the device is touched
    ordinal = _tensors.ordinal_of(device)
    device = torch.device("cuda", ordinal)
    address = library.allocate_on_gpu(size, ordinal)
    memory = _tensors.GpuMemory(address, size, device)
    # The tensor's storage holds `memory`.
    _free_with(memory, address, size, _free_on_gpu, library, address,
               memory.streams, device)
    try:
        return memory.tensor(dtype)
    except (TypeError, RuntimeError) as error:  # torch without NumPy
        note_fallback(
            "no_gpu_arena",
            f"a tensor of {size} bytes is in ordinary memory, because torch "
            f"cannot use memory that is not its own: {error}")
        return None


def _free_with(memory: Any, address: int, size: int, free: Callable[..., Any],
               *args: Any) -> None:
    """Calls free(*args) when `memory` is gone."""
    _live[address] = size
    finalizer = weakref.finalize(memory, _free, address, free, *args)
    # Not at exit, when tensors may still be used; the memory ends with the process.
    finalizer.atexit = False


def _free(address: int, free: Callable[..., Any], *args: Any) -> None:
    if forked():
        return  # the memory is the rank's, not this child's
    _live.pop(address, None)
    free(*args)


def _free_on_gpu(library: Any, address: int, streams: set[int],
                 device: torch.device) -> None:
    library.free_on_gpu(address, _tensors.streams_at_the_end(streams, device))
