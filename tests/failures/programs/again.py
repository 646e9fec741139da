"""Calls init, runs operations and shuts down, repeatedly; records each round's time and leftovers.

usage: again.py ROUNDS
"""

import os
import sys
import threading
import time

import plain
import rank


def left():
    """Descriptors and threads of this process, and its address space in MiB."""
    with open("/proc/self/statm") as f:
        pages = int(f.read().split()[0])
    return [len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task")), pages // 256]


def main():
    seconds, seen = [], []
    for i in range(int(sys.argv[1])):
        start = time.monotonic()
        plain.init()
        for n in (10, 50000):
            total = plain.allreduce("x.%d" % n, n, i)
            if total[0] != i * plain.size() or total[-1] != total[0]:
                sys.exit("round %d: %r" % (i, total[0]))
        plain.shutdown()
        seconds.append(time.monotonic() - start)
        seen.append(left())
    rank.record(seconds=seconds, left=seen)


if __name__ == "__main__":
    main()
