"""Steps that need the coordinator, until the file "go" appears; counts wrong sums.

usage: restarts.py

Every step has a name of its own, an allgather, and names that recur, so the
coordinator always orders it.
"""

import os

import plain
import rank

KEPT = 8


def main():
    plain.init()
    rank.touch("ready.%d" % rank.RANK)
    steps = wrong = 0
    size = plain.size()
    over = False
    while not over:
        pending = [plain.submit("grad.%d" % i, n=1000 * (i + 1), value=rank.RANK + steps) for i in range(KEPT)]
        pending.append(plain.submit("step.%d" % (steps % 64), n=3, value=steps))
        stop = rank.RANK == 0 and os.path.exists(os.path.join(rank.DIR, "go"))
        last = plain.submit("over", n=1, value=1 if stop else 0)
        sums = [p.wait() for p in pending]
        want = size * (size - 1) // 2 + size * steps
        wrong += sum(1 for s in sums[:KEPT] if s[0] != want or s[-1] != want)
        wrong += int(sums[KEPT][0] != size * steps)
        over = last.wait()[0] != 0
        steps += 1
        with open(os.path.join(rank.DIR, "steps.%d.new" % rank.RANK), "w") as f:
            f.write(str(steps))
        os.replace(os.path.join(rank.DIR, "steps.%d.new" % rank.RANK), os.path.join(rank.DIR, "steps.%d" % rank.RANK))
    rank.record(steps=steps, wrong=wrong)
    plain.shutdown()


main()
