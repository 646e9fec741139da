"""The TensorFlow examples on 2 nodes x 2 ranks: losses and accuracies are those of one process with the same images."""

import gzip
import os
import random
import re
import struct
import tempfile
import unittest

import environments
import harness

QUIET = {"TF_CPP_MIN_LOG_LEVEL": "2", "TF_ENABLE_ONEDNN_OPTS": "0"}


def write_idx(path, shape, data):
    with gzip.open(path, "wb") as file:
        file.write(struct.pack(f">HBB{len(shape)}I", 0, 8, len(shape), *shape))
        file.write(bytes(data))


def image(generator, label):
    """Two bright rows where the class has them, and noise."""
    bright = range(56 * (label + 2), 56 * (label + 3))
    return bytes(generator.randrange(60) + (150 if i in bright else 0) for i in range(784))


def write_set(directory, part, count):
    """Images that any network learns in a few steps."""
    generator = random.Random(count)
    labels = [generator.randrange(10) for _ in range(count)]
    pixels = b"".join(image(generator, label) for label in labels)
    write_idx(os.path.join(directory, f"{part}-images-idx3-ubyte.gz"), (count, 28, 28), pixels)
    write_idx(os.path.join(directory, f"{part}-labels-idx1-ubyte.gz"), (count,), labels)


class ExamplesTest(unittest.TestCase):
    """Of one TensorFlow; see the end of this file."""

    NAME = None

    @classmethod
    def setUpClass(cls):
        cls.python = environments.python(cls.NAME)

    def run_example(self, np, nodes, name, *options):
        command = [self.python, os.path.join(harness.ROOT, "examples", name), *map(str, options)]
        with harness.Job(np=np, nodes=nodes, command=command, env=QUIET) as job:
            job.check_ok(400)
            return job.stdout()

    def number(self, said, pattern):
        found = re.findall(pattern, said)
        self.assertTrue(found, said)
        return float(found[-1])

    def same_as_one_process(self, name, *options, together=(), alone=()):
        with tempfile.TemporaryDirectory(dir="/tmp") as directory:
            write_set(directory, "train", 1024)
            write_set(directory, "t10k", 500)
            four = self.run_example(4, 2, name, "--data-dir", directory, "--batch-size", 8, "--lr", 0.001, *options,
                                    *together)
            one = self.run_example(1, 1, name, "--data-dir", directory, "--batch-size", 32, "--lr", 0.004, *options,
                                   *alone)
        self.assertIn("ranks: 4,", four)
        self.assertIn("ranks: 1,", one)
        losses = [self.number(said, r"loss (\S+?),?\s") for said in (four, one)]
        self.assertLess(abs(losses[0] - losses[1]), 1e-4 * losses[1])
        accuracies = [self.number(said, r"test accuracy: (\S+) %") for said in (four, one)]
        self.assertLess(abs(accuracies[0] - accuracies[1]), 0.5)  # two images at the edge
        self.assertGreater(accuracies[0], 30.0)  # guessing gives 10
        print(f"{self.NAME} {name}: losses {losses}, accuracies {accuracies}")

    def test_tensorflow2(self):
        self.same_as_one_process("tensorflow2_fashion_mnist.py", "--epochs", 1)

    def test_tensorflow1(self):
        self.same_as_one_process("tensorflow1_fashion_mnist.py", together=["--steps", 80], alone=["--steps", 20])

    def test_tensorflow1_goes_on_from_a_checkpoint(self):
        with tempfile.TemporaryDirectory(dir="/tmp") as directory:
            write_set(directory, "train", 256)
            write_set(directory, "t10k", 100)
            options = ["--data-dir", directory, "--batch-size", 8, "--checkpoint-dir", os.path.join(directory, "saved")]
            self.assertIn("step 4:", self.run_example(2, 2, "tensorflow1_fashion_mnist.py", "--steps", 8, *options))
            said = self.run_example(2, 2, "tensorflow1_fashion_mnist.py", "--steps", 12, *options)
            self.assertIn("step 6:", said)

    def test_synthetic_benchmark(self):
        said = self.run_example(4, 2, "tensorflow2_synthetic_benchmark.py", "--model", "small", "--image-size", 32,
                                "--batch-size", 4, "--num-iters", 2, "--num-batches-per-iter", 3,
                                "--num-warmup-batches", 2, "--fp16-allreduce")
        self.assertGreater(self.number(said, r"Total img/sec on 4 CPU\(s\): (\S+)"), 0)


for _name in environments.names("tensorflow"):
    _class = "Examples" + _name.partition("-")[2].replace(".", "_") + "Test"
    globals()[_class] = type(_class, (ExamplesTest,), {"NAME": _name})
del ExamplesTest, _name, _class


if __name__ == "__main__":
    unittest.main()
