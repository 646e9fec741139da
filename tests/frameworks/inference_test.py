"""docs/inference.md: what a training has saved loads where Maypole cannot be imported, and predicts the same.

The plain run has only TorchTest. For Keras see keras_test.py.
"""

import os
import subprocess
import unittest

import environments
import harness

PROGRAMS = os.path.join(harness.ROOT, "tests/programs/inference")


def check_saved_model(test, python, framework):
    """Trains with two ranks, and loads in a process without Maypole."""
    train, load = (os.path.join(PROGRAMS, "%s_%s.py" % (framework, what)) for what in ("train", "load"))
    with harness.Job(np=2, command=[python, train]) as job:
        job.check_ok(300)
        for record in job.records():
            test.assertLess(sum(record["losses"][-5:]), 0.7 * sum(record["losses"][:5]), record)
        env = {"PATH": "/usr/bin:/bin", "HOME": job.dir, "TF_CPP_MIN_LOG_LEVEL": "3", "JAX_PLATFORMS": "cpu"}
        done = subprocess.run([python, "-I", load, job.dir], env=env, capture_output=True, text=True, timeout=300)
        test.assertEqual(done.stdout.split(), ["equal"], done.stderr[-3000:])


class TorchTest(unittest.TestCase):
    def test_debians(self):
        check_saved_model(self, harness.PYTHON, "torch")


class OthersTest(unittest.TestCase):
    def test_tensorflow(self):
        check_saved_model(self, environments.python("tensorflow-2.18"), "tensorflow")

    def test_jax(self):
        check_saved_model(self, environments.python("jax-0.4.38"), "jax")


if __name__ == "__main__":
    unittest.main()
