"""Ranks wait for each other forever; each records its error.

usage: crossed.py kinds|names|thread
  kinds   the last rank gathers 'x', the others reduce it
  names   the last rank reduces 'b' and then 'a', the others 'a' and then 'b'
  thread  as names, after another thread of each rank has reduced something and ended
"""

import sys
import threading
import time

import plain
import rank


def main():
    plain.init()
    plain.allreduce("warm")
    if sys.argv[1] == "thread":
        other = threading.Thread(target=plain.allreduce, args=("other",))
        other.start()
        other.join()
    last = rank.RANK == plain.size() - 1
    rank.touch("ready.%d" % rank.RANK)
    if last:
        for r in range(plain.size() - 1):
            rank.await_file("ready.%d" % r)
    since = time.monotonic()
    if sys.argv[1] == "kinds":
        text, _ = plain.text_of(lambda: plain.submit("x", "allgather" if last else "allreduce", n=4).wait())
    else:
        text, _ = plain.text_of(lambda: [plain.allreduce(name) for name in ("ba" if last else "ab")])
    rank.record(text=text, since=since, seen=time.monotonic())
    plain.shutdown()


if __name__ == "__main__":
    main()
