"""Operations while the job's timeline is on; one rank is late for one of them.

usage: timeline.py all FILE      all ranks start and stop it, twice: FILE.1, FILE.2
       timeline.py one FILE      the last rank starts and stops it, relative to its directory
       timeline.py environment   MAYPOLE_TIMELINE; nobody stops it
       timeline.py killed FILE   rank 0 starts it; rank 1 waits for its death
       timeline.py bad FILE      the error of start_timeline(FILE)
"""

import os
import sys
import time

import torch

import maypole.torch as hvd
import rank

LATE_S = 0.2
NAME = 'a "quoted" \\ name\twith \u00e4'


def reduce(name):
    """Returns between which moments of its clock this rank has submitted it."""
    before = time.monotonic_ns()
    handle = hvd.allreduce_async(torch.ones(1000), op=hvd.Sum, name=name)
    after = time.monotonic_ns()
    assert hvd.synchronize(handle)[0] == hvd.size()
    return before, after


def some_operations(late_rank):
    """Rank late_rank is late for "late"; returns when this rank has submitted it."""
    # A rank arrives at the first operation of a name when its executor has
    # answered, which may take long.
    reduce("late")
    for i in range(5):
        reduce("gradient.%d" % i)
    reduce(NAME)
    hvd.allgather(torch.ones(2, 3), name="gathered")
    hvd.allreduce(torch.ones(300_000), name="large")
    if hvd.rank() == late_rank:
        time.sleep(LATE_S)
    moments = reduce("late")
    hvd.barrier()
    return moments


def main():
    torch.set_num_threads(1)
    rank.started()
    mode, last = sys.argv[1], None
    hvd.init()
    last = hvd.size() - 1
    if mode == "all":
        moments = []
        for n in (1, 2):
            hvd.start_timeline("%s.%d" % (sys.argv[2], n), mark_cycles=n == 2)
            hvd.barrier()
            moments.append(some_operations(last if n == 1 else 1))
            hvd.stop_timeline()
            complete = os.path.getsize("%s.%d" % (sys.argv[2], n))
            reduce("not in the timeline")
        rank.record(moments=moments, complete=complete)
    elif mode == "one":
        os.makedirs(os.path.join(rank.DIR, "here"), exist_ok=True)
        if hvd.rank() == last:
            os.chdir(os.path.join(rank.DIR, "here"))
            hvd.start_timeline(sys.argv[2])
        hvd.barrier()
        moments = some_operations(0)
        hvd.stop_timeline()
        rank.record(moments=moments)
    elif mode == "environment":
        hvd.barrier()
        rank.record(moments=some_operations(last))
    elif mode == "killed":
        if hvd.rank() == 0:
            hvd.start_timeline(sys.argv[2])
        hvd.barrier()
        some_operations(last)
        rank.touch("running.%d" % hvd.rank())
        if hvd.rank() == 1:
            time.sleep(1000)
        try:
            reduce("never")
        except hvd.HorovodInternalError as error:
            rank.record(error=str(error))
    else:
        error = None
        try:
            hvd.start_timeline(sys.argv[2])
        except ValueError as raised:
            error = str(raised)
        hvd.barrier()
        rank.record(error=error)
    hvd.shutdown()


main()
