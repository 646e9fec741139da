"""One rank allocates memory until it is killed; the others wait for it.

usage: greedy.py VICTIM
"""

import sys
import time

import plain
import rank


def main():
    victim = int(sys.argv[1])
    plain.init()
    plain.allreduce("warm", 1000)
    rank.touch("ready.%d" % rank.RANK)
    if rank.RANK == victim:
        rank.await_file("go")
        taken = []
        while True:
            taken.append(bytearray(b"x") * (4 << 20))
            rank.touch("last")  # its time is the victim's last sign of life
    text, _ = plain.text_of(lambda: plain.allreduce("awaited", 1000))
    seen = time.monotonic()
    later, _ = plain.text_of(lambda: plain.allreduce("later"))
    rank.record(text=text, seen=seen, later=later)
    plain.shutdown()


if __name__ == "__main__":
    main()
