"""One rank ends in the given way; the others record what they saw and when.

usage: victim.py WAY VICTIM   (WAY: exit0, exit3, exception, segfault, sigkill,
shutdown, outside: ended by the test)
"""

import os
import signal
import sys
import time

import torch

import maypole.torch as hvd
import rank


def end(way):
    rank.touch("ending")
    rank.record(ended=time.monotonic())
    if way == "exit0":
        sys.exit(0)
    if way == "exit3":
        sys.exit(3)
    if way == "exception":
        raise RuntimeError("the victim's own traceback")
    if way == "segfault":
        os.kill(os.getpid(), signal.SIGSEGV)
    if way == "sigkill":
        os.kill(os.getpid(), signal.SIGKILL)
    if way == "shutdown":
        hvd.shutdown()
        rank.await_file("others.done")
        sys.exit(0)
    rank.await_file("never")


def main():
    way, victim = sys.argv[1], int(sys.argv[2])
    rank.started()
    hvd.init()
    for step in range(3):
        hvd.allreduce(torch.ones(100000), name="grad", op=hvd.Sum)
    if hvd.rank() == victim:
        end(way)
    large = torch.ones(3000000)
    try:
        if way != "outside":
            rank.await_file("ending")
        rank.touch("waiting.%d" % hvd.rank())
        hvd.allreduce_(large, name="awaited", op=hvd.Sum)
        text = "no error"
    except hvd.HorovodInternalError as e:
        text = str(e)
    seen = time.monotonic()
    try:
        hvd.allreduce(torch.ones(1), name="later", op=hvd.Sum)
        later = "no error"
    except hvd.HorovodInternalError as e:
        later = str(e)
    rank.record(text=text, seen=seen, later=later)
    time.sleep(0.2)  # let the others record before maypolerun ends them
    hvd.shutdown()
    sys.exit(1 if way != "shutdown" else 0)


if __name__ == "__main__":
    main()
