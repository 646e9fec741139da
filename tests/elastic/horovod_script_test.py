"""A script in the shape of Horovod's elastic example, unchanged under --horovod-shim: a rank is lost and replaced."""

import glob
import json
import os
import subprocess
import tempfile
import unittest

import elastic_jobs
import harness

SCRIPT = os.path.join(harness.ROOT, "tests/elastic/horovod_script.py")
SAMPLES, EPOCHS = 96, 3


class HorovodScriptTest(unittest.TestCase):
    def run_on(self, ranks, *where):
        """Runs the script; returns what each rank has written in the end."""
        with tempfile.TemporaryDirectory(dir="/tmp") as directory:
            with open(os.path.join(directory, "ssh"), "w", opener=lambda p, f: os.open(p, f, 0o755)) as f:
                f.write(elastic_jobs.FAKE_SSH)
            env = harness.environment()
            env["PATH"] = directory + ":" + env["PATH"]
            argv = [elastic_jobs.MAYPOLERUN, "--horovod-shim", "-np", str(ranks), "--min-np", "1",
                    "--blacklist-cooldown-range", "1", "1", *where, harness.PYTHON, SCRIPT, directory, str(ranks)]
            done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=240)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn("was killed by signal 9 (Killed); the job goes on", done.stderr)
            ends = []
            for path in glob.glob(directory + "/end.*.json"):
                with open(path) as f:
                    ends.append(json.load(f))
            return ends

    def check(self, ranks, *where):
        ends = self.run_on(ranks, *where)
        first = ends[0]
        self.assertEqual(len(ends), first["size"])
        for end in ends:
            self.assertEqual(end, first)
        self.assertLess(first["apart"], 1e-9)
        self.assertEqual(first["steps"][-1][2], 0.02 * first["size"])
        for epoch in range(EPOCHS):
            seen = sum((numbers for e, numbers, _ in first["steps"] if e == epoch), [])
            self.assertEqual(set(seen), set(range(SAMPLES)))
            # Some are there twice to fill up the last batches, before the loss and after it.
            self.assertLess(len(seen), SAMPLES + 2 * ranks)
        losses = first["losses"]
        self.assertLess(sum(losses[-3:]), sum(losses[:3]) * 0.85)

    def test_two_ranks(self):
        self.check(2)

    def test_three_ranks(self):
        self.check(3)

    def test_two_hosts(self):
        self.check(4, "-H", "localhost:2,root@127.0.0.1:2")


if __name__ == "__main__":
    unittest.main()
