"""All ranks wait for the last one in an operation and record how it ended."""

import time

import torch

import maypole.torch as hvd
import rank


def main():
    rank.started()
    hvd.init()
    hvd.allreduce(torch.ones(100000), name="grad", op=hvd.Sum)
    if hvd.rank() == hvd.size() - 1:
        rank.await_file("never", 300)
    rank.touch("waiting.%d" % hvd.rank())
    try:
        hvd.allreduce(torch.ones(1000), name="awaited", op=hvd.Sum)
        text = "no error"
    except hvd.HorovodInternalError as e:
        text = str(e)
    rank.record(text=text, seen=time.monotonic())
    rank.await_file("never", 300)


if __name__ == "__main__":
    main()
