"""Says which tensors can be submitted, and where they are.

This is the only module that uses torch.cuda.

Thread contract: any thread. The current stream is that of the calling thread.
"""

import sys
import weakref
from typing import Any, Optional

import torch

from maypole import _native
from maypole.common.collectives import check_name, title

# torch has had uint16 since 2.3.
DTYPES: dict[torch.dtype, int] = {
    getattr(torch, name): number for name, number in _native.DTYPES.items() if hasattr(torch, name)}


def dtype_code(tensor: torch.Tensor, kind: str, name: Optional[str]) -> int:
    """Checks that `tensor` can be submitted; returns its maypole_dtype.

    Raises NotImplementedError (neither in host memory nor on a CUDA device) or
    ValueError (dtype, layout, dimensions); the text names the tensor.
    """
    code = DTYPES.get(tensor.dtype)
    if (code is None or has_no_memory(tensor) or tensor.layout is not torch.strided
            or not (tensor.is_cpu or tensor.is_cuda)
            or tensor.dim() > _native.MAX_DIMS):
        raise _refusal(tensor, kind, name)
    return code


_ORDINARY = frozenset((torch.Tensor, torch.nn.Parameter))


def has_no_memory(tensor: torch.Tensor) -> bool:
    """Whether the class of `tensor` implements its operations itself, as DTensor does.

    Its data are then in other tensors, or nowhere.
    """
    return (type(tensor) not in _ORDINARY and
            type(tensor).__torch_dispatch__ != torch.Tensor.__torch_dispatch__)


def _refusal(tensor: torch.Tensor, kind: str,
             name: Optional[str]) -> Exception:
    what = title(kind, name)
    if has_no_memory(tensor):
        return ValueError(
            f"{what}: it is a {type(tensor).__name__}, which has no memory of "
            "its own; pass the tensor in it (of a DTensor: to_local())")
    if not (tensor.is_cpu or tensor.is_cuda):
        return NotImplementedError(
            f"{what}: it is on {tensor.device}, but only CPU and CUDA tensors "
            "are supported; pass tensor.cpu()")
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


def note_change(tensor: torch.Tensor) -> None:
    """Tells autograd that the values of `tensor` change."""
    if tensor.is_inference() or tensor.is_quantized:
        return  # autograd does not follow them
    if hasattr(torch.autograd.graph, "increment_version"):  # torch 2.1
        torch.autograd.graph.increment_version(tensor)
        return
    with torch.no_grad():
        # Changes no element, but the version, which the tensor's views share.
        same = tensor.detach()
        (same.view(1) if same.dim() == 0 else same).narrow(0, 0, 0).zero_()


# --- Streams ------------------------------------------------------------------


def stream_of(tensor: torch.Tensor) -> Optional[int]:
    """Returns the current stream of a CUDA tensor's device; None for a tensor in host memory.

    A cudaStream_t; 0: the legacy default stream.
    """
    if not tensor.is_cuda:
        return None
    return torch.cuda.current_stream(tensor.device).cuda_stream


def wait_for_stream(tensor: torch.Tensor, other: int) -> None:
    """Makes the current stream of a CUDA tensor's device wait for the work that is now on the stream `other`."""
    device = tensor.device
    torch.cuda.current_stream(device).wait_stream(
        torch.cuda.ExternalStream(other, device=device)
        if other else torch.cuda.default_stream(device))


def bring_to_current_stream(tensor: torch.Tensor, last: int) -> None:
    """Prepares a CUDA tensor, last used on the stream `last`, for a use on the current stream.

    The current stream waits for `last`. Neither torch nor GpuMemory gives the tensor's memory to others before
    the current stream is done with it.
    """
    wait_for_stream(tensor, last)
    current = torch.cuda.current_stream(tensor.device)
    tensor.record_stream(current)  # no effect on memory that is not torch's
    address = tensor.data_ptr()
    for memory in list(_gpu_memories.values()):
        if memory.address <= address < memory.address + memory.size:
            memory.streams.add(current.cuda_stream)


# --- Memory that torch has not allocated --------------------------------------


