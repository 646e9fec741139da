"""maypole.mxnet on MXNet 1.9.1: everything by value, the engine that blocks, and the example as one process trains."""

import os
import re
import subprocess
import unittest

import environments
import harness


class MxnetTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.python = environments.python("mxnet-1.9")

    def check_api(self, np, nodes, **env):
        command = [self.python, os.path.join(harness.ROOT, "tests/programs/mxnet_api.py")]
        with harness.Job(np=np, nodes=nodes, command=command, env=env) as job:
            job.check_ok(180)
            records = job.records()
        for record in records:
            self.assertGreater(record["checks"], 100)
            self.assertLess(max(record["apart"]), 1e-6)
            self.assertLess(record["apart16"], 1e-2)
            self.assertIn("allreduce 'differ': mismatched shapes: rank 0 submitted [1], rank 1 submitted [2]",
                          record["differ"])

    def test_two_ranks(self):
        self.check_api(2, 1)

    def test_two_nodes_of_two_ranks(self):
        self.check_api(4, 2)

    def test_the_engine_that_blocks(self):
        self.check_api(2, 1, MXNET_ENGINE_TYPE="NaiveEngine")

    def test_a_lost_rank(self):
        command = [self.python, os.path.join(harness.ROOT, "tests/programs/mxnet_lost.py")]
        with harness.Job(np=2, command=command) as job:
            self.assertNotEqual(job.wait(60), 0)
            self.assertRegex(job.record(0)["text"], r"allreduce 'lost': rank 1 \(pid \d+")

    def test_another_version_is_one_clear_line(self):
        code = "import mxnet; mxnet.__version__ = '2.0.0'; import maypole.mxnet"
        done = subprocess.run([self.python, "-c", code], env=harness.environment(), capture_output=True, text=True)
        self.assertIn("ImportError: maypole.mxnet works with MXNet 1.9.1, its last version; this is 2.0.0", done.stderr)


class ExampleTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.python = environments.python("mxnet-1.9")

    def train(self, np, nodes, *args):
        """(loss of the first epoch, final accuracy in percent, what was written)"""
        if not os.path.exists("/usr/share/datasets/fashion-mnist"):
            self.skipTest("dataset-fashion-mnist is not installed")
        command = [self.python, os.path.join(harness.ROOT, "examples/mxnet_fashion_mnist.py"), *args]
        with harness.Job(np=np, nodes=nodes, command=command) as job:
            job.check_ok(300)
            said = job.stdout()
        self.assertIn(f"ranks: {np},", said)
        print(said)
        return (float(re.search(r"epoch 1: loss (\S+),", said).group(1)),
                float(re.search(r"\btest accuracy: (\S+) %", said).group(1)))

    def test_four_ranks_on_two_nodes_train_as_one_process(self):
        one = self.train(1, 1, "--limit", "1024", "--epochs", "1", "--batch-size", "256", "--lr", "0.05")
        four = self.train(4, 2, "--limit", "1024", "--epochs", "1")
        self.assertEqual(one, four)  # as printed
        one = self.train(1, 1, "--limit", "12000", "--batch-size", "256", "--lr", "0.05")
        four = self.train(4, 2, "--limit", "12000")
        self.assertAlmostEqual(one[0], four[0], delta=0.01)
        self.assertGreater(four[1], 70)
        self.assertAlmostEqual(one[1], four[1], delta=2)


if __name__ == "__main__":
    unittest.main()
