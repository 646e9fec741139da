"""Prints this process's place in its job, and a sum over all ranks.

usage: where.py [DIRECTORY [GO]]

Needs no framework, so that any Python runs it. Prints one line,
"rank R of N: local L of M, node C of D: sum S", and writes rank.R.json into
DIRECTORY (or $MAYPOLE_TEST_DIR, if that is set). GO: waits for DIRECTORY/GO to appear, with the job open, before the
sum (and writes here.R first).
"""

import array
import json
import os
import platform
import sys
import time

from maypole import _native
from maypole.common import basics, constants, operations

ELEMENTS = 50000


def summed(name, value):
    values = array.array("f", [value]) * ELEMENTS
    address, _ = values.buffer_info()
    operations.submit(_native.ALLREDUCE, _native.FLOAT32, constants.Sum, 0, (ELEMENTS,), 1.0, 1.0, name,
                      address, address, values, values).wait()
    if min(values) != max(values):
        raise AssertionError("parts of the sum differ")
    return values[0]


def main():
    began = time.monotonic()
    basics.init()
    seconds = time.monotonic() - began
    rank, size = basics.rank(), basics.size()
    directory = sys.argv[1] if len(sys.argv) > 1 else os.environ.get("MAYPOLE_TEST_DIR")
    if len(sys.argv) > 2:
        with open(os.path.join(directory, "here.%d" % rank), "w") as f:
            f.write(str(os.getpid()))
        while not os.path.exists(os.path.join(directory, sys.argv[2])):
            time.sleep(0.01)
    total = summed("where", rank + 1.0)
    seen = {"rank": rank, "size": size, "local_rank": basics.local_rank(), "local_size": basics.local_size(),
            "cross_rank": basics.cross_rank(), "cross_size": basics.cross_size(), "sum": total,
            "host": platform.node(), "python": platform.python_version(), "init_seconds": seconds}
    line = ("rank %(rank)d of %(size)d: local %(local_rank)d of %(local_size)d, "
            "node %(cross_rank)d of %(cross_size)d: sum %(sum)g" % seen)
    print(line, flush=True)
    if directory:
        path = os.path.join(directory, "rank.%d.json" % rank)
        with open(path + ".new", "w") as f:
            json.dump(seen, f)
        os.rename(path + ".new", path)
    basics.shutdown()


if __name__ == "__main__":
    main()
