"""maypole.spark on PyPI's Spark: jobs, elastic jobs, estimators. The programs are in tests/programs/spark.

Needs Java 17: Debian's openjdk-17-jre-headless.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest

import environments
import harness

PROGRAMS = os.path.join(harness.ROOT, "tests/programs/spark")
SHIM = os.path.join(harness.ROOT, "client/python/horovod_shim")
LOCAL = "local[4]"
CLUSTER = "local-cluster[2,2,1024]"


def running(directory):
    """Ranks and daemons of jobs with this TMPDIR: {pid: command line}."""
    found = {}
    for pid, (_, argv) in harness.processes().items():
        line = " ".join(argv)
        is_ours = os.path.basename(argv[0]).startswith("maypole") or "guard.py" in line or "runner import rank" in line
        if is_ours and variables(pid).get("TMPDIR") == directory:
            found[pid] = line
    return found


def variables(pid):
    try:
        with open(f"/proc/{pid}/environ", "rb") as f:
            return dict(entry.decode(errors="replace").partition("=")[::2] for entry in f.read().split(b"\0"))
    except OSError:
        return {}


class SparkTest(unittest.TestCase):
    environment = "spark-3.5"

    @classmethod
    def setUpClass(cls):
        if shutil.which("java") is None:
            raise unittest.SkipTest("there is no java: apt-get install openjdk-17-jre-headless")
        cls.python = environments.python(cls.environment)

    def setUp(self):
        self.dir = tempfile.mkdtemp(prefix="mps", dir="/tmp")
        self.addCleanup(shutil.rmtree, self.dir, ignore_errors=True)
        os.mkdir(os.path.join(self.dir, "tmp"))
        self.env = harness.environment({
            "TMPDIR": os.path.join(self.dir, "tmp"),
            "MAYPOLE_RUNTIME_DIR": os.path.join(self.dir, "tmp"),
            "MAYPOLE_BIN": self.programs(),
            "KERAS_BACKEND": "torch",
            "FASHION_MNIST": os.environ.get("FASHION_MNIST", "/usr/share/datasets/fashion-mnist")
        })
        self.env["PYTHONPATH"] += os.pathsep + os.path.join(harness.ROOT, "examples") + os.pathsep + SHIM
        self.env.pop("XDG_RUNTIME_DIR", None)

    def programs(self):
        """A directory with all programs, as an installation has it."""
        to = os.path.join(self.dir, "bin")
        os.mkdir(to)
        for path in harness.PROGRAMS:
            os.symlink(os.path.join(harness.ROOT, path), os.path.join(to, os.path.basename(path)))
        return to

    def start(self, program, *args):
        return subprocess.Popen([self.python, os.path.join(PROGRAMS, program), *args],
                                env=self.env,
                                cwd=self.dir,
                                stdin=subprocess.DEVNULL,
                                stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE,
                                text=True,
                                start_new_session=True)

    def call(self, program, *args):
        """What the program says, by name. Nothing of Maypole's is left after it."""
        process = self.start(program, *args)
        try:
            out, err = process.communicate(timeout=1500)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        self.assertEqual(process.returncode, 0, err[-4000:])
        said = {}
        for text in re.findall(r"JSON(.*)", out):
            said.update(json.loads(text))
        harness.wait_until(lambda: not running(self.env["TMPDIR"]), 20, "the end of the job's processes")
        left = [name for name in os.listdir(self.env["TMPDIR"]) if name.startswith("maypole")]
        self.assertEqual(left, [])
        return said

    def check_values(self, said):
        results, lines = said
        self.assertEqual(results, [[rank, 4, rank, 1, [10.0] * 3, 7, "yes"] for rank in range(4)])
        self.assertEqual(lines, [f"[{rank}]<stdout>:rank {rank} of 4" for rank in range(4)])

    def check_elastic(self, said, what):
        results, notes = said
        self.assertEqual([result[0] for result in results], [0, 1, 2])
        self.assertEqual({tuple(result[1:3]) for result in results}, {(3, results[0][2])})
        self.assertGreaterEqual(results[0][2], 60)
        # Steps of three ranks, and perhaps of two while the third was replaced.
        self.assertIn(results[0][3], ([3], [2, 3]))
        self.assertEqual(len({result[4] for result in results}), 3)
        self.assertRegex(notes, what)


