#!/usr/bin/python3
"""What a busy neighbour costs: small allreduces on two cores, alone and beside a process that spins.

  tests/bench/neighbour_bench.py --build new=out                    one build
  tests/bench/neighbour_bench.py --build old=DIR --build new=out    two builds, in turns
  bazel build -c opt //tests/bench:neighbour_openmpi
  tests/bench/neighbour_bench.py --build new=out --openmpi bazel-bin/tests/bench/neighbour_openmpi
                                                                    and Open MPI's C program

A build is a directory with bin/ and lib/, as deploy/build.sh makes it in out/. The ranks are Python (maypole.torch).
All jobs are alive all the time, and all but the one whose turn it is sleep. A round is one turn of each job, so that
other load on the machine affects all of them; before a round the bench waits a while for the machine to be idle
(--quiet). Prints for each case the median over the rounds of: the median, the 90th percentile and the mean of rank 0's
allreduces in a turn (microseconds), and the cores that all ranks together used.
"""

import argparse
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
PYTHON = "/usr/bin/python3"
SPIN = "while True: pass"
START_S = 60
COLUMNS = ("p50", "p90", "mean", "cores")


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", action="append", default=[], metavar="NAME=DIR", help="a build to measure")
    parser.add_argument("--openmpi", metavar="PROGRAM", help="measure //tests/bench:neighbour_openmpi too")
    parser.add_argument("--ranks", default="2,4", help="numbers of ranks (%(default)s)")
    parser.add_argument("--neighbours", default="0,1", help="numbers of busy neighbours (%(default)s)")
    parser.add_argument("--cores", type=int, default=2, help="cores for ranks and neighbours (%(default)s)")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.5, help="length of a turn (%(default)s)")
    parser.add_argument("--bytes", default="4", help="sizes of the tensors of the builds (%(default)s)")
    parser.add_argument("--gap", type=float, default=0, metavar="US",
                        help="how long a rank of a build computes before each allreduce, on average (%(default)s)")
    parser.add_argument("--quiet", type=float, default=10, metavar="S",
                        help="wait at most so long for an idle machine before each round (%(default)s)")
    parser.add_argument("--json", help="write all rounds there")
    found = parser.parse_args()
    if not found.build and not found.openmpi:
        parser.error("give at least one --build NAME=DIR, or --openmpi PROGRAM")
    return found


