"""Runs allreduces and checks their values, until the test ends it.

usage: honest.py [SECONDS]   SECONDS: time limit
"""

import os
import sys
import time

import torch

import maypole.torch as hvd
import rank


def main():
    rank.started()
    hvd.init()
    end = time.monotonic() + float(sys.argv[1] if len(sys.argv) > 1 else 60)
    size = hvd.size()
    n, done = 0, False
    while not done:
        n += 1
        got = hvd.allreduce(torch.full((1000,), float(hvd.rank() + n)), name="x", op=hvd.Sum)
        wanted = float(sum(r + n for r in range(size)))
        assert (got == wanted).all(), "round %d: %s, not %g" % (n, got[:4], wanted)
        large = hvd.allreduce(torch.full((300000,), float(hvd.rank())), name="large", op=hvd.Max)
        assert (large == size - 1).all(), "round %d: %s" % (n, large[:4])
        enough = os.path.exists(os.path.join(rank.DIR, "end")) or time.monotonic() > end
        done = hvd.allreduce(torch.tensor([float(enough)]), name="end", op=hvd.Max).item() > 0
        if n == 3:
            rank.touch("going.%d" % hvd.rank())
    hvd.shutdown()
    rank.record(rounds=n)


if __name__ == "__main__":
    main()
