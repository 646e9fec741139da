"""The CPU path on all cores of the machine: staged and arena, beside torch.distributed's Gloo, and MPI if installed."""

import json
import os
import shutil
import sys
import tempfile

import bench
from day import Skip

_SIZES = "4KiB,64KiB,1MiB,16MiB,64MiB"
_FEWEST_SECONDS = 12  # for a job


def run(day):
    cores = len(os.sched_getaffinity(0))
    sizes, seconds = ("4KiB,1MiB", 0.5) if day.rehearsal else (_SIZES, 3)
    # The most ranks first: nobody has seen more than two cores at work.
    for ranks in [n for n in (16, 8, 4, 2) if n <= max(2, cores)]:
        with day.check("allreduce on the CPU, %d ranks of %d cores" % (ranks, cores), "measured") as values:
            if day.seconds_left() < _FEWEST_SECONDS:
                raise Skip("no time is left")
            bench.measure(day, values, ranks, "staged,arena,gloo", sizes, seconds, {"DAY_DEVICE": "cpu"})
    with day.check("MPI, %d ranks" % min(16, cores), "measured") as values:
        _mpi(day, values, min(16, cores), sizes, seconds)


def _mpi(day, values, ranks, sizes, seconds):
    mpirun = shutil.which("mpirun")
    if mpirun is None or not day.module("mpi4py.MPI"):
        raise Skip("mpirun or mpi4py with an MPI library is not there")
    program = day.program("torch_bench.py")
    with tempfile.TemporaryDirectory() as work:
        env = {"MAYPOLE_TEST_DIR": work, "DAY_DEVICE": "cpu",
               "PYTHONPATH": os.path.join(day.folder, "tests", "bench"), "OMPI_MCA_rmaps_base_oversubscribe": "1"}
        as_root = ["--allow-run-as-root"] * (os.geteuid() == 0 and "Open MPI" in day.run([mpirun, "--version"], 10).stdout)
        day.run([mpirun, *as_root, "-np", str(ranks), sys.executable, "-B", program, "--libraries=mpi",
                 "--sizes=" + sizes, "--seconds=%g" % seconds], 40, env)
        with open(os.path.join(work, "bench.json"), encoding="utf-8") as f:
            values.update(json.load(f))
