"""A waiting rank: interrupted by a signal after a long sleep, and in a deadlock
that only the coordinator can detect."""

import signal
import time

import torch

import maypole.torch as hvd
import rank

SECONDS = 2.0  # the first second of a wait differs from the rest


class Interrupted(Exception):
    pass


def interrupt(*_):
    raise Interrupted


def main():
    rank.started()
    hvd.init()
    interrupted_after = None
    if hvd.rank() == 0:
        signal.signal(signal.SIGALRM, interrupt)
        handle = hvd.allreduce_async(torch.ones(3), op=hvd.Sum, name="late")
        signal.setitimer(signal.ITIMER_REAL, SECONDS)
        start = time.monotonic()
        try:
            hvd.synchronize(handle)
        except Interrupted:
            interrupted_after = time.monotonic() - start
        rank.touch("interrupted")
    else:
        rank.await_file("interrupted")
        handle = hvd.allreduce_async(torch.ones(3), op=hvd.Sum, name="late")
    total = hvd.synchronize(handle).tolist()
    text, start = "", time.monotonic()
    try:
        if hvd.rank() == 0:
            hvd.allreduce(torch.ones(3), name="loss")
        else:
            hvd.allgather(torch.ones(3), name="loss")
    except hvd.HorovodInternalError as e:
        text = str(e)
    rank.record(total=total, interrupted_after=interrupted_after, text=text, seconds=time.monotonic() - start)
    hvd.shutdown()


if __name__ == "__main__":
    main()
