"""The TensorBoard example: TensorBoard itself reads what rank 0 has written."""

import glob
import json
import os
import subprocess
import unittest

import environments
import harness

EXAMPLE = os.path.join(harness.ROOT, "examples", "pytorch_tensorboard.py")
# The example, in which rank 2 takes 0.3 s longer for the loss.
LATE = """
import os, runpy, sys, time
import torch.nn.functional as F
cross_entropy = F.cross_entropy
def late(*args):
    time.sleep(0.3 if os.environ["MAYPOLE_RANK"] == "2" else 0)
    return cross_entropy(*args)
F.cross_entropy = late
sys.path.insert(0, os.path.dirname(sys.argv[1]))
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
READ = """
import json, sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
events = EventAccumulator(sys.argv[1])
events.Reload()
print(json.dumps({tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}))
"""


class TensorBoardTest(unittest.TestCase):
    def setUp(self):
        if not os.path.exists("/usr/share/datasets/fashion-mnist"):
            raise unittest.SkipTest("dataset-fashion-mnist is not installed")
        environment = os.path.dirname(os.path.dirname(environments.python("tensorboard")))
        (site,) = glob.glob(environment + "/lib/python3.11/site-packages")
        # Debian's Python has torch, and finds TensorBoard there.
        self.env = harness.environment()
        self.env["PYTHONPATH"] += os.pathsep + site

    def test_events(self):
        command = [harness.PYTHON, "-c", LATE, EXAMPLE, "--limit", "1200", "--every", "10", "--batch-size", "10"]
        with harness.Job(np=4, nodes=2, command=command, env=self.env) as job:
            job.check_ok(200)
            logs = os.path.join(job.dir, "runs")
            self.assertEqual(len(os.listdir(logs)), 1)  # of rank 0 alone
            seen = json.loads(subprocess.run([harness.PYTHON, "-c", READ, logs], env=self.env, check=True,
                                             capture_output=True, text=True, timeout=120).stdout)
        ranks = ["communication/rank %d" % rank for rank in range(4)]
        self.assertEqual(sorted(seen), sorted(ranks + ["loss", "images per second"]))
        for tag, points in seen.items():
            self.assertEqual([step for step, _ in points], [10, 20, 30], tag)
        last = {tag: points[-1][1] for tag, points in seen.items()}
        self.assertLess(last["loss"], seen["loss"][0][1])
        self.assertGreater(last["images per second"], 1)
        self.assertLess(last["images per second"], 10 * 4 / 0.3)  # no step is shorter than the latest rank
        self.assertEqual(min(ranks, key=last.get), "communication/rank 2", last)
        for rank in set(ranks) - {"communication/rank 2"}:
            self.assertGreater(last[rank] - last["communication/rank 2"], 0.15, last)
            self.assertLess(last[rank], 1)


if __name__ == "__main__":
    unittest.main()