class GpuMemory:
    """`size` bytes of a CUDA device from which torch makes a tensor.

    The storage of tensor() keeps this object alive. streams: those that may use
    the memory: the one on which the tensor was made, as for torch's own
    tensors, and those to which bring_to_current_stream() has brought it.
    """

    def __init__(self, address: int, size: int, device: torch.device):
        self.address = address
        self.size = size
        self.streams: set[int] = set()
        self._device = device
        self.__cuda_array_interface__ = {
            "shape": (size,),
            "typestr": "|u1",
            "data": (address, False),
            "strides": None,
            "stream": None,  # no work is pending
            "version": 3,
        }

    def tensor(self, dtype: torch.dtype) -> torch.Tensor:
        """A flat tensor on the memory."""
        self.streams.add(_current_stream(self._device))
        _gpu_memories[self.address] = self
        # As bytes first: not every dtype has a type string (bfloat16).
        return torch.as_tensor(self, device=self._device).view(dtype)


def ordinal_of(device: torch.device) -> int:
    """The number of a CUDA device in this process."""
    return torch.cuda.current_device() if device.index is None else device.index


def _current_stream(device: torch.device) -> int:
    return torch.cuda.current_stream(device).cuda_stream


def streams_at_the_end(streams: set[int], device: torch.device) -> list[int]:
    """Returns the streams that may still use a GpuMemory whose tensors are gone: its own and the current one."""
    return sorted(streams | {_current_stream(device)})


# By address.
_gpu_memories: "weakref.WeakValueDictionary[int, GpuMemory]" = (
    weakref.WeakValueDictionary())


# --- Arrays of other libraries ------------------------------------------------


def shares_memory(value: Any) -> bool:
    """Whether as_tensor() accepts objects like `value` (errors may follow from its dtype or strides)."""
    return (isinstance(value, torch.Tensor) or _is_numpy(value)
            or hasattr(value, "__dlpack__")
            or hasattr(value, "__cuda_array_interface__"))


def as_tensor(value: Any, kind: str, name: Optional[str]) -> torch.Tensor:
    """Returns `value`, or, if it is an array of another library, a tensor that shares its memory.

    Accepted are NumPy arrays and all objects with __dlpack__ or
    __cuda_array_interface__ (CuPy, Numba, JAX, ...). The current stream waits for the array's pending
    work, if the array's library reports it. Raises TypeError (not an array) or ValueError (its memory
    cannot be shared: it is read-only, has negative strides or a dtype that torch lacks); the text names
    the tensor.
    """
    check_name(kind, name)
    if isinstance(value, torch.Tensor):
        return value
    if not shares_memory(value):
        raise TypeError(
            f"{title(kind, name)}: expected a torch.Tensor or an array with "
            f"__dlpack__, got {type(value).__name__}")
    try:
        return _shared(value)
    except Exception as error:
        # The protocols run code of other libraries, which may raise anything.
        raise ValueError(
            f"{title(kind, name)}: torch cannot share the memory of this "
            f"{type(value).__name__}: {error}") from error


def _is_numpy(value: Any) -> bool:
    # A program without NumPy has no NumPy arrays; torch does not require it.
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.ndarray)


def _shared(value: Any) -> torch.Tensor:
    # With negative strides, torch.from_dlpack of some versions crashes the process.
    if any(stride < 0 for stride in getattr(value, "strides", None) or ()):
        raise ValueError("it has negative strides; pass a copy")
    if _is_numpy(value):
        # Not by DLPack, with which NumPy does not export bool.
        if not value.flags.writeable:
            raise ValueError("it is read-only; pass a copy")
        return torch.from_numpy(value)
    if hasattr(value, "__dlpack__"):
        return torch.from_dlpack(value)
    return _from_cuda_array_interface(value)


def _from_cuda_array_interface(value: Any) -> torch.Tensor:
    interface = value.__cuda_array_interface__
    # Without a device torch would copy to its default device, which may be the
    # CPU; "cuda" is the current CUDA device.
    tensor = torch.as_tensor(value, device="cuda")
    if tensor.numel() > 0 and tensor.data_ptr() != interface["data"][0]:
        raise ValueError("it is not on torch's current CUDA device, "
                         f"{tensor.device}; use torch.cuda.set_device()")
    # torch ignores the stream of the array's pending work; None: there is no
    # such work.
    stream = interface.get("stream")
    if stream is not None:
        current = torch.cuda.current_stream(tensor.device)
        current.wait_stream(
            torch.cuda.ExternalStream(stream, device=tensor.device))
    return tensor
