"""Allreduces on arrays in GPU memory that the executor shares, and on others.

The memory that may be shared (MAYPOLE_GPU_MEMORY_BYTES) has room for one array,
but not for a copy of it. So an allreduce runs on the GPU only if it is in place
there, or if the room is free.
"""

import numpy

import device
import rank
from maypole import _native
from maypole.common import basics

ELEMENTS = (6 << 20) // 4
ROUNDS = 3


def run(array, name):
    """Returns (distinct values of the sum, how many of the operations ran on the GPU)."""
    before = basics.counter("gpu_operations")
    work = device.allreduce(array, name)
    work.wait()
    del work  # an operation is counted when its handle is released
    return sorted(set(array.read().tolist())), basics.counter("gpu_operations") - before


def refused(gpu):
    try:
        gpu.shared_array(numpy.zeros(ELEMENTS, numpy.float32))
    except _native.StatusError as error:
        return error.code


def main():
    rank.started()
    basics.init()
    gpu = device.Gpu()
    ones = numpy.full(ELEMENTS, basics.rank() + 1, numpy.float32)
    shared, other = gpu.shared_array(ones), gpu.array(ones)
    results = {"in place": [], "refused": refused(gpu)}
    run(other, "first")  # after it each rank knows that the others use this GPU
    other.write(ones)
    for i in range(ROUNDS):
        shared.write(ones)
        results["in place"].append(run(shared, "shared.%d" % i))
    results["not shared"] = run(other, "other")
    shared.write(ones)
    results["part"] = run(shared.part(64, 50064), "part")
    whole = shared.read()
    results["rest"] = sorted(set(whole[:64].tolist() + whole[50064:].tolist()))
    shared.free_shared()
    gpu.synchronize()
    other.write(ones)
    results["with room"] = run(other, "other.again")
    kept = gpu.shared_array(ones)
    rank.record(results=results, rank=basics.rank())
    basics.shutdown()
    kept.write(ones)  # it outlives the job
    assert kept.read().tobytes() == ones.tobytes()
    kept.free_shared()


main()
