"""Steps of a few allreduces, in which one rank computes longer than the others, until the test ends it.

usage: straggler.py RANK SECONDS [ELEMENTS]
"""

import sys
import time

import torch

import maypole.torch as hvd
import rank


def main():
    late, seconds = int(sys.argv[1]), float(sys.argv[2])
    elements = int(sys.argv[3]) if len(sys.argv) > 3 else 1000
    rank.started()
    hvd.init()
    tensors = [torch.ones(elements) for _ in range(5)]
    go_on = 1.0
    steps, began = 0, time.monotonic()
    while go_on > 0:  # all ranks see the file in the same step
        if hvd.rank() == late:
            time.sleep(seconds)
        handles = [hvd.allreduce_async(t, op=hvd.Sum, name="t%d" % i) for i, t in enumerate(tensors)]
        for handle in handles:
            hvd.synchronize(handle)
        mine = 0.0 if rank.is_there("end") else 1.0
        go_on = float(hvd.allreduce(torch.tensor([mine]), op=hvd.Min, name="go_on"))
        steps += 1
        if steps == 20:
            rank.touch("running.%d" % hvd.rank())
    rank.record(steps=steps, seconds=time.monotonic() - began)
    hvd.shutdown()


if __name__ == "__main__":
    main()
