"""Plays a random program of collectives and ends in a random way.

usage: exits.py SEED

All ranks draw the same program from the seed; each checks its results. Then they
leave: by shutdown, by the end of Python, early, with operations pending, to join
again, or with a forked child that keeps its descriptors. The file "moves.RANK" in
MAYPOLE_TEST_DIR grows with each action. Exits with 0 if nothing was wrong; an
error caused by another rank's departure is not wrong.
"""

import ctypes
import os
import random
import sys
import threading
import time

from maypole import _native
from maypole.common import basics, operations
from maypole.common.exceptions import HorovodInternalError

SIZES = (1, 7, 100, 5000, 20000, 200000)
WAYS = ("shutdown", "atexit", "early", "pending", "again", "fork", "thread")


class Player:
    def __init__(self, rank, size):
        self.rank, self.size = rank, size
        self.moves = open(os.path.join(os.environ["MAYPOLE_TEST_DIR"], "moves.%d" % int(os.environ["MAYPOLE_RANK"])),
                          "ab", buffering=0)

    def move(self):
        self.moves.write(b".")

    def start(self, kind, name, n, awaited):
        mine = (ctypes.c_int32 * n)(*([self.rank + n] * n))
        out = (ctypes.c_int32 * n)()
        pending = operations.submit(
            kind, _native.INT32, 1, 0, (n,), 1.0, 1.0, name, ctypes.addressof(mine), ctypes.addressof(out), mine, out,
            awaited=awaited)
        value = n if kind == _native.BROADCAST else sum(r + n for r in range(self.size))
        return pending, out, value, name

    def finish(self, started):
        pending, out, value, name = started
        pending.wait()
        if any(x != value for x in out):
            raise AssertionError("%s: %s, not %d" % (name, list(out[:4]), value))
        self.move()

    def play(self, draw):
        for step in range(draw.randint(1, 30)):
            batch = []
            for i in range(draw.choice((1, 1, 2, 5, 20))):
                kind = draw.choice((_native.ALLREDUCE, _native.ALLREDUCE, _native.BROADCAST))
                name = draw.choice((None, "s%d" % (step % 3), "new%d" % step))
                batch.append((kind, None if name is None else "%s.%d" % (name, i), draw.choice(SIZES)))
            started = []
            order = random.Random(draw.random() + self.rank) if all(b[1] for b in batch) else None
            if order is not None:
                order.shuffle(batch)
            for kind, name, n in batch:
                awaited = len(batch) == 1
                started.append(self.start(kind, name, n, awaited))
                self.move()
            if draw.random() < 0.2:
                time.sleep(random.random() * 0.02)
            for s in started:
                self.finish(s)


def join():
    basics.init()
    return Player(basics.rank(), basics.size())


def leave(way, player, draw):
    """False: this rank has ended its part."""
    leaver = draw.randrange(player.size)
    if way == "shutdown":
        basics.shutdown()
    elif way == "early" and player.rank == leaver:
        sys.exit(0)
    elif way == "pending":
        player.start(_native.ALLREDUCE, "never.%d" % player.rank, 1000, False)
        sys.exit(0)
    elif way == "fork":
        if os.fork() == 0:
            time.sleep(random.random() * 0.5)
            os._exit(0)
    elif way == "thread":
        threading.Thread(target=lambda: time.sleep(0.2)).start()
    if way == "early":
        player.finish(player.start(_native.ALLREDUCE, "late", 1000, True))


def main():
    draw = random.Random(int(sys.argv[1]))
    player = join()
    player.play(draw)
    way = draw.choice(WAYS)
    while way == "again":
        basics.shutdown()
        player = join()
        player.play(draw)
        way = draw.choice(WAYS)
    player.move()
    try:
        leave(way, player, draw)
    except HorovodInternalError as error:
        if "shut down" not in str(error) and "left" not in str(error):
            raise
    player.move()


if __name__ == "__main__":
    main()
