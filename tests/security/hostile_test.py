"""Ranks that overwrite their board and send garbage harm only their own job.

One agent, as root for several users if the test is root: a job whose values are
checked runs while ranks of another user attack. The attacks are in
tests/fuzz/hostile_ranks.cc.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest
import urllib.request

import daemons
import harness

HONEST_UID, HOSTILE_UID = 65533, 65532  # in no /etc/passwd
ROOT = os.geteuid() == 0
LONG = "--long" in sys.argv
ROUNDS = 4000 if LONG else 800


class Agents(daemons.Daemons):
    """Daemons that all users may use, with the addresses of the agents' metrics."""

    def __init__(self, nodes):
        super().__init__(nodes)
        os.chmod(self.dir, 0o755)
        self.agent_metrics = []

    def start_worker(self, node, flags):
        flags = [f for f in flags if not f.startswith("--metrics=")]
        self.agent_metrics.append(self.daemon(
            "worker/maypole-worker",
            flags + ["--network=127.0.0.1", "--metrics=127.0.0.1:0", "--log_level=info"])["metrics"])

    def sample(self, node, name):
        """The sum of a metric over its labels; also shows that the agent answers."""
        with urllib.request.urlopen("http://%s/metrics" % self.agent_metrics[node], timeout=10) as reply:
            text = reply.read().decode()
        found = re.findall(r"^%s(?:{[^}]*})? (\S+)$" % name, text, re.MULTILINE)
        return sum(float(x) for x in found)


def as_user(uid):
    if not ROOT:
        return []
    return ["setpriv", "--reuid=%d" % uid, "--regid=%d" % uid, "--clear-groups"]


class HostileTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.root = harness.public_copy()
        cls.addClassCleanup(shutil.rmtree, cls.root, True)
        cls.program = os.path.join(cls.root, "hostile_ranks")
        shutil.copy(os.path.join(harness.ROOT, "tests/fuzz/hostile_ranks"), cls.program)
        os.chmod(cls.program, 0o755)

    def setUp(self):
        self.dir = tempfile.mkdtemp(prefix="mph", dir="/tmp")
        os.chmod(self.dir, 0o777)
        self.addCleanup(shutil.rmtree, self.dir, True)
        self.processes = []
        self.addCleanup(self.end_all)

    def end_all(self):
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.wait()
            process.stdout.close()

    def start(self, argv, uid, env=None):
        process = subprocess.Popen(
            as_user(uid) + argv, env=harness.environment(env, self.root), cwd=self.dir,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.processes.append(process)
        return process

    def rank(self, agents, job, rank, size, nodes=1, seconds=60, uid=HONEST_UID):
        local = size // nodes
        directory = os.path.join(self.dir, job)
        os.makedirs(directory, exist_ok=True)
        os.chmod(directory, 0o777)
        return self.start(
            [harness.PYTHON, os.path.join(self.root, "tests/programs/honest.py"), str(seconds)], uid, {
                "MAYPOLE_RANK": str(rank), "MAYPOLE_SIZE": str(size),
                "MAYPOLE_LOCAL_RANK": str(rank % local), "MAYPOLE_LOCAL_SIZE": str(local),
                "MAYPOLE_CROSS_RANK": str(rank // local), "MAYPOLE_CROSS_SIZE": str(nodes),
                "MAYPOLE_AGENT": agents.sockets[rank // local], "MAYPOLE_JOB": job,
                "MAYPOLE_TOKEN": "honest", "MAYPOLE_TEST_DIR": directory,
                "MAYPOLE_AGENT_UID": str(os.geteuid())})

    def hostile(self, agents, rounds, seed, nodes=1):
        return self.start([self.program, "--agents=" + ",".join(agents.sockets[:nodes]),
                           "--rounds=%d" % rounds, "--seed=%d" % seed], HOSTILE_UID)

    def finish(self, process, seconds):
        try:
            out, _ = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            self.fail("%s did not end within %g s" % (process.args, seconds))
        return out

    def check_executors(self, agents):
        for node in range(agents.nodes):
            self.assertEqual(agents.sample(node, "maypole_executor_crashes_total"), 0)
        log = agents.log()
        self.assertNotRegex(log, r"event=executor_ended .*killed by")
        self.assertNotIn("event=executor_killed", log)
        self.assertNotIn("broke the protocol", log)
        for worker in agents.workers:
            self.assertTrue(harness.alive(worker))

    def disturb(self, nodes, rounds, seed):
        with Agents(nodes) as agents:
            size = 2 * nodes
            honest = [self.rank(agents, "honest", r, size, nodes, seconds=600) for r in range(size)]
            for r in range(size):
                harness.wait_until(lambda: os.path.exists(os.path.join(self.dir, "honest", "going.%d" % r)), 200,
                                   "the honest job to go")
            out = self.finish(self.hostile(agents, rounds, seed, nodes), 400)
            said = dict(word.split("=") for word in out.split() if "=" in word)
            self.assertGreaterEqual(int(said.get("rounds", 0)), rounds, out)
            self.assertGreater(int(said["epochs"]), 0, out)
            self.check_executors(agents)
            # The job has run all the time, still runs, and ends without an error.
            with open(os.path.join(self.dir, "honest", "end"), "w"):
                pass
            for process in honest:
                out = self.finish(process, 60)
                self.assertEqual(process.returncode, 0, out)
            # The agent takes new jobs, also of the hostile user.
            for uid, job in ((HONEST_UID, "next"), (HOSTILE_UID, "reformed")):
                ranks = [self.rank(agents, job, r, 2, seconds=1, uid=uid) for r in range(2)]
                for process in ranks:
                    out = self.finish(process, 60)
                    self.assertEqual(process.returncode, 0, out)
            self.check_executors(agents)
            return said

    def test_one_node(self):
        self.disturb(1, ROUNDS, 1)

    def test_two_nodes(self):
        self.disturb(2, ROUNDS, 2)

    def test_a_rank_under_honest_peers(self):
        """The peers may fail, wait or get wrong values (same user, same job), but must not be ended by a signal."""
        with Agents(1) as agents:
            for seed in range(1, 4):
                job = "under%d" % seed
                honest = self.rank(agents, job, 0, 2, seconds=8)
                bad = self.start([self.program, "--agents=" + agents.agents, "--job=" + job, "--under=1",
                                  "--seed=%d" % seed], HONEST_UID, {"MAYPOLE_TOKEN": "honest"})
                try:
                    honest.wait(15)
                except subprocess.TimeoutExpired:
                    honest.terminate()  # it waits for ever
                out = self.finish(honest, 20)
                self.assertIn(honest.returncode, (0, 1, -signal.SIGTERM), out)
                self.assertNotIn("Segmentation", out)
                bad.terminate()
                self.finish(bad, 20)
                self.check_executors(agents)


if __name__ == "__main__":
    unittest.main(argv=[a for a in sys.argv if a != "--long"])
