"""Random programs that end in random ways, under load, until one hangs.

Every job runs on one node with two ranks while other processes use all cores.
When a job has made no progress for STILL seconds, the stacks and the output of
all its processes are printed, and the test fails. Not part of the plain run
(long):

    bazel test -c opt --test_output=streamed --test_env=MAYPOLE_TEST_SECONDS=600 //tests/torture:torture_test

MAYPOLE_TEST_SECONDS: duration (60); MAYPOLE_TEST_SEED: seed of the first job;
MAYPOLE_TEST_LOAD: number of busy processes (two for each core).
"""

import os
import random
import subprocess
import sys
import time
import unittest

import harness

SECONDS = float(os.environ.get("MAYPOLE_TEST_SECONDS", "60"))
SEED = int(os.environ.get("MAYPOLE_TEST_SEED") or random.SystemRandom().randrange(1, 10**9))
LOAD = int(os.environ.get("MAYPOLE_TEST_LOAD") or 2 * os.cpu_count())
STILL = 30
BUSY = "x = 0\nwhile True: x += 1"


class Load:
    """Busy processes at the priority of the jobs."""

    def __init__(self, processes):
        self.processes = [subprocess.Popen([harness.PYTHON, "-c", BUSY]) for _ in range(processes)]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.processes:
            process.kill()
            process.wait()


def stacks(pids):
    """The stacks of all threads of the processes, by gdb."""
    table = harness.processes()
    for pid in pids:
        argv = table.get(pid, (0, ["gone"]))[1]
        print("=== pid %d: %s" % (pid, " ".join(argv)), flush=True)
        try:
            with open("/proc/%d/wchan" % pid) as f:
                print("wchan %s" % f.read(), flush=True)
            subprocess.run(["gdb", "-p", str(pid), "-batch", "-nx", "-ex", "set pagination off",
                            "-ex", "thread apply all bt"], stdin=subprocess.DEVNULL, stdout=sys.stdout,
                           stderr=subprocess.DEVNULL, timeout=60)
        except (OSError, subprocess.TimeoutExpired) as error:
            print("no stack: %s" % error, flush=True)


class TortureTest(unittest.TestCase):
    def moves(self, job):
        """A value that changes while the job makes progress."""
        def size(name):
            try:
                return os.path.getsize(os.path.join(job.dir, name))
            except OSError:
                return -1
        return [size(n) for n in ("moves.0", "moves.1", "stdout", "stderr")] + sorted(
            harness.descendants(job.process.pid))

    def play(self, seed):
        program = os.path.join(harness.ROOT, "tests", "torture", "exits.py")
        with harness.Job(np=2, command=[harness.PYTHON, program, str(seed)], launcher_args=["--verbose"]) as job:
            seen, since = None, time.monotonic()
            while job.process.poll() is None:
                now = self.moves(job)
                if now != seen:
                    seen, since = now, time.monotonic()
                if time.monotonic() - since > STILL:
                    stacks([job.process.pid] + harness.descendants(job.process.pid))
                    self.fail("seed %d: nothing has moved for %d s" % (seed, STILL))
                time.sleep(0.05)
            if job.process.returncode != 0:
                self.fail("seed %d: exit status %d" % (seed, job.process.returncode))

    def test_no_job_stands_still(self):
        end, seed = time.monotonic() + SECONDS, SEED
        with Load(LOAD):
            while time.monotonic() < end:
                self.play(seed)
                seed += 1
        print("seeds %d to %d: %d jobs" % (SEED, seed - 1, seed - SEED), flush=True)


if __name__ == "__main__":
    unittest.main()
