"""The common part of the tests of mpirun, torchrun and plain python3.

    class MyTest(start_fixture.StartTest):
        def test_it(self):
            self.start(["mpirun", "-np", "2"] + start_fixture.program("sum"))
            self.finish()
            self.check_places(2, [[0, 1]])

Each test has its own directory, which is also the ranks' bootstrap directory
(MAYPOLE_RUNTIME_DIR), so it can find leftovers.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest

import harness

MPIRUN = shutil.which("mpirun", path=harness.environment()["PATH"])
DAEMONS = ("maypole-worker", "maypole-coordinator", "maypolerun")


def program(mode, root=harness.ROOT):
    return [harness.PYTHON, os.path.join(root, "tests", "start", "place_program.py"), mode]


def mpirun(ranks, *args):
    return [MPIRUN, "--allow-run-as-root", "--oversubscribe", "-np", str(ranks)] + list(args)


def torchrun(ranks, *args):
    """`ranks` of one node, and then a program without its interpreter."""
    # Output of each rank is named for it: torch 1.13 on Python 3.11 fails with
    # its own default.
    named = ",".join("%d:1" % r for r in range(ranks))
    return [harness.PYTHON, "-m", "torch.distributed.run", "--nproc_per_node", str(ranks),
            "--redirects", named, "--tee", named] + list(args)


class StartTest(unittest.TestCase):
    def setUp(self):
        self.dir = self.make_directory()
        os.chmod(self.dir, 0o777)
        self.runtime = os.path.join(self.dir, "run")
        os.mkdir(self.runtime)
        os.chmod(self.runtime, 0o1777)
        self.processes = []
        self._old = signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))

    def make_directory(self):
        # Short: unix sockets lie in here.
        return tempfile.mkdtemp(prefix="ms", dir="/tmp")

    def tearDown(self):
        for process in self.processes:
            harness.kill_tree(process)
        for pid in self.daemons():
            harness.kill(pid)
        if self._failed():
            sys.stderr.write("--- output of %s\n%s\n" % (self.id(), self.output()[-6000:]))
        shutil.rmtree(self.dir, ignore_errors=True)
        signal.signal(signal.SIGTERM, self._old)

    def _failed(self):
        outcome = self._outcome
        result = outcome.result
        return any(test is self for test, _ in result.failures + result.errors)

    def environment(self, extra=None, root=harness.ROOT):
        env = {"MAYPOLE_TEST_DIR": self.dir, "MAYPOLE_RUNTIME_DIR": self.runtime, "TMPDIR": self.dir,
               "MAYPOLE_START_TIMEOUT": "60"}
        env.update(extra or {})
        return harness.environment(env, root)

    def start(self, argv, env=None, root=harness.ROOT, **kwargs):
        with open(os.path.join(self.dir, "output"), "ab") as output:
            process = subprocess.Popen(argv, env=self.environment(env, root), stdout=output, stderr=output,
                                       stdin=subprocess.DEVNULL, cwd=self.dir, **kwargs)
        self.processes.append(process)
        return process

    def finish(self, seconds=90, status=0):
        """Checks that all started processes end with this status and leave nothing behind."""
        for process in self.processes:
            try:
                self.assertEqual(process.wait(timeout=seconds), status, self.output())
            except subprocess.TimeoutExpired:
                raise AssertionError("%s did not end in %g s:\n%s" % (process.args, seconds, self.output())) from None
        self.check_nothing_left()

    def output(self):
        with open(os.path.join(self.dir, "output"), encoding="utf-8", errors="replace") as f:
            return f.read()

    def record(self, name):
        with open(os.path.join(self.dir, name)) as f:
            return json.load(f)

    def await_record(self, name, seconds=60):
        harness.wait_until(lambda: os.path.exists(os.path.join(self.dir, name)), seconds, name)
        return self.record(name)

    def touch(self, name):
        with open(os.path.join(self.dir, name), "w"):
            pass

    def daemons(self):
        """{pid: argv} of daemons and services that were started in our directory."""
        found = {}
        for pid, (_, argv) in harness.processes().items():
            if os.path.basename(argv[0]) not in DAEMONS:
                continue
            try:
                with open("/proc/%d/environ" % pid, "rb") as f:
                    environ = f.read().split(b"\0")
            except OSError:
                continue
            if b"MAYPOLE_TEST_DIR=" + self.dir.encode() in environ:
                found[pid] = argv
        return found

    def check_nothing_left(self, seconds=10):
        harness.wait_until(lambda: not self.daemons(), seconds, "daemons to end")
        harness.wait_until(lambda: not os.listdir(self.runtime), seconds, "directories to go")

    def check_places(self, size, nodes):
        """nodes: the ranks of each node, in the order of local ranks."""
        for node, ranks in enumerate(nodes):
            for local, rank in enumerate(ranks):
                seen = self.record("rank.%d.json" % rank)
                self.check_place(seen, rank=rank, size=size, local_rank=local, local_size=len(ranks),
                                 cross_rank=node, cross_size=len(nodes))

    def check_place(self, seen, size, **places):
        self.assertEqual({name: seen[name] for name in places}, places)
        self.assertEqual(seen["size"], size)
        total = float(sum(range(size)))
        self.assertEqual(seen["sums"], [total + size, total, total, list(range(size))])
