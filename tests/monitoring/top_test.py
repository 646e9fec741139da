"""maypolectl top: it names the rank for which the other ranks of a job wait, in every tier."""

import glob
import json
import os
import subprocess
import time
import unittest

import harness

CTL = os.path.join(harness.ROOT, "client/ctl/maypolectl")
LATE, SECONDS = 2, 0.05


class TopTest(unittest.TestCase):
    def job(self, nodes, *flags):
        job = harness.Job(np=4, nodes=nodes, program="straggler.py", args=[LATE, SECONDS], launcher_args=list(flags))
        self.addCleanup(job.stop)
        for r in range(4):
            job.await_file("running.%d" % r, 120)
        return job

    def top(self, job, *args):
        secret = glob.glob(os.path.join(job.dir, "**", "secret"), recursive=True)[0]
        said = subprocess.run(
            [CTL, "--coordinator", job.endpoints()["admin"], "--secret_file", secret, "top", *args],
            env=harness.environment(), capture_output=True, text=True, timeout=60)
        self.assertEqual(said.returncode, 0, said.stderr)
        return said.stdout

    def looks(self, job, looks):
        """The job's status at each look, and {rank: its status} of each."""
        out = []
        for line in self.top(job, "--json", "--looks", str(looks)).splitlines():
            if line:
                status = json.loads(line)["jobs"][0]
                out.append((status, {r["rank"]: r for n in status["nodes"] for r in n["rank_status"]}))
        self.assertEqual(len(out), looks)
        return out

    def check(self, job, nodes, tier):
        began = time.monotonic()
        while True:  # other tests may keep the machine busy for a while
            looks = self.looks(job, 2)
            try:
                self.check_look(*looks[-1], nodes, tier)
                break
            except AssertionError:
                if time.monotonic() > began + 60:
                    raise
        self.assertGreater(time.monotonic() - began, 1)  # a second between two looks
        text = self.top(job, "--looks", "1")
        self.assertRegex(text, r" rank 2 \d\d%\n")
        self.assertRegex(text, r" 2  node%d +\d+ +\d+%% +\d\d%% +#{8,}\n" % (1 if nodes > 1 else 0))
        job.touch("end")
        job.check_ok(60)

    def check_look(self, status, ranks, nodes, tier):
        stats = status["stats"]
        self.assertEqual(stats["nodes"], nodes)
        self.assertEqual(status["tier"], tier)
        self.assertGreater(stats["steps_per_second"], 2)
        self.assertLess(stats["steps_per_second"], 1 / SECONDS * 1.3)
        self.assertGreater(stats["operations_per_second"], 4 * stats["steps_per_second"])
        latest = max(ranks, key=lambda r: ranks[r]["late"])
        self.assertEqual(latest, LATE, ranks)
        self.assertGreater(ranks[LATE]["late"], 0.4, ranks)
        self.assertLess(ranks[LATE]["waiting"], 0.4, ranks)
        for other in set(ranks) - {LATE}:
            self.assertGreater(ranks[other]["waiting"], 0.4, ranks)
        sent = sum(n["sent_per_second"] for n in status["nodes"])
        self.assertAlmostEqual(sent, stats["sent_per_second"], delta=1)
        (self.assertGreater if nodes > 1 else self.assertEqual)(sent, 0)

    def test_negotiated(self):
        self.check(self.job(2, "--coordinator-flag=--frozen_nodes=0"), 2, "negotiated")

    def test_frozen(self):
        self.check(self.job(2), 2, "frozen")

    def test_one_node(self):
        self.check(self.job(1), 1, "")


if __name__ == "__main__":
    unittest.main()
