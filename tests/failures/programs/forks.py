"""A rank forks: the child is not a rank, and its end is not a rank's death.

usage: forks.py VICTIM WAY

WAY, of the victim's child:
  exit     ends with status 0, by sys.exit
  kill     gets SIGKILL
  use      uses Maypole and records the error
  init     calls init()
  outlives keeps running while its parent, the rank, gets SIGKILL from the test
The rank forks twice: with no operation pending, and with one pending.
"""

import os
import signal
import sys
import time

import plain
import rank


def child(way, told):
    """Never returns."""
    if way == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if way in ("use", "init"):
        text, _ = plain.text_of(plain.init if way == "init" else lambda: plain.allreduce("x"))
        with open(told, "w") as f:
            f.write(str(text))
    if way == "outlives":
        rank.touch("child")
        while os.getppid() != 1 and not os.path.exists(os.path.join(rank.DIR, "over")):
            time.sleep(0.01)
        time.sleep(2)
    sys.exit(0)  # runs what atexit has, as a DataLoader's worker may


def fork(way, number):
    """(the child's exit status, its error)"""
    told = os.path.join(rank.DIR, "told.%d" % number)
    pid = os.fork()
    if pid == 0:
        child(way, told)
    if way == "outlives":
        rank.await_file("never")
    _, status = os.waitpid(pid, 0)
    text = None
    if os.path.exists(told):
        with open(told) as f:
            text = f.read()
    return os.waitstatus_to_exitcode(status), text


def main():
    victim, way = int(sys.argv[1]), sys.argv[2]
    plain.init()
    plain.allreduce("warm", 100000)
    rank.touch("ready.%d" % rank.RANK)
    children = []

    def steps():
        first = plain.submit("pending", n=100000, value=rank.RANK)
        if rank.RANK == victim:
            children.append(fork(way, 1))
        totals = [first.wait()[-1]]
        if rank.RANK == victim:
            children.append(fork(way, 2))
        for i in range(20):
            totals.append(plain.allreduce("after.%d" % (i % 3), 30000, rank.RANK)[-1])
        return totals

    text, totals = plain.text_of(steps)
    rank.record(text=text, totals=totals, children=children, seen=time.monotonic())
    plain.shutdown()


if __name__ == "__main__":
    main()
