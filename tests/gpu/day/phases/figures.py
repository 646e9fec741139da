"""The facts of docs/gpu-facts.md, and allreduces of CUDA tensors beside torch.distributed's Gloo."""

import json
import os
import tempfile

import bench

_SIZES = "4KiB,64KiB,256KiB,1MiB,4MiB,16MiB,64MiB,256MiB"
_FEW = "64KiB,1MiB,4MiB,64MiB"


def measure_facts(day, values, env=None):
    with tempfile.TemporaryDirectory() as work:
        path = os.path.join(work, "figures.json")
        quick = ["--quick"] * day.rehearsal
        day.run([os.path.join(day.folder, "figures"), "--json=" + path] + quick, 60, env)
        with open(path, encoding="utf-8") as f:
            values.update(json.load(f))


def run(day):
    agent, host = {"MAYPOLE_GPU_SITE": "agent"}, {"MAYPOLE_GPU_SITE": "host"}
    by_default = {"MAYPOLE_GPU_HOST_BYTES": ""}  # small tensors by the host, the others by the executor
    sizes = "4KiB,1MiB" if day.rehearsal else _FEW if day.first else _SIZES
    seconds = 0.5 if day.rehearsal else 5 if day.first else 6
    resnet = not day.first and not day.rehearsal
    with day.check("facts", "measured") as values:
        measure_facts(day, values)
    for ranks in day.some([2] if day.first else [2, 4]):
        with day.check("allreduce, %d ranks, agent" % ranks, "measured") as values:
            bench.measure(day, values, ranks, "staged,arena,gloo" + ",buckets" * resnet, sizes, seconds, agent, resnet)
        if day.rehearsal:
            day.skip("allreduce, 2 ranks, host", "on CPU tensors it is the job before")
            continue
        with day.check("allreduce, %d ranks, host" % ranks, "measured") as values:
            bench.measure(day, values, ranks, "staged", sizes, seconds / 2, host, resnet)
        with day.check("allreduce, %d ranks, default" % ranks, "measured") as values:
            bench.measure(day, values, ranks, "staged,arena", sizes, seconds / 2, by_default, resnet)
    with day.check("phases of 1 MiB, 2 ranks, agent", "measured") as values:
        bench.phases(day, values, 2, "staged,arena", "1MiB", agent)
    with day.check("allreduce, 2 ranks, agent, beside a busy kernel", "measured") as values, bench.busy(day):
        bench.measure(day, values, 2, "staged,arena,gloo", "4KiB" if day.rehearsal else _FEW, seconds / 2, agent)
    if not day.rehearsal:
        with day.check("allreduce, 2 ranks, default, beside a busy kernel", "measured") as values, bench.busy(day):
            bench.measure(day, values, 2, "staged,arena", _FEW, seconds / 3, by_default)
