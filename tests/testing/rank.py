"""Functions by which rank programs communicate with their test (see harness.py)."""

import json
import os
import time

DIR = os.environ["MAYPOLE_TEST_DIR"]
RANK = int(os.environ["MAYPOLE_RANK"])


def _write(name, text):
    path = os.path.join(DIR, name)
    with open(path + ".new.%d" % os.getpid(), "w") as f:
        f.write(text)
    os.rename(f.name, path)


def started():
    _write("rank.%d.pid" % RANK, str(os.getpid()))


def record(**values):
    _write("rank.%d.json" % RANK, json.dumps(values))


def touch(name):
    _write(name, "")


def is_there(name):
    return os.path.exists(os.path.join(DIR, name))


def await_file(name, seconds=60):
    deadline = time.monotonic() + seconds
    while not is_there(name):
        if time.monotonic() > deadline:
            raise AssertionError("rank %d waited %g s for %s" % (RANK, seconds, name))
        time.sleep(0.005)
