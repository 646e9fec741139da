"""Two epochs. Rank 0 leaves the first one as soon as the file "agent" appears, the other ranks when "go" does.

usage: one_after_the_other.py
"""

import plain
import rank


def main():
    plain.init()
    plain.allreduce("first")
    rank.touch("ready.%d" % rank.RANK)
    rank.await_file("agent" if rank.RANK == 0 else "go")
    plain.shutdown()
    text, _ = plain.text_of(plain.init)
    total = plain.allreduce("second", value=rank.RANK + 1)[0] if text is None else None
    rank.record(text=text, total=total)


main()
