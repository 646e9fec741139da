"""Repeats the facts and allreduces of ranks that share the GPU, with all processes as clients of an MPS server."""

import bench
from phases import figures

_SIZES = "64KiB,256KiB,1MiB,4MiB,16MiB,64MiB"


def run(day):
    if day.rehearsal:
        day.skip("all", "a fake driver knows no MPS")
        return
    with day.check("facts", "measured") as values, bench.mps() as env:
        figures.measure_facts(day, values, env)
    with day.check("allreduce, 2 ranks, agent", "measured") as values, bench.mps() as env:
        bench.measure(day, values, 2, "staged,arena", _SIZES, 5, {"MAYPOLE_GPU_SITE": "agent", **env})
