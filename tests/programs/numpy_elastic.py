"""An elastic job of NumPy arrays, until the test creates the file `end`.

Each process creates `together.SIZE.PID` when it has made a step with SIZE ranks, and at the end `done.PID` with the
number of steps of the job.
"""

import os
import time

import numpy as np

import maypole as hvd

DIR = os.environ["MAYPOLE_TEST_DIR"]


def write(name, text=""):
    with open(os.path.join(DIR, name), "w") as f:
        f.write(text)


@hvd.elastic.run
def train(state):
    while hvd.allreduce(np.array([float(os.path.exists(DIR + "/end"))]), op=hvd.Sum, name="end")[0] == 0:
        total = hvd.allreduce(np.ones(1000), op=hvd.Sum, name="gradient")
        assert (total == hvd.size()).all(), total
        state.step += 1
        write("together.%d.%d" % (hvd.size(), os.getpid()))
        state.commit()
        time.sleep(0.01)


def main():
    hvd.init()
    state = hvd.elastic.ObjectState(hvd.broadcast_object, hvd.rank, step=0)
    train(state)
    write("done.%d" % os.getpid(), str(state.step))


main()
