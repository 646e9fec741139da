"""The other job: takes steps until the test ends it, and records when each ended.

An error, a wrong sum or a late end makes it exit with a status other than 0.
"""

import array
import os
import sys
import time

import plain
import rank

PAUSE = 0.005  # it is there to see, not to load the machine
SIZES = (100, 20000)  # one eager, one by rendezvous


def main():
    plain.init()
    want = float(sum(range(1, plain.size() + 1)))
    with open(os.path.join(rank.DIR, "steps.%d" % rank.RANK), "ab", buffering=0) as out:
        step = 0
        while True:
            n = SIZES[step % 2]
            total = plain.allreduce("step.%d" % (step % 4), n, rank.RANK + 1)
            if total[0] != want or total[-1] != want:
                sys.exit("step %d: %r should be %r" % (step, total[0], want))
            out.write(array.array("d", [time.monotonic()]).tobytes())
            step += 1
            # All ranks must take the same number of steps: rank 0 decides when to end.
            ends = rank.RANK == 0 and os.path.exists(os.path.join(rank.DIR, "end"))
            if plain.allreduce("ends", 1, 1 if ends else 0)[0]:
                break
            time.sleep(PAUSE)
    rank.record(steps=step)
    plain.shutdown()


if __name__ == "__main__":
    main()
