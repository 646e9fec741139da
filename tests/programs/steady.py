"""Runs N allreduces of known size, waits for the test, then ends.

usage: steady.py OPERATIONS ELEMENTS
"""

import sys

import torch

import maypole.torch as hvd
import rank


def main():
    rank.started()
    hvd.init()
    n, elements = int(sys.argv[1]), int(sys.argv[2])
    for i in range(n):
        hvd.allreduce(torch.ones(elements), name="t%d" % (i % 3), op=hvd.Sum)
    try:
        hvd.allreduce(torch.ones(3 + hvd.rank()), name="odd", op=hvd.Sum)
    except hvd.HorovodInternalError:
        pass
    hvd.broadcast(torch.ones(5), 0, name="b")
    rank.touch("counted.%d" % hvd.rank())
    rank.await_file("end")
    hvd.shutdown()


if __name__ == "__main__":
    main()
