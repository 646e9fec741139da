"""Runs the phases that the test asks for, one at a time, and records results.

usage: known.py OPERATIONS ELEMENTS GROUPS LATE

A phase begins when the test creates the file "phase.NAME.JOB" (JOB is
MAYPOLE_TEST_JOB) and has ended when each rank has created "NAME.JOB.RANK":

  operations  OPERATIONS allreduces of ELEMENTS floats, one after the other;
              GROUPS times three of 3, 7 and 11 floats together; one allreduce
              of 10, one broadcast of 5, one allgather of 6 floats a rank
  mismatch    one allreduce, named MAYPOLE_TEST_NAME, which every rank submits
              differently
  late        one allreduce of 10 floats, which the last rank submits LATE
              seconds after the others
  end         leaves

The file "waited.JOB.RANK" has the time that the rank has spent in `late`.
"""

import os
import sys
import time

import torch

import maypole.torch as hvd
import rank

JOB = os.environ.get("MAYPOLE_TEST_JOB", "a")
ODD = os.environ.get("MAYPOLE_TEST_NAME", "odd")


def operations(n, elements, groups):
    for i in range(n):
        hvd.allreduce(torch.ones(elements), name="t%d" % (i % 3), op=hvd.Sum)
    for _ in range(groups):
        hvd.grouped_allreduce([torch.ones(n) for n in (3, 7, 11)], name="g", op=hvd.Sum)
    hvd.allreduce(torch.ones(10), name="late", op=hvd.Sum)
    hvd.broadcast(torch.ones(5), 0, name="b")
    hvd.allgather(torch.ones(2, 3), name="a")


def mismatch():
    try:
        hvd.allreduce(torch.ones(3 + hvd.rank()), name=ODD, op=hvd.Sum)
    except hvd.HorovodInternalError:
        return
    raise AssertionError("a mismatch went unnoticed")


def late(seconds):
    if hvd.rank() == hvd.size() - 1:
        for r in range(hvd.rank()):
            rank.await_file("waits.%s.%d" % (JOB, r))
        time.sleep(seconds)
    else:
        rank.touch("waits.%s.%d" % (JOB, hvd.rank()))
    begin = time.monotonic()
    hvd.allreduce(torch.ones(10), name="late", op=hvd.Sum)
    with open(os.path.join(rank.DIR, "waited.%s.%d" % (JOB, hvd.rank())), "w") as f:
        f.write(str(time.monotonic() - begin))


def main():
    hvd.init()
    n, elements, groups = (int(a) for a in sys.argv[1:4])
    for name, do in (("operations", lambda: operations(n, elements, groups)), ("mismatch", mismatch),
                     ("late", lambda: late(float(sys.argv[4])))):
        rank.await_file("phase.%s.%s" % (name, JOB), 120)
        do()
        rank.touch("%s.%s.%d" % (name, JOB, hvd.rank()))
    rank.await_file("phase.end." + JOB, 120)
    hvd.shutdown()


if __name__ == "__main__":
    main()