def summary(times, cores):
    """The figures of a turn, from the microseconds of its allreduces."""
    ordered = sorted(times)
    return {"p50": statistics.median(ordered), "p90": ordered[len(ordered) * 9 // 10],
            "mean": statistics.fmean(ordered), "cores": cores}


class Job:
    """The ranks of a build, which wait for their turn."""

    def __init__(self, directory, ranks, scratch):
        path = tempfile.mktemp(prefix="s", dir=scratch)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(path)
        listener.listen(ranks)
        listener.settimeout(START_S)
        env = {k: v for k, v in os.environ.items() if not k.startswith("MAYPOLE_")}
        env.update(MAYPOLE_LIBRARY=os.path.join(directory, "lib", "libmaypole.so"),
                   PATH=os.path.join(directory, "bin") + os.pathsep + os.environ["PATH"],
                   PYTHONPATH=os.path.join(ROOT, "client", "python"), NEIGHBOUR_BENCH_SOCKET=path)
        self._process = subprocess.Popen(
            ["maypolerun", "-np", str(ranks), "--no-prefix", "--", PYTHON, os.path.join(HERE, "neighbour_rank.py")],
            env=env, stdin=subprocess.DEVNULL, stdout=sys.stderr)
        try:
            found = [listener.accept()[0].makefile("rw", encoding="ascii") for _ in range(ranks)]
        except OSError:
            self._process.terminate()
            raise
        self._ranks = sorted(found, key=lambda lines: int(lines.readline()))

    def turn(self, seconds, gap, size):
        for lines in self._ranks:
            print("run", seconds, gap, size, file=lines, flush=True)
        answers = [json.loads(lines.readline()) for lines in self._ranks]
        return summary(answers[0]["us"], sum(a["cpu"] for a in answers) / answers[0]["seconds"])

    def stop(self):
        for lines in self._ranks:
            print("quit", file=lines, flush=True)
        if self._process.wait(START_S) != 0:
            raise RuntimeError("a job ended with status %d" % self._process.returncode)


class OpenMpi:
    """Open MPI's ranks spin while they wait, so they live for a turn only."""

    def __init__(self, program, ranks):
        self._program = program
        self._command = ["mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-np", str(ranks)]
        if ranks > len(os.sched_getaffinity(0)):
            self._command += ["--mca", "mpi_yield_when_idle", "1"]

    def turn(self, seconds, unused_gap, unused_size):
        found = subprocess.run(self._command + [self._program, str(seconds)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                               check=True).stdout.split()
        cores, times = float(found[0]), [float(word) for word in found[1:]]
        return summary(times, cores)

    def stop(self):
        pass


class Neighbours:
    """Processes that spin, of another session as another user's would be."""

    def __init__(self, count):
        self._processes = [subprocess.Popen([PYTHON, "-c", SPIN], start_new_session=True) for _ in range(count)]

    def __enter__(self):
        time.sleep(0.2 if self._processes else 0)  # until they spin
        return self

    def __exit__(self, *unused):
        for process in self._processes:
            process.kill()
            process.wait()


def busy_cores(seconds):
    """How many cores others use now."""
    def ticks():
        with open("/proc/stat", encoding="ascii") as f:
            fields = [int(word) for word in f.readline().split()[1:9]]
        return sum(fields) - fields[3] - fields[4]
    before = ticks()
    time.sleep(seconds)
    return (ticks() - before) / os.sysconf("SC_CLK_TCK") / seconds


def wait_for_quiet(seconds):
    """Returns the cores that others use in the end."""
    deadline = time.monotonic() + seconds
    while (busy := busy_cores(0.5)) > 0.2 and time.monotonic() < deadline:
        pass
    return busy


def measure(options, jobs, raw):
    for number in range(options.rounds):
        for neighbours in [int(n) for n in options.neighbours.split(",")]:
            busy = wait_for_quiet(options.quiet)
            with Neighbours(neighbours):
                for size in [int(n) for n in options.bytes.split(",")]:
                    for (name, ranks), job in jobs.items():
                        if size != 4 and isinstance(job, OpenMpi):
                            continue
                        raw.append({"round": number, "name": name, "ranks": ranks, "neighbours": neighbours,
                                    "bytes": size, "busy": round(busy, 2),
                                    **job.turn(options.seconds, options.gap, size)})


def table(raw):
    cases = {}
    for turn in raw:
        cases.setdefault((turn["ranks"], turn["neighbours"], turn["bytes"], turn["name"]), []).append(turn)
    lines = ["ranks  neighbours    bytes  build      " + "".join("%9s" % c for c in COLUMNS) + "   p50 of the turns  others' cores"]
    for (ranks, neighbours, size, name), turns in sorted(cases.items(), key=lambda item: item[0][:3]):
        medians = ["%9.2f" % statistics.median(t[c] for t in turns) for c in COLUMNS]
        spread = "%.1f..%.1f" % (min(t["p50"] for t in turns), max(t["p50"] for t in turns))
        lines.append("%5d %11d %8d  %-10s" % (ranks, neighbours, size, name) + "".join(medians) + "   %16s" % spread +
                     "  %12.1f" % statistics.median(t["busy"] for t in turns))
    return "\n".join(lines)


def main():
    options = arguments()
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:options.cores])
    scratch = tempfile.mkdtemp(prefix="maypole-neighbour-")
    jobs, raw = {}, []
    try:
        for ranks in [int(n) for n in options.ranks.split(",")]:
            for build in options.build:
                name, _, directory = build.partition("=")
                jobs[name, ranks] = Job(os.path.abspath(directory), ranks, scratch)
            if options.openmpi:
                jobs["Open MPI", ranks] = OpenMpi(os.path.abspath(options.openmpi), ranks)
        measure(options, jobs, raw)
    finally:
        for job in jobs.values():
            job.stop()
        shutil.rmtree(scratch)
    print("Linux %s, %d cores, load %s" % (os.uname().release, options.cores, os.getloadavg()))
    print(table(raw))
    if options.json:
        with open(options.json, "w", encoding="utf-8") as f:
            json.dump(raw, f)


if __name__ == "__main__":
    main()
