"""Two operations with recognisable names; more of them if the test asks for it.

usage: secure.py [STEPS]   records the sum, or the error of init.
With STEPS it first creates the file "running.RANK", and runs until the test
creates the file "enough"; it records how long the slowest step took.
"""

import os
import sys
import time

import torch

import maypole.torch as hvd
import rank


def main():
    torch.set_num_threads(1)
    rank.started()
    try:
        hvd.init()
    except Exception as error:  # what the test wants to know
        rank.record(error=str(error), type=type(error).__name__)
        return
    total = hvd.allreduce(torch.full((1000,), hvd.rank() + 1.0), op=hvd.Sum, name="gradient.of.plan.nine")
    steps, slowest = 0, 0.0
    if len(sys.argv) > 1:
        rank.touch("running.%d" % hvd.rank())
        enough = os.path.join(rank.DIR, "enough")
        while True:
            done = torch.tensor([float(os.path.exists(enough))])
            steps += 1
            began = time.monotonic()
            ended = hvd.allreduce(done, op=hvd.Sum, name="done")[0] == hvd.size()
            slowest = max(slowest, time.monotonic() - began)
            if ended:
                break
            time.sleep(0.002)
    rank.record(sum=float(total[0]), steps=steps, slowest=slowest)
    hvd.shutdown()


main()
