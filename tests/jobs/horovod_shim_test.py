"""Scripts that say `import horovod.torch as hvd`, started with --horovod-shim."""

import os
import tempfile
import unittest

import harness


class HorovodShimTest(unittest.TestCase):
    def run_on(self, np, nodes, script, *args):
        program = os.path.join("horovod", script)
        with harness.Job(np=np, nodes=nodes, program=program, args=args, launcher_args=["--horovod-shim"]) as job:
            job.check_ok(120)
            return job.records()

    def test_names(self):
        for record in self.run_on(3, 2, "names.py"):
            self.assertGreater(record["names"], 60)

    def mnist(self, np, nodes, *args):
        records = self.run_on(np, nodes, "mnist.py", *args)
        for record in records:
            self.assertEqual(record, records[0])  # also the model, bit by bit
        self.assertGreater(records[0]["before"], 2.0)
        self.assertLess(records[0]["loss"], 0.3)
        self.assertGreater(records[0]["accuracy"], 0.95)

    def test_mnist_on_one_node(self):
        self.mnist(2, 1, "--workers=1")

    def test_mnist_on_two_nodes(self):
        self.mnist(4, 2, "--gradient-predivide-factor=2.0")

    def test_mnist_of_three_ranks(self):
        self.mnist(3, 1, "--fp16-allreduce")

    def benchmark(self, np, nodes, *args):
        for record in self.run_on(np, nodes, "synthetic_benchmark.py", *args):
            self.assertTrue(record["equal"])
            self.assertEqual(len(record["losses"]), 8)
            self.assertGreater(min(record["speeds"]), 0)

    def test_synthetic_benchmark(self):
        self.benchmark(2, 1)
        self.benchmark(4, 2, "--fp16-allreduce")
        self.benchmark(3, 1, "--use-adasum")

    def test_adasum(self):
        for np, nodes in ((2, 1), (4, 2), (3, 1)):
            for record in self.run_on(np, nodes, "adasum.py"):
                first, last = record["losses"]
                self.assertTrue(record["equal"])
                self.assertGreater(first, 1.5)
                self.assertLess(last, 0.5)

    def imagenet(self, np, nodes, *args):
        with tempfile.TemporaryDirectory() as checkpoints:
            args = ("--checkpoints", checkpoints) + args
            first = self.run_on(np, nodes, "imagenet.py", "--epochs", "2", *args)
            for record in first:
                self.assertEqual((record["resumed"], record), (0, first[0]))
            last = self.run_on(np, nodes, "imagenet.py", "--epochs", "4", *args)
            for record in last:
                self.assertEqual((record["resumed"], record), (2, last[0]))
            self.assertLess(max(first[0]["apart"], last[0]["apart"]), 1e-9)
            losses = first[0]["losses"] + last[0]["losses"]
            self.assertEqual(len(losses), 4)
            self.assertLess(losses[3], losses[0] * 0.85)
            self.assertAlmostEqual(last[0]["accuracy"], last[0]["accuracy_alone"], places=5)

    def test_imagenet(self):
        self.imagenet(2, 1, "--batches-per-allreduce=2")

    def test_imagenet_on_two_nodes(self):
        self.imagenet(4, 2)

    def test_imagenet_of_three_ranks_in_16_bits(self):
        with tempfile.TemporaryDirectory() as checkpoints:
            records = self.run_on(3, 1, "imagenet.py", "--checkpoints", checkpoints, "--epochs=1", "--fp16-allreduce")
        for record in records:
            self.assertEqual(record, records[0])
        self.assertLess(records[0]["apart"], 0.01)
        self.assertGreater(records[0]["apart"], 1e-9)

    def test_the_shim_is_not_there_by_default(self):
        code = "import horovod"
        with harness.Job(np=1, command=[harness.PYTHON, "-c", code]) as job:
            self.assertEqual(job.wait(60), 1)
            self.assertIn("No module named 'horovod'", job.stderr())
        with harness.Job(np=1, command=[harness.PYTHON, "-c", code],
                         launcher_args=["--horovod-shim=/nowhere"]) as job:
            self.assertEqual(job.wait(60), 2)
            self.assertIn("no package horovod is in this directory", job.stderr())


if __name__ == "__main__":
    unittest.main()
