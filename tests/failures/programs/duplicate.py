"""A rank submits a name that is pending; the first operation and all other ranks continue."""

import time

import plain
import rank


def main():
    plain.init()
    plain.allreduce("warm")
    first = None
    if rank.RANK != 0:
        rank.await_file("refused")
    else:
        first = plain.submit("grad.w", n=1000, value=1)
        since = time.monotonic()
        text, _ = plain.text_of(lambda: plain.submit("grad.w", n=1000, value=5))
        seen = time.monotonic()
        rank.touch("refused")
    first = first or plain.submit("grad.w", n=1000, value=1)
    total = first.wait()[-1]
    again = plain.allreduce("grad.w", 1000, 2)[-1]
    if rank.RANK == 0:
        rank.record(text=text, since=since, seen=seen, totals=[total, again])
    else:
        rank.record(totals=[total, again])
    plain.shutdown()


if __name__ == "__main__":
    main()
