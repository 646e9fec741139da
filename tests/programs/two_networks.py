"""Sums large tensors; records how long one takes, in seconds (median)."""

import statistics
import sys
import time

import torch

import maypole.torch as hvd
import rank

ELEMENTS = int(sys.argv[1])
ROUNDS = int(sys.argv[2])


def main():
    torch.set_num_threads(1)
    hvd.init()
    tensor = torch.empty(ELEMENTS)
    seconds = []
    for i in range(ROUNDS):
        tensor.fill_(hvd.rank() + i)
        begin = time.monotonic()
        hvd.allreduce_(tensor, op=hvd.Sum, name="large")
        seconds.append(time.monotonic() - begin)
        # An operation without much to send between large ones must not make one of the networks idle.
        hvd.barrier()
        want = sum(r + i for r in range(hvd.size()))
        assert torch.equal(tensor, torch.full((ELEMENTS,), float(want))), (i, tensor[:4], want)
    rank.record(seconds=statistics.median(seconds[1:]))
    hvd.shutdown()


main()
