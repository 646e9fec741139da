"""An elastic training on a (fake) GPU for gpu_test.py: weights of whole numbers, reduced on the GPU.

Each step divides the same samples among all ranks, so the sum of their gradients does not depend on the number of
ranks. The state is in GPU memory; rank 0 broadcasts it from there to the GPU memory of the others.

Writes JSON lines to stdout:
  {"step": n, "rank": r, "size": n, "pid": p, "joins": n, "on_gpu": operations of this epoch that ran on the GPU}
  {"end": true, "pid": p, "step": n, "weights": their hash, "right": whether they are those of one process}
Trains until MAYPOLE_TEST_DIR/finish exists.
"""

import hashlib
import json
import os
import sys

import numpy

import device
from maypole import _native
from maypole.common import basics, elastic

DIR = os.environ["MAYPOLE_TEST_DIR"]
ELEMENTS = 30000  # 120 KB: not an eager operation
SAMPLES = 12  # of a step
MODULUS = 1 << 20  # sums of floats below 2^24 are exact


def gradient(step, samples):
    total = numpy.zeros(ELEMENTS, numpy.float32)
    for sample in samples:
        total += (numpy.arange(ELEMENTS) * 7 + step * 13 + sample * 31) % 50
    return total


def next_weights(weights, reduced):
    return (weights + reduced) % MODULUS


def by_one_process(steps):
    weights = numpy.zeros(ELEMENTS, numpy.float32)
    for step in range(steps):
        weights = next_weights(weights, gradient(step, range(SAMPLES)))
    return weights


def say(**values):
    sys.stdout.write(json.dumps(values) + "\n")
    sys.stdout.flush()


class Training:

    def __init__(self):
        self.gpu = device.Gpu(int(os.environ["TRAIN_GPU"]))
        self.gradient = self.gpu.array(numpy.zeros(ELEMENTS, numpy.float32))
        self.packed = self.gpu.array(numpy.zeros(ELEMENTS + 1, numpy.float32))

    def broadcast(self, values):
        """The state of rank 0, which is {step, weights, finished}."""
        packed = numpy.append(values["weights"], numpy.float32(values["step"] * 2 + values["finished"]))
        self.packed.write(packed.astype(numpy.float32))
        device.into(self.packed, self.packed, _native.BROADCAST, "state").wait()
        packed = self.packed.read()
        return {"weights": packed[:-1], "step": int(packed[-1]) // 2, "finished": bool(int(packed[-1]) % 2)}

    def step(self, state):
        rank, size = basics.rank(), basics.size()
        self.gradient.write(gradient(state.step, range(SAMPLES)[rank::size]))
        device.allreduce(self.gradient, "gradient").wait()
        state.weights = next_weights(state.weights, self.gradient.read())
        state.step += 1
        say(step=state.step, rank=rank, size=size, pid=os.getpid(), joins=basics.joins(),
            on_gpu=basics.counter("gpu_operations"))

    def train(self, state):
        while not state.finished:
            self.step(state)
            finish = numpy.array([os.path.exists(os.path.join(DIR, "finish"))], numpy.int32)
            device.allreduce_on_host(finish, "finish").wait()
            state.finished = bool(finish[0])
            state.commit()


def main():
    basics.init()
    training = Training()
    state = elastic.ObjectState(training.broadcast, basics.rank, step=0, finished=False,
                                weights=numpy.zeros(ELEMENTS, numpy.float32))
    elastic.run_fn(training.train, elastic.reset)(state)
    training.gpu.synchronize()  # returns: the deaths of others have left no stuck stream
    say(end=True, pid=os.getpid(), step=state.step, weights=hashlib.sha256(state.weights.tobytes()).hexdigest(),
        right=bool((state.weights == by_one_process(state.step)).all()))
    basics.shutdown()


main()
