"""Ranks in containers, simulated by PID namespaces of their own.

The agent lives outside, as on a node whose jobs run in containers that are
given the agent's socket. Needs root.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import unittest

import daemons
import harness

REASON = None if os.geteuid() == 0 else "PID namespaces need root"
WHERE = os.path.join(harness.ROOT, "tests/programs/where.py")
CONTAINER = ["unshare", "--pid", "--mount", "--mount-proc", "--uts", "--ipc", "--fork", "--kill-child"]
# /proc of the outer namespace is hidden, /dev/shm is the container's own.
INSIDE = ["sh", "-c", 'hostname "$0" && mount -t tmpfs none /dev/shm && exec "$@"']


@unittest.skipIf(REASON, REASON)
class ContainersTest(unittest.TestCase):
    def setUp(self):
        self.dir = tempfile.mkdtemp(prefix="mpc", dir="/tmp")
        self.addCleanup(shutil.rmtree, self.dir, True)

    def environment(self, d, rank, size, nodes=1):
        local = size // nodes
        return harness.environment({
            "MAYPOLE_RANK": str(rank), "MAYPOLE_SIZE": str(size), "MAYPOLE_LOCAL_RANK": str(rank % local),
            "MAYPOLE_LOCAL_SIZE": str(local), "MAYPOLE_JOB": "boxes", "MAYPOLE_TOKEN": "t",
            "MAYPOLE_AGENT": d.sockets[rank // local], "MAYPOLE_TEST_DIR": self.dir})

    def start(self, d, rank, size, nodes=1, contained=True, go=()):
        box = CONTAINER + INSIDE + ["box%d" % rank] if contained else []
        process = subprocess.Popen(box + [harness.PYTHON, WHERE, self.dir, *go],
                                   env=self.environment(d, rank, size, nodes), stdin=subprocess.DEVNULL,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.addCleanup(harness.end, process)
        return process

    def check_sums(self, processes):
        for process in processes:
            _, errors = process.communicate(timeout=60)
            self.assertEqual(process.returncode, 0, errors)
        size = len(processes)
        for rank in range(size):
            with open(os.path.join(self.dir, "rank.%d.json" % rank)) as f:
                record = json.load(f)
            self.assertEqual((record["rank"], record["sum"]), (rank, size * (size + 1) / 2))

    def test_each_rank_in_its_own(self):
        with daemons.Daemons(1) as d:
            self.check_sums([self.start(d, rank, 3) for rank in range(3)])

    def test_over_two_nodes(self):
        with daemons.Daemons(2) as d:
            self.check_sums([self.start(d, rank, 4, nodes=2) for rank in range(4)])

    def test_some_inside_some_outside(self):
        with daemons.Daemons(1) as d:
            self.check_sums([self.start(d, rank, 3, contained=rank > 0) for rank in range(3)])

    def test_all_ranks_in_one(self):
        with daemons.Daemons(1) as d:
            script = " & ".join("MAYPOLE_RANK=%d MAYPOLE_LOCAL_RANK=%d %s %s" % (r, r, harness.PYTHON, WHERE)
                                for r in range(3))
            done = subprocess.run(CONTAINER + ["sh", "-c", script + " & wait"], env=self.environment(d, 0, 3),
                                  capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(len(re.findall("sum 6", done.stdout)), 3, done.stdout + done.stderr)

    # The death is detected outside and named; pids inside mean nothing to the others.
    def test_death_in_a_container(self):
        with daemons.Daemons(1) as d:
            processes = [self.start(d, rank, 3, go=["go"]) for rank in range(3)]
            for rank in range(3):
                harness.wait_until(lambda: os.path.exists(os.path.join(self.dir, "here.%d" % rank)), 30,
                                   "rank %d" % rank)
            (victim,) = [pid for pid, (_, argv) in harness.processes().items()
                         if WHERE in argv and argv[0] == harness.PYTHON and self.rank_of(pid) == "1"]
            os.kill(victim, signal.SIGKILL)
            with open(os.path.join(self.dir, "go"), "w"):
                pass
            for rank in (0, 2):
                _, errors = processes[rank].communicate(timeout=30)
                self.assertEqual(processes[rank].returncode, 1)
                self.assertRegex(errors.splitlines()[-1], r"HorovodInternalError: .*rank 1 .*box1")
        print(errors.splitlines()[-1])

    @staticmethod
    def rank_of(pid):
        with open("/proc/%d/environ" % pid, "rb") as f:
            return dict(e.split("=", 1) for e in f.read().decode().split("\0") if "=" in e).get("MAYPOLE_RANK")

    def test_the_agent_inside_the_ranks_outside(self):
        class Inside(daemons.Daemons):
            def daemon(self, program, flags, prefix=()):
                return super().daemon(program, flags, prefix if "coordinator" in program else CONTAINER)

        with Inside(1) as d:
            self.check_sums([self.start(d, rank, 3, contained=False) for rank in range(3)])


@unittest.skipIf(REASON, REASON)
class RootlessTest(unittest.TestCase):
    """Containers started by an ordinary user; the agent is root's, whose uid appears as nobody inside."""

    def setUp(self):
        root, harness.ROOT = harness.ROOT, harness.public_copy()
        self.addCleanup(setattr, harness, "ROOT", root)
        self.addCleanup(shutil.rmtree, harness.ROOT)
        box = ["setpriv", "--reuid=65533", "--regid=65533", "--clear-groups", "unshare", "--user"]
        made = subprocess.run(box + ["true"], capture_output=True, text=True)
        if made.returncode != 0:
            self.skipTest("no user namespaces: " + made.stderr)
        self.box = box

    def run_ranks(self, *flags, env=None):
        """(status, output, the last line of errors) of two ranks."""
        with daemons.Daemons(1) as d:
            os.chmod(d.dir, 0o755)
            processes = []
            for rank in range(2):
                extra = {"MAYPOLE_RANK": str(rank), "MAYPOLE_SIZE": "2", "MAYPOLE_LOCAL_RANK": str(rank),
                         "MAYPOLE_LOCAL_SIZE": "2", "MAYPOLE_JOB": "rootless", "MAYPOLE_TOKEN": "t",
                         "MAYPOLE_AGENT": d.sockets[0], **(env or {})}
                processes.append(subprocess.Popen(
                    self.box + list(flags) + [harness.PYTHON, os.path.join(harness.ROOT, "tests/programs/where.py")],
                    env=harness.environment(extra, harness.ROOT), cwd="/", stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
            ended = []
            for process in processes:
                output, errors = process.communicate(timeout=60)
                ended.append((process.returncode, output, (errors.splitlines() or [""])[-1]))
            return ended

    def test_an_agent_that_looks_like_nobodys(self):
        for status, _, error in self.run_ranks("--map-current-user"):
            self.assertEqual(status, 1)
            self.assertRegex(error, r"runs under uid 65534, which is neither this user's \(65533\) nor root: if you trust "
                                    "it, set MAYPOLE_AGENT_UID=65534")

    def test_trusted(self):
        for flag in ("--map-current-user", "--map-root-user"):
            for status, output, error in self.run_ranks(flag, env={"MAYPOLE_AGENT_UID": "65534"}):
                self.assertEqual(status, 0, error)
                self.assertIn("sum 3", output)


if __name__ == "__main__":
    unittest.main()
