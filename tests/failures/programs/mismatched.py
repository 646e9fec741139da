"""Ranks submit one name with different signatures; each records its error.

usage: mismatched.py JSON, {"all": {...}, "odd": {"3": {...}}}: arguments of
plain.submit() on all ranks, and those that differ on some ranks. The highest
odd rank submits last, and records when. Then all use the name correctly.
"""

import json
import sys
import time

import plain
import rank


def main():
    spec = json.loads(sys.argv[1])
    last = max(int(r) for r in spec["odd"])
    kwargs = dict(spec["all"], **spec["odd"].get(str(rank.RANK), {}))
    plain.init()
    plain.allreduce("warm")
    if rank.RANK == last:
        for r in range(plain.size()):
            if r != last:
                rank.await_file("submitted.%d" % r)
    since = time.monotonic()
    pending = plain.submit("grad.w", **kwargs)
    rank.touch("submitted.%d" % rank.RANK)
    text, _ = plain.text_of(pending.wait)
    seen = time.monotonic()
    total = plain.allreduce("grad.w", 3)[2]
    rank.record(text=text, since=since, seen=seen, total=total)
    plain.shutdown()


if __name__ == "__main__":
    main()
