"""Jobs of programs/torch_bench.py, for the phases that measure with it."""

import contextlib
import json
import os
import subprocess
import sys

import harness

RESNET = "ResNet-50"


def measure(day, values, ranks, libraries, sizes, seconds, env=None, resnet=False):
    """Puts the medians and all other figures of a job in `values`."""
    args = ["--libraries=" + libraries, "--sizes=" + sizes, "--seconds=%g" % seconds] + ["--resnet"] * resnet
    with day.job(ranks, "torch_bench.py", args, env=env) as job:
        # Beyond what is timed: imports, contexts, the checks of large tensors.
        job.check_ok(3 * seconds + 40)
        with open(os.path.join(job.dir, "bench.json"), encoding="utf-8") as f:
            values.update(json.load(f))


@contextlib.contextmanager
def busy(day):
    """Another process keeps the device busy."""
    program = day.program("busy.py")
    process = subprocess.Popen([sys.executable, "-B", program], stdout=subprocess.PIPE, text=True,
                               env={**os.environ, "DAY_DEVICE": day.device})
    try:
        if process.stdout.readline() != "busy\n":
            raise RuntimeError("the busy process has not started")
        yield
    finally:
        harness.end(process)
