"""Steps with NumPy arrays until the test creates the file `end`; records their number and the last sum, or the error.

usage: numpy_steps.py [RANK]   RANK has a child that holds all its descriptors and outlives it; `child` has its pid.
"""

import os
import sys
import time

import numpy as np

import maypole as hvd
import rank


def start_child():
    child = os.fork()
    if child == 0:
        while os.path.exists(rank.DIR):
            time.sleep(0.05)
        os._exit(0)
    rank.touch("child.%d" % child)


def main():
    rank.started()
    hvd.init()
    if sys.argv[1:] == [str(hvd.rank())]:
        start_child()
    steps, total = 0, 0.0
    try:
        while hvd.allreduce(np.array([float(rank.is_there("end"))]), op=hvd.Sum, name="end")[0] == 0:
            total = float(hvd.allreduce(np.full(1000, hvd.rank() + 1.0), op=hvd.Sum, name="gradient")[0])
            steps += 1
            if steps == 3:
                rank.touch("running.%d" % hvd.rank())
            time.sleep(0.005)
    except hvd.HorovodInternalError as error:
        rank.record(text=str(error))
        sys.exit(3)
    rank.record(steps=steps, total=total)
    hvd.shutdown()


main()
