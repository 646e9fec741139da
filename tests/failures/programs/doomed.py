"""A job in which a fault happens; every rank records what it saw, and when.

usage: doomed.py PLACE VICTIM [WAY] [--small]

PLACE is what the victim does when the fault happens; the file ready.N appears
when rank N has reached that point.
  compute  it computes; the other ranks wait for it in an operation
  submit   all ranks submit and wait as fast as they can
  wait     it waits with others in an operation that one rank has not submitted
           (the next one after the victim, which computes)
  send     all ranks wait for the file "cut"; then the victim's node broadcasts a few
           bytes, without waiting for another node
WAY is what the victim does at SIGUSR1: exception, exit0, exit3, shutdown.

A rank without an error continues: when the file "go" appears, the computing
victim and the late rank submit the operations that the others wait for, training
ends, and all exit with status 0.
"""

import os
import signal
import sys
import time

import plain
import rank

SIZE = 16 if "--small" in sys.argv else 1000000


def act(way):
    """Ends this process in the given way; the rank's record is written before."""
    rank.record(ended=time.monotonic())
    if way == "exception":
        raise RuntimeError("the victim's own error")
    if way == "shutdown":
        plain.shutdown()
        rank.await_file("over")
    sys.exit(3 if way == "exit3" else 0)


def compute():
    """Waits until the test creates the file "go"."""
    rank.touch("ready.%d" % rank.RANK)
    while not os.path.exists(os.path.join(rank.DIR, "go")):
        sum(range(2000))
        time.sleep(0.001)


def await_others():
    pending = plain.submit("awaited", n=SIZE, value=rank.RANK + 1)
    rank.touch("ready.%d" % rank.RANK)
    return pending.wait()[-1]


def train():
    """Runs steps of many operations until rank 0 sees the file "go"."""
    rank.touch("ready.%d" % rank.RANK)
    while True:
        step = [plain.submit("grad.%d" % i, n=100 if i % 2 else 30000, value=1) for i in range(16)]
        over = rank.RANK == 0 and os.path.exists(os.path.join(rank.DIR, "go"))
        step.append(plain.submit("over", n=1, value=1 if over else 0))
        totals = [pending.wait()[0] for pending in step]
        if totals[:-1] != [plain.size()] * 16:
            sys.exit("wrong sums: %r" % totals)
        if totals[-1]:
            return totals[0]


def send(root):
    rank.touch("ready.%d" % rank.RANK)
    rank.await_file("cut")
    plain.submit("sent", kind="broadcast", n=16, value=rank.RANK, root=root).wait()
    return plain.allreduce("awaited")[0]


def play(place, victim):
    late = victim if place == "compute" else (victim + 1) % plain.size()
    if place == "submit":
        return train()
    if place == "send":
        return send(victim)
    if rank.RANK == late:
        compute()
    return await_others()


def main():
    place, victim = sys.argv[1], int(sys.argv[2])
    way = sys.argv[3] if len(sys.argv) > 3 else ""
    if rank.RANK == victim:
        signal.signal(signal.SIGUSR1, lambda *_: act(way))
    plain.init()
    for step in range(3):
        # Equal steps begin a schedule, and to leave one takes a word of the other node: then "send" would wait for it.
        plain.allreduce("warm.%d" % step if place == "send" else "warm", 100000)
    text, value = plain.text_of(lambda: play(place, victim))
    seen = time.monotonic()
    later, _ = plain.text_of(lambda: plain.allreduce("later"))
    rank.record(text=text, value=value, seen=seen, later=later)
    if text is not None:
        rank.await_file("over")  # others must see the fault, not this rank's departure
    plain.shutdown()


if __name__ == "__main__":
    main()
