"""Ranks that print a lot while they train.

usage: chatty.py STEPS LINES     LINES: lines of 100 bytes in each step
"""

import sys

import plain
import rank


def main():
    steps, lines = int(sys.argv[1]), int(sys.argv[2])
    plain.init()
    total = 0.0
    for step in range(steps):
        total += plain.allreduce("grad", 1000, rank.RANK + 1)[-1]
        for line in range(lines):
            print(("step %d line %d " % (step, line)).ljust(99, "x"))
    rank.record(total=total)
    plain.shutdown()


if __name__ == "__main__":
    main()
