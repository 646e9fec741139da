"""Arrays in the memory of a CUDA device, for rank programs without a framework.

    gpu = Gpu()                        # device 0, its primary context
    array = gpu.array(numpy.ones(8, numpy.float32))
    work = allreduce(array, "x", gpu.stream)
    work.wait()                        # array holds the result
    array.read()

Everything runs on one stream of the program. It calls the functions of libcuda.so.1
as a framework would, and shares memory with Maypole by address only.
"""

import copy
import ctypes

import numpy

from maypole import _native
from maypole.common import basics, exceptions, operations

DTYPES = {
    "float32": _native.FLOAT32,
    "float64": _native.FLOAT64,
    "int32": _native.INT32,
    "int16": _native.INT16,
    "uint8": _native.UINT8
}
NON_BLOCKING = 1


class Gpu:

    def __init__(self, ordinal=0):
        self.ordinal = ordinal
        self.cuda = ctypes.CDLL("libcuda.so.1")
        self.check("cuInit", 0)
        device = ctypes.c_int()
        self.check("cuDeviceGet", ctypes.byref(device), ordinal)
        self.context = ctypes.c_void_p()
        self.check("cuDevicePrimaryCtxRetain", ctypes.byref(self.context), device)
        self.check("cuCtxSetCurrent", self.context)
        self.stream = self.new_stream()

    def check(self, name, *args):
        result = getattr(self.cuda, name)(*args)
        if result != 0:
            raise RuntimeError("%s: %d" % (name, result))

    def new_stream(self):
        stream = ctypes.c_void_p()
        self.check("cuStreamCreate", ctypes.byref(stream), NON_BLOCKING)
        return stream

    def synchronize(self):
        self.check("cuStreamSynchronize", self.stream)

    def free_bytes(self):
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self.check("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return free.value

    def array(self, values):
        return Array(self, values)

    def shared_array(self, values):
        """In memory that the executor maps, too; see Array.free_shared()."""
        return Array(self, values, _native.library().allocate_on_gpu(values.nbytes, self.ordinal))


class Array:

    def __init__(self, gpu, values, address=None):
        self.gpu = gpu
        self.shape = values.shape
        self.dtype = values.dtype
        self.bytes = values.nbytes
        if address is None:
            allocated = ctypes.c_uint64()
            gpu.check("cuMemAlloc_v2", ctypes.byref(allocated), ctypes.c_size_t(max(1, self.bytes)))
            address = allocated.value
        self.address = address
        self._kept = None
        self.write(values)

    def write(self, values):
        """Enqueues the copy to the device."""
        self._kept = numpy.ascontiguousarray(values)
        self.gpu.check("cuMemcpyAsync", ctypes.c_uint64(self.address), ctypes.c_uint64(self._kept.ctypes.data),
                       ctypes.c_size_t(self.bytes), self.gpu.stream)

    def part(self, begin, end):
        """These elements of an array of one dimension, in the same memory."""
        part = copy.copy(self)
        part.shape = (end - begin,)
        part.bytes = (end - begin) * self.dtype.itemsize
        part.address = self.address + begin * self.dtype.itemsize
        return part

    def free(self):
        self.gpu.check("cuMemFree_v2", ctypes.c_uint64(self.address))

    def free_shared(self):
        status = _native.library().free_on_gpu(self.address, [self.gpu.stream.value])
        if status != _native.OK:
            raise RuntimeError(_native.library().last_error())

    def read(self):
        values = numpy.empty(self.shape, self.dtype)
        self.gpu.check("cuMemcpyAsync", ctypes.c_uint64(values.ctypes.data), ctypes.c_uint64(self.address),
                       ctypes.c_size_t(self.bytes), self.gpu.stream)
        self.gpu.synchronize()
        return values


def fetch(native, to, stream):
    """Copies the result to the address `to`; 0: to the operation's output."""
    while True:
        try:
            return _native.library().copy_result(native, to, stream)
        except _native.StatusError as error:
            if error.code != _native.CANCELLED:
                raise exceptions.from_status(error.code, str(error)) from None


def allreduce(array, name, op=1, process_set=0, prescale=1.0, postscale=1.0):
    """Starts an allreduce in place (op: maypole_op, 1 is sum); see wait()."""
    return into(array, array, _native.ALLREDUCE, name, op=op, process_set=process_set, prescale=prescale,
                postscale=postscale)


def reduce_until_on_gpu(gpu):
    """Allreduces of all ranks, until one of them has run on GPUs: the first ones may run before memory is shared."""
    array = gpu.array(numpy.ones(30000, numpy.float32))
    while basics.counter("gpu_operations") == 0:
        allreduce(array, "first").wait()


def into(array, target, kind, name, op=1, root=0, process_set=0, prescale=1.0, postscale=1.0, begin=operations.submit):
    """Starts an operation whose result goes to the array `target`. begin=operations.prepare: does not start it yet."""
    stream = array.gpu.stream.value

    def finish(native):
        fetch(native, 0, stream)
        return target

    return begin(kind, DTYPES[str(array.dtype)], op, root, array.shape, prescale, postscale, name, array.address,
                 target.address, array, target, finish, process_set=process_set, stream=stream)


def gather(array, kind, name, splits=None, process_set=0, begin=operations.submit):
    """Starts an allgather or alltoall; wait() returns a new array. begin: see into()."""
    stream = array.gpu.stream.value

    def finish(native):
        _, size, rows = _native.library().result(native)
        result = Array(array.gpu, numpy.zeros((rows,) + array.shape[1:], array.dtype))
        fetch(native, result.address, stream)  # of nothing, too: NCCL may still read the input
        return result

    return begin(kind, DTYPES[str(array.dtype)], 0, 0, array.shape, 1.0, 1.0, name,
                 array.address if array.bytes > 0 else 0, 0, array, None, finish, process_set=process_set,
                 splits=splits, stream=stream)


def allreduce_on_host(values, name, op=1):
    """The same on a NumPy array."""
    return operations.submit(_native.ALLREDUCE, DTYPES[str(values.dtype)], op, 0, values.shape, 1.0, 1.0, name,
                             values.ctypes.data, values.ctypes.data, values, values)
