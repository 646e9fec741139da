"""The Keras examples on Fashion-MNIST: ranks on several nodes reach the accuracy of one process.

All train on the same global batches. In the simple example only rounding differs (Keras orders its batches differently,
and so the sums). In the advanced example normalization sees only the images of its own rank, and dropout differs; the
accuracy may differ by 3 percentage points, after few steps.
"""

import os
import re
import unittest

import environments
import harness

class KerasExamplesTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        if not os.path.exists("/usr/share/datasets/fashion-mnist"):
            raise unittest.SkipTest("dataset-fashion-mnist is not installed")

    def train(self, environment, backend, script, np, nodes, *args):
        """The test accuracy, in percent."""
        python = environments.python(environment)
        command = [python, os.path.join(harness.ROOT, "examples", script), "--limit", "8000", *map(str, args)]
        env = {"KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3", "TF_NUM_INTRAOP_THREADS": "1"}
        with harness.Job(np=np, nodes=nodes, command=command, env=env) as job:
            job.check_ok(500)
            said = job.stdout()
            if "--save" in args:
                self.assertTrue(os.path.exists(os.path.join(job.dir, args[args.index("--save") + 1])))
        self.assertIn("ranks: %d," % np, said)
        accuracy = float(re.search(r"\btest accuracy: (\S+) %", said).group(1))
        print(environment, script, "%d nodes, %d ranks: accuracy %.2f %%, training %s s" %
              (nodes, np, accuracy, re.search(r"training time: (\S+) s", said).group(1)), flush=True)
        return accuracy

    def compare(self, points, environment, backend, script, jobs, batch, rate, *args):
        """points: how far apart, in percent points. jobs: (ranks, nodes) of each; batch, rate: of one process."""

        def run(np, nodes):
            return self.train(environment, backend, script, np, nodes, "--batch-size", batch // np, "--lr", rate / np,
                              *args)

        alone = run(1, 1)
        self.assertGreater(alone, 70.0)
        for np, nodes in jobs:
            self.assertLess(abs(run(np, nodes) - alone), points)

    def test_simple(self):
        self.compare(1.0, "tensorflow-2.18", "tensorflow", "keras_fashion_mnist.py", [(4, 2)], 64, 0.002, "--save",
                     "m.keras")

    def test_simple_on_torch(self):
        self.compare(1.0, "keras-torch", "torch", "keras_fashion_mnist.py", [(4, 2)], 64, 0.002)

    def test_simple_on_jax(self):
        self.compare(1.0, "jax-0.10", "jax", "keras_fashion_mnist.py", [(4, 2)], 64, 0.002)

    def test_advanced(self):
        self.compare(3.0, "tensorflow-2.18", "tensorflow", "keras_fashion_mnist_advanced.py", [(4, 2), (8, 4)], 128,
                     0.04, "--epochs", "4", "--checkpoint", "best.keras")


if __name__ == "__main__":
    unittest.main()
