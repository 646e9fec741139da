"""Allreduces on a GPU until the test ends them."""

import numpy

import device
import rank
from maypole.common import basics


def main():
    rank.started()
    basics.init()
    gpu = device.Gpu()
    array = gpu.array(numpy.ones(1000, numpy.float32))
    device.reduce_until_on_gpu(gpu)
    rank.touch("running.%d" % basics.rank())
    go_on = 1.0
    while go_on > 0:  # all ranks see the file in the same step
        device.allreduce(array, "x").wait()
        mine = 0.0 if rank.is_there("end") else 1.0
        go_on = min(device.allreduce_on_host(numpy.full(1, mine, numpy.float32), "go_on", op=3).wait())
    basics.shutdown()


main()
