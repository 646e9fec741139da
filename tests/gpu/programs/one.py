"""One allreduce of a CUDA tensor on each rank; records its error or its values.

usage: one.py array | host RANK | fails RANK FAKE | address
  array      on the GPU, of ELEMENTS floats
  host RANK  the same, but this rank's is in host memory
  fails RANK FAKE  the same, but for this rank MAYPOLE_FAKE_CUDA has FAKE added
  address    an address that stands for one, where there is no GPU
"""

import os
import sys
import time

import numpy

import device
import rank
from maypole import _native
from maypole.common import basics, operations

ELEMENTS = 50000


def submit(me):
    what = sys.argv[1]
    values = numpy.full(ELEMENTS, me + 1, numpy.float32)
    if what == "address":
        return operations.submit(_native.ALLREDUCE, _native.FLOAT32, 1, 0, [ELEMENTS], 1.0, 1.0, "x", 4096, 4096,
                                 stream=0)
    if what == "host" and me == int(sys.argv[2]):
        return device.allreduce_on_host(values, "x")
    if what == "fails" and me == int(sys.argv[2]):
        os.environ["MAYPOLE_FAKE_CUDA"] += "," + sys.argv[3]
    return device.allreduce(device.Gpu().array(values), "x")


def main():
    rank.started()
    basics.init()
    error, values = None, None
    try:
        result = submit(basics.rank()).wait()
        if isinstance(result, device.Array):
            result = result.read()
        values = sorted(set(result.tolist()))
    except Exception as e:
        error = "%s: %s" % (type(e).__name__, e)
    rank.record(error=error, values=values, time=time.time(), arena=basics.counter("arena_operations"))
    basics.shutdown()


main()