class RunTest(SparkTest):
    """On threads of one JVM."""

    def test_run(self):
        said = self.call("jobs.py", LOCAL, self.dir, "values", "raises", "rank", "worker", "too_many", "busy", "shim")
        self.check_values(said["values"])
        rank, text, cause, _ = said["raises"]
        self.assertEqual((rank, cause), (1, "KeyError('on purpose')"))
        self.assertRegex(
            text, r"(?s)^rank 1: KeyError: 'on purpose' \(rank 1 \(pid \d+, host \S+\) exited with status 1\)\n\n"
            r"Traceback .*raise KeyError")
        for how, what in (("rank", r"was killed by signal 9 \(Killed\)$"),
                          ("worker", r"was lost with its Spark task: .* \(pid \d+\) has closed: Python worker exited")):
            rank, text, _, seconds = said[how]
            self.assertEqual(rank, 1)
            self.assertRegex(text, r"^rank 1 \(pid \d+, host \S+\) " + what)
            self.assertLess(seconds, 120)
        self.assertEqual(said["too_many"][0], "RuntimeError")
        self.assertRegex(said["too_many"][1],
                         r"num_proc=9 needs 9 slots .* the cluster has 4 slots .*at most 4 processes")
        self.assertRegex(said["busy"], r"did not start within 4 s .*: 0 of 2 tasks are there; the cluster has 4 slots")
        self.assertEqual(said["shim"], [[2.0, "horovod.torch", str(rank)] for rank in range(2)])

    def test_run_elastic(self):
        said = self.call("jobs.py", LOCAL, self.dir, "elastic_rank", "elastic_worker", "after")
        self.check_elastic(said["elastic_rank"], r"was lost: its connection closed without shutdown; continuing")
        self.check_elastic(said["elastic_worker"], r"continuing from the last commit")
        self.assertRegex(said["after"], r"^process \d \(host \S+\) exited with status 3 after its training$")

    def test_the_job_ends_with_the_driver(self):
        driver = self.start("jobs.py", LOCAL, self.dir, "sleeps")
        try:
            harness.wait_until(lambda: len([n for n in os.listdir(self.dir) if n.startswith("pid.")]) == 2, 300,
                               "ranks")
            self.assertTrue(running(self.env["TMPDIR"]))
            driver.kill()
            harness.wait_until(lambda: not running(self.env["TMPDIR"]), 60, "the end of ranks and daemons")
            self.assertEqual([n for n in os.listdir(self.env["TMPDIR"]) if n.startswith("maypole")], [])
        finally:
            os.killpg(driver.pid, signal.SIGKILL)
            driver.communicate()


class ClusterTest(SparkTest):
    """On executors that are processes of their own, with the newest Spark."""

    environment = "spark-4.1"

    def test_executors(self):
        said = self.call("jobs.py", CLUSTER, self.dir, "values", "elastic_worker", "executor")
        self.check_values(said["values"])
        self.check_elastic(said["elastic_worker"], r"continuing from the last commit")
        rank, text, _, _ = said["executor"]
        self.assertEqual(rank, 1)
        # Some versions try the stage again instead of saying why it has failed.
        self.assertRegex(
            text, r"^rank 1 \(pid \d+, host \S+\) was lost with its Spark task: .* has closed: "
            r"(ExecutorLostFailure .*137|it or its executor was killed)")


class EstimatorTest(SparkTest):

    def test_torch(self):
        said = self.call("estimators.py", self.dir, "torch", "torch_columns")
        found = said["torch"]
        losses = [epoch["train"]["loss"] for epoch in found["history"]]
        self.assertEqual(len(losses), 4)
        self.assertLess(losses[-1], 0.7 * losses[0])
        accuracy = found["history"][-1]["validation"]["all_metrics"][0]["group_0_label"]
        self.assertGreater(accuracy, 0.5)
        self.assertLess(found["difference"], 1e-4)
        self.assertEqual(found["columns"], ["pixels", "label", "is_test", "scores"])
        self.assertTrue(found["saved"])
        self.assertAlmostEqual(found["rate"], 0.05)
        self.assertLess(found["continued"][0]["train"]["loss"], losses[1])
        self.assertLess(found["parquet"][0]["train"]["loss"], found["continued"][0]["train"]["loss"])
        self.assertEqual(found["files"], ["checkpoint", "logs"])
        self.assertLess(said["torch_columns"]["difference"], 1e-5)
        self.assertEqual(said["torch_columns"]["types"], {"y__output": "double", "kind__output": "vector"})

    def test_keras(self):
        found = self.call("estimators.py", self.dir, "keras")["keras"]
        losses = found["history"]["loss"]
        self.assertEqual(len(losses), 4)
        self.assertLess(losses[-1], 0.7 * losses[0])
        self.assertGreater(found["history"]["val_accuracy"][-1], 0.5)
        self.assertLess(found["difference"], 1e-4)
        self.assertLess(found["saved"], 1e-6)
        self.assertLess(found["continued"]["loss"][0], losses[1])
        self.assertEqual(found["files"], ["checkpoint.keras", "logs"])


if __name__ == "__main__":
    unittest.main(argv=sys.argv)
