"""All ranks wait for the last one; one of them gets Ctrl-C from the test.

usage: interrupted.py VICTIM
"""

import sys
import time

import plain
import rank


def main():
    victim = int(sys.argv[1])
    plain.init()
    plain.allreduce("warm", 1000)
    if rank.RANK == plain.size() - 1:
        rank.touch("ready.%d" % rank.RANK)
        rank.await_file("never")
    pending = plain.submit("awaited", n=100000)
    rank.touch("ready.%d" % rank.RANK)
    try:
        text, _ = plain.text_of(pending.wait)
    except KeyboardInterrupt:
        rank.record(text="KeyboardInterrupt", seen=time.monotonic())
        raise
    rank.record(text=text, seen=time.monotonic(), victim=victim)


if __name__ == "__main__":
    main()
