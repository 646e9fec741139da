"""Runs operations whose results are equal on all ranks; records why it ended.

usage: checked.py STEPS
Each step uses the names 'small' (eager), 'large' (rendezvous), 'from' and
'gathered'. An error ends the program; without one it runs STEPS steps and then
waits until the test has seen what it needs (the file 'go').
"""

import sys

import torch

import maypole.torch as hvd
import rank

LARGE = 200_000


def step():
    me = float(hvd.rank() + 1)
    hvd.allreduce(torch.full((100,), me), name="small")
    hvd.allreduce_(torch.full((LARGE,), me), name="large")
    hvd.broadcast(torch.full((1000,), me), 0, name="from")
    hvd.allgather(torch.full((10,), me), name="gathered")


def main():
    rank.started()
    hvd.init()
    text = ""
    steps = 0
    try:
        for steps in range(int(sys.argv[1])):
            step()
        rank.touch("done.%d" % hvd.rank())
        rank.await_file("go")
    except hvd.HorovodInternalError as e:
        text = str(e)
    rank.record(text=text, steps=steps)
    hvd.shutdown()


if __name__ == "__main__":
    main()
