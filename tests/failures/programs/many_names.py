"""Many operations with long names: the last rank submits them, then all submit one more, which ends; when the file "go"
appears, the other ranks submit the many operations as well.

usage: many_names.py NUMBER LENGTH
"""

import sys

import plain
import rank

NUMBER, LENGTH = int(sys.argv[1]), int(sys.argv[2])


def submit():
    return [plain.submit(("%d." % i).ljust(LENGTH, "x"), n=1, value=rank.RANK + i) for i in range(NUMBER)]


def main():
    plain.init()
    size = plain.size()
    last = rank.RANK == size - 1
    pending = submit() if last else []
    plain.allreduce("fence")  # what a node has reported is ordered: so they are reported before this
    rank.touch("ready.%d" % rank.RANK)
    if not last:
        rank.await_file("go")
        pending = submit()
        rank.touch("submitted.%d" % rank.RANK)
    sums = [p.wait()[0] for p in pending]
    want = [size * (size - 1) // 2 + size * i for i in range(NUMBER)]
    rank.record(wrong=sum(1 for s, w in zip(sums, want) if s != w), number=len(sums))
    plain.shutdown()


main()
