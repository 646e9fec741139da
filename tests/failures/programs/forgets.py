"""A rank ends with operations pending for which it has never waited.

usage: forgets.py VICTIM HOW      HOW: end (of the program), exit (os._exit)
"""

import os
import sys
import time

import plain
import rank


def main():
    victim, how = int(sys.argv[1]), sys.argv[2]
    plain.init()
    plain.allreduce("warm", 100000)
    rank.touch("ready.%d" % rank.RANK)
    if rank.RANK == victim:
        pending = [plain.submit("mine.%d" % i, n=n) for i, n in enumerate((10, 100000, 1000000))]
        rank.record(ended=time.monotonic(), pending=len(pending))
        if how == "exit":
            os._exit(0)
        return
    text, _ = plain.text_of(lambda: plain.allreduce("awaited", 1000))
    seen = time.monotonic()
    later, _ = plain.text_of(lambda: plain.allreduce("later"))
    rank.record(text=text, seen=seen, later=later)
    plain.shutdown()


if __name__ == "__main__":
    main()
