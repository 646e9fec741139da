"""The collectives of maypole.tensorflow with each TensorFlow: values, gradients, errors, orders; the library."""

import os
import re
import subprocess
import unittest

import environments
import harness

QUIET = {"TF_CPP_MIN_LOG_LEVEL": "2", "TF_ENABLE_ONEDNN_OPTS": "0"}
LIBRARY = os.path.join(harness.ROOT, "client", "libmaypole_tensorflow.so")


class CollectivesTest(unittest.TestCase):
    """Of one TensorFlow; see the end of this file."""

    NAME = None

    @classmethod
    def setUpClass(cls):
        cls.python = environments.python(cls.NAME)

    def job(self, program, np, nodes=1):
        command = [self.python, os.path.join(harness.ROOT, "tests/programs/tensorflow", program)]
        return harness.Job(np=np, nodes=nodes, command=command, env=QUIET)

    def values(self, np, nodes):
        with self.job("collectives.py", np, nodes) as job:
            job.check_ok(400)
            records = job.records()
        for record in records:
            self.assertEqual(record["version"].rpartition(".")[0], self.NAME.partition("-")[2])
            self.assertGreater(record["compared"], 250)

    def test_values_on_two_ranks(self):
        self.values(2, 1)

    def test_values_on_two_nodes(self):
        self.values(4, 2)

    def test_crossed_orders(self):
        with self.job("crossed_orders.py", 2) as job:
            job.check_ok(400)
            records = job.records()
        sums = [2.0 * i for i in range(200)]
        for record in records:
            self.assertEqual((record["function"], record["session"]), (sums, sums))
            self.assertEqual(record["ran"], 200)  # nobody used these results

    def test_a_lost_rank(self):
        with self.job("lost_rank.py", 2) as job:
            self.assertNotEqual(job.wait(200), 0)
            record = job.record(0)
        ways = len(record["kinds"])
        self.assertIn(ways, (2, 3))
        self.assertEqual(record["kinds"], ["UnknownError"] * ways)
        self.assertEqual(len(record["internal"]), ways)
        for text in record["internal"]:
            self.assertRegex(text, "rank 1")
        for text in record["texts"]:
            self.assertRegex(text, "maypole: .*rank 1")


class BenchTest(unittest.TestCase):
    def test_resnet50_is_faster_than_multi_worker_mirrored(self):
        bench = os.path.join(harness.ROOT, "tests/bench/tensorflow_bench.py")
        command = [environments.python("tensorflow-2.18"), bench, "--rounds", "5"]
        with harness.Job(np=2, command=command, env=QUIET) as job:
            job.check_ok(400)
            said = job.stdout()
        print(said)
        lines = re.findall(r"((?:Maypole|MultiWorkerMirrored), \w+)( .*)", said)
        ms = {name: float(line.split()[-1]) for name, line in lines}
        ours = min(ms["Maypole, separate"], ms["Maypole, grouped"])
        theirs = min(ms["MultiWorkerMirrored, separate"], ms["MultiWorkerMirrored, grouped"])
        self.assertGreater(theirs, 2 * ours)


class LibraryTest(unittest.TestCase):
    def test_it_needs_only_libc(self):
        said = subprocess.run(["readelf", "-dW", "--dyn-syms", LIBRARY], check=True, capture_output=True,
                              text=True).stdout
        needed = set(re.findall(r"\(NEEDED\).*\[(.*)\]", said))
        self.assertLessEqual(needed, {"libc.so.6", "ld-linux-x86-64.so.2"})
        exported = [line.split()[-1] for line in said.splitlines()
                    if " GLOBAL DEFAULT " in line and " UND " not in line]
        self.assertTrue(exported)
        for name in exported:
            self.assertTrue(name.startswith("maypole_tensorflow_"), name)


for _name in environments.names("tensorflow"):
    _class = "Collectives" + _name.partition("-")[2].replace(".", "_") + "Test"
    globals()[_class] = type(_class, (CollectivesTest,), {"NAME": _name})
del CollectivesTest, _name, _class


if __name__ == "__main__":
    unittest.main()
