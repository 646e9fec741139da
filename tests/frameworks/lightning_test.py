"""PyTorch Lightning's HorovodStrategy, unchanged, trains under --horovod-shim as one process does."""

import os
import shutil
import subprocess
import tempfile
import unittest

import harness
import pypi_torch


class LightningTest(unittest.TestCase):
    def setUp(self):
        directory = tempfile.mkdtemp(prefix="mpl", dir="/tmp")
        self.addCleanup(shutil.rmtree, directory)
        self.python = pypi_torch.environment(os.path.join(directory, "env"), pypi_torch.lightning)
        done = subprocess.run([self.python, "-c", "import pytorch_lightning"], capture_output=True, text=True, timeout=600)
        if done.returncode != 0:  # it is of 2023
            self.skipTest("Lightning 1.9.5 cannot be imported with this torch: " + done.stderr[-300:])

    def test_two_ranks(self):
        script = os.path.join(harness.ROOT, "tests/programs/horovod/lightning.py")
        with harness.Job(np=2, command=[self.python, script], launcher_args=["--horovod-shim"]) as job:
            job.check_ok(600)
            records = job.records()
        for rank, record in enumerate(records):
            self.assertEqual((record["size"], record["mean"], record["gathered"]), (2, [1.5], [0, 10]), rank)
            self.assertEqual(record["sum"], records[0]["sum"])
            self.assertLess(record["apart"], 1e-12)
        self.assertNotEqual(records[0]["losses"], records[1]["losses"])  # each had its own rows


if __name__ == "__main__":
    unittest.main()
