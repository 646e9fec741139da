"""Sums large and small tensors before and after a network is lost; each sum is checked.

Rank 0 writes the file "ready" when it works, and goes on until the file "cut" is there, then some more steps. Records the
seconds of the slowest step, and of the median one after that.
"""

import os
import statistics
import time

import torch

import maypole.torch as hvd
import rank

ELEMENTS = 1 << 20
BEFORE, AFTER = 20, 30


def main():
    torch.set_num_threads(1)
    hvd.init()
    directory = os.environ["MAYPOLE_TEST_DIR"]
    seconds = []
    left = AFTER
    step = 0
    while left > 0:
        begin = time.monotonic()
        handles = [hvd.allreduce_async(torch.full((n,), float(hvd.rank() + step)), op=hvd.Sum, name="sum.%d" % n)
                   for n in (ELEMENTS, 4)]
        want = float(sum(r + step for r in range(hvd.size())))
        for n, handle in zip((ELEMENTS, 4), handles):
            got = hvd.synchronize(handle)
            assert torch.equal(got, torch.full((n,), want)), (step, n, got[:4], want)
        # Rows that differ from rank to rank, so that a byte that is lost or repeated shows.
        rows = torch.arange(hvd.rank() + 1, dtype=torch.float64) + step
        gathered = hvd.allgather(rows, name="rows")
        assert torch.equal(gathered, torch.cat([torch.arange(r + 1, dtype=torch.float64) + step
                                                for r in range(hvd.size())])), (step, gathered)
        seconds.append(time.monotonic() - begin)
        step += 1
        if step == BEFORE and hvd.rank() == 0:
            open(os.path.join(directory, "ready"), "w").close()
        cut = hvd.broadcast(torch.tensor(os.path.exists(os.path.join(directory, "cut"))), 0, name="cut")
        if cut:
            left -= 1
    slowest = max(range(len(seconds)), key=seconds.__getitem__)
    rank.record(steps=step, slowest=seconds[slowest], at=slowest, after=statistics.median(seconds[-10:]),
                before=statistics.median(seconds[:BEFORE]))
    hvd.shutdown()


main()
