"""Runs steps until the test ends it; the test can hold a rank, for which the others then wait.

Files: `end`: all stop together, without an error. `hold.R`: rank R waits while the file exists.
"""

import os
import sys
import time

import torch

import maypole.torch as hvd
import rank


def there(name):
    return os.path.exists(os.path.join(rank.DIR, name))


def main():
    rank.started()
    hvd.init()
    steps = 0
    try:
        while True:
            end = hvd.allreduce(torch.tensor([float(there("end"))]), name="end", op=hvd.Sum)
            if end.item() > 0:
                break
            while there("hold.%d" % hvd.rank()):
                time.sleep(0.01)
            hvd.allreduce(torch.ones(1000), name="grad", op=hvd.Sum)
            steps += 1
            if steps % 10 == 0:
                rank.record(steps=steps, text="")
            time.sleep(0.005)
    except hvd.HorovodInternalError as e:
        rank.record(steps=steps, text=str(e))
        sys.exit(3)
    rank.record(steps=steps, text="")
    hvd.shutdown()


if __name__ == "__main__":
    main()
