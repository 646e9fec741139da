"""Asynchronous steps over several nodes: first equal ones, then changing ones.

usage: fusion.py STEPS TENSORS

Records the seconds that each step took: "steady" submits all tensors and then
waits, "polled" polls instead, "dynamic" submits different tensors each time and
waits in another order on each rank, "synchronous" makes calls that wait.
"""

import random
import sys
import time

import torch

import maypole.torch as hvd
import rank

ELEMENTS = 1000


def submit(step, names):
    handles = {}
    for i in names:
        tensor = torch.full((ELEMENTS,), float(hvd.rank() + i + step))
        handles[i] = hvd.allreduce_async(tensor, op=hvd.Sum, name="t%d" % i)
    return handles


def check(step, i, result):
    size = hvd.size()
    want = float(sum(range(size)) + size * (i + step))
    if not torch.equal(result, torch.full((ELEMENTS,), want)):
        raise AssertionError("step %d: t%d is %s, not %s" % (step, i, result[:3], want))


def steady(step, tensors):
    handles = submit(step, range(tensors))
    for i, handle in handles.items():
        check(step, i, hvd.synchronize(handle))


def polled(step, tensors):
    handles = submit(step, range(tensors))
    for i, handle in handles.items():
        while not hvd.poll(handle):
            time.sleep(0.0005)
        check(step, i, hvd.synchronize(handle))


def dynamic(step, tensors):
    chosen = random.Random(step).sample(range(tensors), 1 + step % tensors)
    handles = list(submit(step, chosen).items())
    random.Random(hvd.rank() * 1000 + step).shuffle(handles)
    for i, handle in handles:
        check(step, i, hvd.synchronize(handle))


def synchronous(step, tensors):
    for i in range(tensors // 10):
        tensor = torch.full((ELEMENTS,), float(hvd.rank() + i + step))
        check(step, i, hvd.allreduce(tensor, op=hvd.Sum, name="s%d" % i))


def main():
    rank.started()
    hvd.init()
    steps, tensors = int(sys.argv[1]), int(sys.argv[2])
    took = {}
    for way in (steady, polled, dynamic, synchronous):
        seconds = took[way.__name__] = []
        for step in range(steps):
            begin = time.monotonic()
            way(step, tensors)
            seconds.append(time.monotonic() - begin)
        rank.record(**took)
        rank.touch("%s.%d" % (way.__name__, hvd.rank()))
        rank.await_file("after_" + way.__name__)
    hvd.shutdown()


if __name__ == "__main__":
    main()
