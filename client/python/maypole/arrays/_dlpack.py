"""NumPy arrays on the memory of other libraries' arrays (DLPack).

It does not use numpy.from_dlpack, which lacks bfloat16 and whose arrays are
read-only in some versions. The structures are those of DLPack's dlpack.h
(https://dmlc.github.io/dlpack/latest/c_api.html).

Thread contract: any thread. The array that view() returns keeps the memory
alive.
"""

import ctypes
import sys
from typing import Any

import numpy as np

# Memory that the CPU can use: kDLCPU, kDLCUDAHost, kDLROCMHost.
_HOST_DEVICES = (1, 3, 11)

# (DLDataTypeCode, bits) of NumPy's own dtypes.
_DTYPES: dict[tuple[int, int], str] = {
    **{(0, bits): f"int{bits}" for bits in (8, 16, 32, 64)},
    **{(1, bits): f"uint{bits}" for bits in (8, 16, 32, 64)},
    **{(2, bits): f"float{bits}" for bits in (16, 32, 64)},
    (6, 8): "bool",
}
_BFLOAT16 = (4, 16)

_READ_ONLY = 1  # DLPACK_FLAG_BITMASK_READ_ONLY


class _Tensor(ctypes.Structure):
    """DLTensor; strides count elements, and may be null if the tensor is contiguous."""

    _fields_ = [("data", ctypes.c_void_p), ("device_type", ctypes.c_int32),
                ("device_id", ctypes.c_int32), ("ndim", ctypes.c_int32),
                ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8),
                ("lanes", ctypes.c_uint16),
                ("shape", ctypes.POINTER(ctypes.c_int64)),
                ("strides", ctypes.POINTER(ctypes.c_int64)),
                ("byte_offset", ctypes.c_uint64)]


class _Versioned(ctypes.Structure):
    """DLManagedTensorVersioned; before version 1 the tensor came first."""

    _fields_ = [("major", ctypes.c_uint32), ("minor", ctypes.c_uint32),
                ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p),
                ("flags", ctypes.c_uint64), ("tensor", _Tensor)]


_pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
_pointer_of.restype, _pointer_of.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
_is_capsule = ctypes.pythonapi.PyCapsule_IsValid
_is_capsule.restype, _is_capsule.argtypes = ctypes.c_int, [ctypes.py_object, ctypes.c_char_p]


def view(value: Any) -> np.ndarray:
    """Returns a NumPy array on the memory of `value`, which has __dlpack__.

    It is read-only if the array's library says so, and for JAX. Raises ValueError if the
    memory is not the host's or has a layout or dtype that NumPy lacks; passes on what the
    array's library raises.
    """
    device, number = value.__dlpack_device__()
    if int(device) not in _HOST_DEVICES:
        raise ValueError(f"it is on device {int(device)}:{number} (a GPU, say), "
                         "not in host memory; pass a copy that is, or use "
                         "maypole.torch, which takes arrays on CUDA devices")
    # The capsule is not consumed, so it owns the memory as long as it lives.
    capsule = _capsule_of(value)
    if _is_capsule(capsule, b"dltensor_versioned"):
        versioned = _Versioned.from_address(_pointer_of(capsule, b"dltensor_versioned"))
        if versioned.major != 1:
            raise ValueError(f"its DLPack version is {versioned.major}, expected 1")
        tensor, read_only = versioned.tensor, bool(versioned.flags & _READ_ONLY)
    else:
        tensor, read_only = _Tensor.from_address(_pointer_of(capsule, b"dltensor")), False
    array = _array_of(tensor, capsule)
    if read_only or _is_jax(value):
        array.flags.writeable = False
    return array


def _is_jax(value: Any) -> bool:
    """Whether it is one of JAX's arrays, which are immutable, but are not marked so in DLPack."""
    jax = sys.modules.get("jax")
    return jax is not None and isinstance(value, getattr(jax, "Array", ()))


def _capsule_of(value: Any) -> Any:
    try:
        return value.__dlpack__(max_version=(1, 0))
    except TypeError:  # a library that does not know versions
        return value.__dlpack__()


def _array_of(tensor: _Tensor, owner: Any) -> np.ndarray:
    dtype = _dtype_of(tensor)
    shape = tuple(tensor.shape[:tensor.ndim])
    if 0 in shape:
        return np.empty(shape, dtype)
    strides = None
    count = int(np.prod(shape, dtype=np.int64))
    if tensor.strides:
        strides = tuple(n * dtype.itemsize for n in tensor.strides[:tensor.ndim])
        if any(stride < 0 for stride in strides):
            raise ValueError("it has negative strides; pass a copy")
        count = 1 + sum((length - 1) * stride for length, stride in zip(
            shape, tensor.strides[:tensor.ndim]))
    memory = (ctypes.c_ubyte * (count * dtype.itemsize)).from_address(
        tensor.data + tensor.byte_offset)
    memory.owner = owner
    return np.ndarray(shape, dtype, buffer=memory, strides=strides)


def _dtype_of(tensor: _Tensor) -> np.dtype:
    kind = (tensor.code, tensor.bits)
    if kind == _BFLOAT16 and tensor.lanes == 1:
        try:
            import ml_dtypes
        except ImportError:
            raise ValueError("its dtype is bfloat16, which NumPy has only with "
                             "the package ml_dtypes; install it") from None
        return np.dtype(ml_dtypes.bfloat16)
    if kind not in _DTYPES or tensor.lanes != 1:
        raise ValueError(f"NumPy has no dtype for its elements (DLPack code {tensor.code}, "
                         f"{tensor.bits} bits, {tensor.lanes} lanes)")
    return np.dtype(_DTYPES[kind])
