"""Elastic training with Keras: a rank is killed in fit(), another takes its place, and the weights are one process'.

With several passes, the rank is also killed between the passes whose gradients are applied as one.
"""

import os
import signal
import sys
import unittest

import elastic_jobs
import environments
import harness

ENVIRONMENTS = {"keras-torch": "torch", "jax-0.10": "jax", "tensorflow-2.18": "tensorflow",
                "tensorflow-2.15": "tensorflow"}


class KerasElasticTest(elastic_jobs.ElasticJobTest):
    def check(self, environment, passes=1):
        harness.PYTHON = environments.python(environment)
        elastic_jobs.PROGRAM = os.path.join(harness.ROOT, "tests/frameworks/keras_elastic.py")
        job = self.start("-np", "2", "--min-np", "1", "--blacklist-cooldown-range", "1", "1",
                         KERAS_BACKEND=ENVIRONMENTS[environment], TF_CPP_MIN_LOG_LEVEL="3",
                         KERAS_PASSES=str(passes))
        ranks = self.await_ranks(job, 2)
        for _ in range(2):
            victim = self.random.choice(sorted(ranks))
            os.kill(victim, signal.SIGKILL)
            harness.wait_until(lambda pid=victim: not harness.alive(pid), 30, "the end of a killed process")
            after = self.await_ranks(job, 2)
            self.assertEqual(len(ranks & after), 1)  # the survivor has kept its process
            ranks = after
        self.finish(job, 2)

    def test_rates_of_each_rank(self):
        for environment in ("keras-torch", "jax-0.10", "tensorflow-2.18"):
            harness.PYTHON = environments.python(environment)
            elastic_jobs.PROGRAM = os.path.join(harness.ROOT, "tests/frameworks/keras_elastic.py")
            job = self.start("-np", "2", "--min-np", "2", "--reset-limit", "1", KERAS_OWN_RATE="1",
                             KERAS_BACKEND=ENVIRONMENTS[environment], TF_CPP_MIN_LOG_LEVEL="3")
            self.assertEqual(job.process.wait(200), 1, job.stderr())
            self.assertRegex(job.stderr(), "ValueError: DistributedOptimizer: at the (beginning|end) of .*the ranks have "
                                           "different state of the optimizer, '(SGD|sgd)/learning_rate': 0.0\d+ on rank 0 and 0.0\d+ on rank 1")

    def test_torch(self):
        self.check("keras-torch")

    def test_jax(self):
        self.check("jax-0.10")

    def test_tensorflow(self):
        self.check("tensorflow-2.18")

    def test_passes_of_torch(self):
        self.check("keras-torch", passes=2)

    def test_passes_of_jax(self):
        self.check("jax-0.10", passes=2)

    def test_passes_of_tensorflow(self):
        self.check("tensorflow-2.18", passes=2)

    def test_passes_of_keras_2(self):
        self.check("tensorflow-2.15", passes=2)


if __name__ == "__main__":
    unittest.main(argv=sys.argv)
