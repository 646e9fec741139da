"""Ranks of several nodes on one GPU: allreduces by Maypole through NCCL, in turns with direct calls of NCCL.

    nccl_beside.py LIBRARY MEBIBYTES[,MEBIBYTES...] ROUNDS

LIBRARY: the libnccl.so.2 of the direct calls. One rank on each node. NCCL takes processes with different $NCCL_HOSTID
for different machines, so it connects the GPU with itself, by sockets. Records the median times in microseconds.
"""

import ctypes
import os
import statistics
import sys
import time

import numpy

import rank

os.environ["NCCL_HOSTID"] = "day-%d" % rank.RANK  # of the executor of this rank's node, too

import device  # noqa: E402
from maypole.common import basics  # noqa: E402

NCCL_FLOAT32, NCCL_SUM = 7, 0
ID_BYTES = 128
ON_GPU_SECONDS = 15


class UniqueId(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_char * ID_BYTES)]


class Direct:
    """A communicator of this process's own."""

    def __init__(self, library, gpu):
        self._nccl = ctypes.CDLL(library)
        self._gpu = gpu
        self._comm = ctypes.c_void_p()
        path = os.path.join(rank.DIR, "nccl.id")
        unique = UniqueId()
        if basics.rank() == 0:
            self._check("ncclGetUniqueId", ctypes.byref(unique))
            with open(path + ".new", "wb") as f:
                f.write(bytes(unique))
            os.rename(path + ".new", path)
        rank.await_file("nccl.id")
        with open(path, "rb") as f:
            unique = UniqueId.from_buffer_copy(f.read())
        self._check("ncclCommInitRankConfig", ctypes.byref(self._comm), basics.size(), unique, basics.rank(), None)

    def _check(self, name, *args):
        result = getattr(self._nccl, name)(*args)
        if result != 0:
            raise RuntimeError("%s: error %d" % (name, result))

    def allreduce(self, array):
        address = ctypes.c_void_p(array.address)
        self._check("ncclAllReduce", address, address, ctypes.c_size_t(array.bytes // 4), NCCL_FLOAT32, NCCL_SUM,
                    self._comm, self._gpu.stream)
        self._gpu.synchronize()

    def end(self):
        self._check("ncclCommDestroy", self._comm)


def await_gpu(gpu):
    """False if operations do not run on the GPU within some seconds."""
    array = gpu.array(numpy.ones(30000, numpy.float32))
    deadline = time.monotonic() + ON_GPU_SECONDS
    late = numpy.zeros(1, numpy.float32)
    while basics.counter("gpu_operations") == 0 and late[0] == 0:
        device.allreduce(array, "first").wait()
        late[0] = time.monotonic() > deadline
        device.allreduce_on_host(late, "late", op=4).wait()  # the greatest: all ranks end together
    return basics.counter("gpu_operations") > 0


def slowest(times, name):
    """The median over the rounds of each round's slowest rank."""
    values = numpy.array(times)
    device.allreduce_on_host(values, name, op=4).wait()
    return round(statistics.median(values.tolist()), 1)


def main():
    rank.started()
    library, sizes, rounds = sys.argv[1], [int(n) for n in sys.argv[2].split(",")], int(sys.argv[3])
    basics.init()
    gpu = device.Gpu()
    on_gpu = await_gpu(gpu)
    direct = Direct(library, gpu)
    total = float(sum(range(1, basics.size() + 1)))
    rows = {}
    for mebibytes in sizes:
        ones = numpy.full(mebibytes << 18, basics.rank() + 1, numpy.float32)
        array = gpu.array(ones)
        name = "x.%d" % mebibytes
        calls = {"maypole": lambda: device.allreduce(array, name).wait(), "nccl": lambda: direct.allreduce(array)}
        times = {what: [] for what in calls}
        for turn in range(rounds + 1):
            for what, call in calls.items():
                array.write(ones)
                gpu.synchronize()
                device.allreduce_on_host(numpy.ones(1, numpy.float32), "turn").wait()
                began = time.perf_counter()
                call()
                gpu.synchronize()
                if turn > 0:
                    times[what].append((time.perf_counter() - began) * 1e6)
                values = array.read()
                if not (values == total).all():
                    raise AssertionError("%s, %d MiB: %s, expected %g" % (what, mebibytes, values[:4], total))
        rows["%d MiB" % mebibytes] = {what: slowest(mine, what + name) for what, mine in times.items()}
        array.free()
    direct.end()
    rank.record(rows=rows, on_gpu=on_gpu, operations=basics.counter("gpu_operations"))
    basics.shutdown()


main()
