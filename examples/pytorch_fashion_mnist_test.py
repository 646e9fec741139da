"""Runs the example as a program, with one rank and a few generated images."""

import gzip
import os
import random
import struct
import subprocess
import sys
import tempfile
import unittest

import torch

SCRIPT = os.path.join(os.path.dirname(os.path.abspath(__file__)),
                      "pytorch_fashion_mnist.py")


def write_idx(path, shape, data):
    with gzip.open(path, "wb") as file:
        file.write(struct.pack(f">HBB{len(shape)}I", 0, 8, len(shape), *shape))
        file.write(bytes(data))


def write_set(directory, part, count):
    """Writes images of one gray level per class, which any network learns."""
    generator = random.Random(count)
    labels = [generator.randrange(10) for _ in range(count)]
    pixels = b"".join(bytes([25 * label]) * 784 for label in labels)
    write_idx(os.path.join(directory, f"{part}-images-idx3-ubyte.gz"),
              (count, 28, 28), pixels)
    write_idx(os.path.join(directory, f"{part}-labels-idx1-ubyte.gz"),
              (count,), labels)


class ExampleTest(unittest.TestCase):

    def run_example(self, *arguments):
        environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith("MAYPOLE_") or name == "MAYPOLE_LIBRARY"
        }
        environment["PYTHONPATH"] = os.pathsep.join(sys.path)
        return subprocess.run([sys.executable, SCRIPT, *arguments],
                              env=environment, text=True, check=False,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def test_it_learns(self):
        with tempfile.TemporaryDirectory() as directory:
            write_set(directory, "train", 2000)
            write_set(directory, "t10k", 300)
            done = self.run_example("--data-dir", directory, "--epochs", "3",
                                    "--batch-size", "20", "--lr", "0.02",
                                    "--limit", "1500")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("ranks: 1,", done.stdout)
        self.assertRegex(done.stdout, r"images per second: \d+\n")
        accuracy = float(
            done.stdout.rsplit("test accuracy: ", 1)[1].split(" ")[0])
        self.assertGreater(accuracy, 50.0)  # guessing gives 10

    def test_it_learns_without_a_data_set(self):
        done = self.run_example("--synthetic", "--epochs", "2", "--limit",
                                "2000", "--batch-size", "20", "--lr", "0.02")
        self.assertEqual(done.returncode, 0, done.stderr)
        accuracy = float(
            done.stdout.rsplit("test accuracy: ", 1)[1].split(" ")[0])
        self.assertGreater(accuracy, 50.0)  # guessing gives 10

    @unittest.skipIf(torch.cuda.is_available(), "needs a machine without a GPU")
    def test_no_gpu_is_one_clear_line(self):
        done = self.run_example("--device", "cuda")
        self.assertEqual(done.returncode, 1)
        self.assertEqual(done.stderr, "--device cuda: torch finds no GPU\n")

    def test_missing_data_is_one_clear_line(self):
        with tempfile.TemporaryDirectory() as directory:
            done = self.run_example("--data-dir", directory)
        self.assertEqual(done.returncode, 1)
        self.assertEqual(len(done.stderr.strip().splitlines()), 1, done.stderr)
        self.assertIn("apt-get install dataset-fashion-mnist", done.stderr)
        self.assertIn("--data-dir", done.stderr)


if __name__ == "__main__":
    unittest.main()
