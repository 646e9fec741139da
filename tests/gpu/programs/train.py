"""Trains a small model whose parameters and gradients lie on a GPU.

Each rank has its own samples; gradients are averaged by an allreduce of each
gradient on the GPU, and once more on the host, which must give the same bits.
The arithmetic of the model itself runs in NumPy, between copies in stream order.

usage: train.py STEPS [on_gpu] [kill RANK STEP | wait_at STEP | host RANK]

on_gpu: training begins when operations run on GPUs. host RANK: this rank does not
share GPU memory with its executor.
"""

import hashlib
import os
import signal
import sys
import time

import numpy

import device
import rank
from maypole.common import basics, exceptions

AVERAGE = 0
FEATURES, HIDDEN = 64, 300  # the larger weight is beyond the eager limit
RATE = numpy.float32(0.012)


def gradients(weights, x, y):
    """Of the mean squared error of a network with one hidden layer."""
    first, second = weights
    hidden = numpy.maximum(x @ first, 0)
    error = hidden @ second - y
    loss = float((error * error).mean())
    d = (2 / len(x)) * error
    back = (d @ second.T) * (hidden > 0)
    return loss, [(x.T @ back).astype(numpy.float32), (hidden.T @ d).astype(numpy.float32)]


class Training:

    def __init__(self, gpu, me):
        common = numpy.random.RandomState(1)
        shapes = [(FEATURES, HIDDEN), (HIDDEN, 1)]
        self.weights = [gpu.array((common.randn(*s) / numpy.sqrt(s[0])).astype(numpy.float32)) for s in shapes]
        self.gradients = [gpu.array(numpy.zeros(s, numpy.float32)) for s in shapes]
        truth = common.randn(FEATURES, 1).astype(numpy.float32)
        own = numpy.random.RandomState(100 + me)
        self.x = own.randn(256, FEATURES).astype(numpy.float32)
        self.y = self.x @ truth
        self.losses = []
        self.compared = 0

    def step(self):
        weights = [w.read() for w in self.weights]
        loss, computed = gradients(weights, self.x, self.y)
        works = []
        for i, (array, values) in enumerate(zip(self.gradients, computed)):
            array.write(values)
            works.append(device.allreduce(array, "gradient.%d" % i, AVERAGE))
        hosts = [device.allreduce_on_host(values, "host.%d" % i, AVERAGE) for i, values in enumerate(computed)]
        for work in works + hosts:
            work.wait()
        for array, values, weight, old in zip(self.gradients, computed, self.weights, weights):
            reduced = array.read()
            if reduced.tobytes() != values.tobytes():
                raise AssertionError("rank %d: the GPU's gradient has other bits than the CPU's" % basics.rank())
            self.compared += 1
            weight.write(old - RATE * reduced)
        self.losses.append(loss)

    def digest(self):
        return hashlib.sha256(b"".join(w.read().tobytes() for w in self.weights)).hexdigest()


def main():
    rank.started()
    steps, rest = int(sys.argv[1]), sys.argv[2:]
    if rest[:1] == ["host"] and os.environ["MAYPOLE_RANK"] == rest[1]:
        os.environ["MAYPOLE_GPU_MEMORY"] = "host"
    await_gpu = rest[:1] == ["on_gpu"]
    if await_gpu:
        del rest[0]
    basics.init()
    opened = "libcuda" in open("/proc/self/maps").read()
    me = basics.rank()
    gpu = device.Gpu()
    training = Training(gpu, me)
    error = None
    if await_gpu:
        device.reduce_until_on_gpu(gpu)
    before = basics.counter("gpu_operations")
    try:
        for step in range(steps):
            if rest[:1] == ["kill"] and me == int(rest[1]) and step == int(rest[2]):
                # In the middle: submitted, and the GPU may still be at work.
                training.gradients[0].write(numpy.zeros((FEATURES, HIDDEN), numpy.float32))
                device.allreduce(training.gradients[0], "gradient.0", AVERAGE)
                rank.touch("killed")
                os.kill(os.getpid(), signal.SIGKILL)
            if rest[:1] == ["wait_at"] and step == int(rest[1]):
                rank.touch("rank.%d.waits" % me)
                rank.await_file("go")
            training.step()
    except exceptions.HorovodInternalError as e:
        error = (str(e), time.time())
    gpu.synchronize()  # returns: the deaths of others have left no stuck stream
    rank.record(opened_by_init=opened, losses=training.losses, compared=training.compared, digest=training.digest(),
                error=error, on_gpu=basics.counter("gpu_operations") - before, visible=os.environ.get("CUDA_VISIBLE_DEVICES"))
    basics.shutdown()


main()
