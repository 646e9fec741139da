"""Sums tensors of N different names, some steps, and counts wrong values.

usage: many_names.py N STEPS
"""

import sys
import time

import torch

import maypole.torch as hvd
import rank


def step(tensors):
    """Submits all tensors at once, as an optimizer's hooks do."""
    handles = [hvd.allreduce_async_(t, name="layer.%d.weight" % i, op=hvd.Sum) for i, t in enumerate(tensors)]
    for handle in handles:
        hvd.synchronize(handle)


def main():
    n, steps = int(sys.argv[1]), int(sys.argv[2])
    torch.set_num_threads(1)
    rank.started()
    hvd.init()
    factor = sum(range(1, hvd.size() + 1))
    wrong, seconds = 0, []
    for _ in range(steps):
        tensors = [torch.full((1 + i % 7,), float((hvd.rank() + 1) * (1 + i % 1000))) for i in range(n)]
        began = time.monotonic()
        step(tensors)
        seconds.append(time.monotonic() - began)
        wrong += sum(not torch.equal(t, torch.full_like(t, float(factor * (1 + i % 1000)))) for i, t in enumerate(tensors))
    rank.touch("done.%d" % hvd.rank())
    rank.await_file("end")
    rank.record(wrong=wrong, seconds=seconds)
    hvd.shutdown()


if __name__ == "__main__":
    main()
