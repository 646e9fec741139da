"""maypole.jax with each JAX of environments.py, on real jobs: by value, a lost rank, elastic training, the example.

The checks on the ranks are in tests/programs/jax.
"""

import glob
import json
import os
import re
import subprocess
import tempfile
import unittest

import environments
import harness

PROGRAMS = os.path.join(harness.ROOT, "tests/programs/jax")
EXAMPLE = os.path.join(harness.ROOT, "examples/jax_fashion_mnist.py")
BENCH = os.path.join(harness.ROOT, "tests/bench/jax_bench.py")
CHECKS = 31  # of main.py
ABORTED = 10
QUIET = {"JAX_PLATFORMS": "cpu"}


class JaxTest(unittest.TestCase):
    """Of one JAX; see the end of this file."""

    NAME = None

    @classmethod
    def setUpClass(cls):
        cls.python = environments.python(cls.NAME)

    def job(self, np, nodes, *command):
        return harness.Job(np=np, nodes=nodes, command=[self.python, *command], env=QUIET)

    def checked(self, np, nodes):
        with self.job(np, nodes, os.path.join(PROGRAMS, "main.py")) as job:
            job.check_ok(400)
            for record in job.records():
                self.assertEqual(len(record["checks"]), CHECKS)
                self.assertTrue(record["version"].startswith(self.NAME.partition("-")[2]), record["version"])

    def test_two_ranks(self):
        self.checked(2, 1)

    def test_two_ranks_on_two_nodes(self):
        self.checked(2, 2)

    def test_four_ranks_on_two_nodes(self):
        self.checked(4, 2)

    def test_a_lost_rank_ends_the_wait(self):
        with self.job(2, 1, os.path.join(PROGRAMS, "lost.py")) as job:
            self.assertNotEqual(job.wait(100), 0)
            record = job.record(0)
        self.assertRegex(record["error"], r"^ABORTED: maypole: allreduce \"?'?waits.*rank 1 ")
        self.assertIn("rank 1 ", record["internal"])
        self.assertEqual(record["status"], ABORTED)
        self.assertIsNone(record["other"])

    def test_elastic(self):
        with tempfile.TemporaryDirectory(dir="/tmp") as directory:
            argv = [os.path.join(harness.ROOT, harness.PROGRAMS[0]), "-np", "2", "--min-np", "2",
                    "--blacklist-cooldown-range", "1", "1", self.python,
                    os.path.join(PROGRAMS, "elastic.py"), directory]
            done = subprocess.run(argv, env=harness.environment(QUIET), capture_output=True, text=True, timeout=300)
            self.assertEqual(done.returncode, 0, done.stderr[-6000:])
            self.assertIn("was killed by signal 9 (Killed); the job goes on", done.stderr)
            ends = []
            for path in glob.glob(directory + "/end.*.json"):
                with open(path) as f:
                    ends.append(json.load(f))
        self.assertEqual(len(ends), 2)
        self.assertEqual(ends[0]["weights"], ends[1]["weights"])
        for end in ends:
            self.assertLess(end["apart"], 1e-4)
        # One has made all steps, and again those after the last commit (and has begun some that failed); the other came
        # with that commit.
        few, many = sorted(end["steps"] for end in ends)
        self.assertEqual(few, 40 - 15)
        self.assertIn(many, range(40 + 2, 40 + 4))
        self.assertEqual(sorted(end["resets"] for end in ends), [0, 1])

    def test_without_a_library_the_import_says_so(self):
        with tempfile.TemporaryDirectory(dir="/tmp") as directory:
            os.symlink(harness.LIBRARY, os.path.join(directory, "libmaypole.so"))
            env = harness.environment({"MAYPOLE_LIBRARY": os.path.join(directory, "libmaypole.so")})
            done = subprocess.run([self.python, "-c", "import maypole.jax"], env=env, capture_output=True, text=True)
        self.assertRegex(done.stderr, r"ImportError: there is no .*/libmaypole_jax.so: this installation of Maypole")

    def train(self, np, nodes, *args):
        """(losses of the epochs, final accuracy in percent)"""
        if not os.path.exists("/usr/share/datasets/fashion-mnist"):
            self.skipTest("dataset-fashion-mnist is not installed")
        with self.job(np, nodes, EXAMPLE, *args) as job:
            job.check_ok(400)
            said = job.stdout()
        self.assertIn(f"ranks: {np},", said)
        print(said)
        return ([float(loss) for loss in re.findall(r"loss (\S+),", said)],
                float(re.findall(r"test accuracy: (\S+) %", said)[-1]))

    def test_the_example_trains_as_one_process(self):
        one = self.train(1, 1, "--limit", "6000", "--batch-size", "256", "--lr", "0.05")
        four = self.train(4, 2, "--limit", "6000")
        # Sums are rounded in another order, which grows from step to step.
        for mine, theirs, apart in zip(four[0], one[0], (1e-5, 1e-3)):
            self.assertLess(abs(mine - theirs), apart * theirs)
        self.assertLess(abs(one[1] - four[1]), 0.5)
        self.assertGreater(four[1], 65)


    def test_twice_as_fast_as_jax_alone(self):
        with tempfile.TemporaryDirectory(dir="/tmp") as directory:
            figures = os.path.join(directory, "figures.json")
            with self.job(2, 1, BENCH, "--rounds", "3", "--json", figures) as job:
                job.check_ok(400)
                print(job.stdout())
            with open(figures) as f:
                rows = {row["case"]: row["us"] for row in json.load(f)["rows"]}
        gradients = rows["ResNet-50's gradients"]
        ours = min(gradients["maypole"], gradients["maypole eager"])
        self.assertGreater(gradients["jax"], 2 * ours)


for _name in environments.names("jax"):
    _class = "Jax" + _name.partition("-")[2].replace(".", "_") + "Test"
    globals()[_class] = type(_class, (JaxTest,), {"NAME": _name})
del JaxTest, _name, _class


if __name__ == "__main__":
    unittest.main()
