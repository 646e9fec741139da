"""Jobs of programs/torch_bench.py, for the phases that measure with it."""

import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile

import harness
from day import Skip

RESNET = "ResNet-50"


def measure(day, values, ranks, libraries, sizes, seconds, env=None, resnet=False):
    """Puts the medians and all other figures of a job in `values`."""
    args = ["--libraries=" + libraries, "--sizes=" + sizes, "--seconds=%g" % seconds] + ["--resnet"] * resnet
    with day.job(ranks, "torch_bench.py", args, env=env) as job:
        # Beyond what is timed: imports, contexts, the checks of large tensors.
        job.check_ok(3 * seconds + 40)
        with open(os.path.join(job.dir, "bench.json"), encoding="utf-8") as f:
            values.update(json.load(f))


def phases(day, values, ranks, libraries, size, env):
    """Puts the medians of what an operation's phases take, in microseconds, as a timeline has them (docs/timeline.md)."""
    with tempfile.TemporaryDirectory() as work:
        path = os.path.join(work, "timeline.json")
        measure(day, {}, ranks, libraries, size, 1, {**env, "MAYPOLE_TIMELINE": path})
        with open(path, encoding="utf-8") as f:
            events = json.load(f)
    times = {}
    for event in events:
        if event.get("cat") == "operation":
            in_turn = times.setdefault(event["args"]["tensor"], {})
        elif event.get("cat") == "phase":
            in_turn.setdefault(event["name"], []).append(event["dur"])
    values.update({name: {phase: round(statistics.median(took), 1) for phase, took in of.items()}
                   for name, of in times.items() if of})


@contextlib.contextmanager
def mps():
    """The environment of processes that use the GPU through an MPS server of their own, while it runs."""
    control = shutil.which("nvidia-cuda-mps-control")
    if control is None:
        raise Skip("nvidia-cuda-mps-control is not on PATH")
    with tempfile.TemporaryDirectory(prefix="mps", dir="/tmp") as work:
        env = {"CUDA_MPS_PIPE_DIRECTORY": work, "CUDA_MPS_LOG_DIRECTORY": work}
        subprocess.run([control, "-d"], env={**os.environ, **env}, stdin=subprocess.DEVNULL, check=True, timeout=10)
        try:
            yield env
        finally:
            subprocess.run([control], input="quit -t 5\n", text=True, env={**os.environ, **env}, timeout=10, check=False)


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
