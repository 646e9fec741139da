"""An operation that needs memory; records each rank's error, and whether it can continue.

usage: large.py ELEMENTS
"""

import sys
import time

import plain
import rank


def main():
    n = int(sys.argv[1])
    plain.init()
    plain.allreduce("warm", 1000)
    rank.touch("ready.%d" % rank.RANK)
    since = time.monotonic()
    text, _ = plain.text_of(lambda: plain.submit("gathered", "allgather", n=n).wait())
    seen = time.monotonic()
    later, _ = plain.text_of(lambda: plain.allreduce("later"))
    rank.record(text=text, since=since, seen=seen, later=later)
    plain.shutdown()


if __name__ == "__main__":
    main()
