"""neighbour_bench.py measures a build and Open MPI beside a busy neighbour."""

import json
import os
import subprocess
import sys
import tempfile
import unittest

# The repository's tree with built files.
ROOT = os.path.join(os.environ["TEST_SRCDIR"], os.environ["TEST_WORKSPACE"])
PARTS = {
    "bin": ["client/launcher/maypolerun", "coordinator/maypole-coordinator", "worker/maypole-worker"],
    "lib": ["client/libmaypole.so"],
}


class NeighbourBenchTest(unittest.TestCase):

    def test_every_case_has_its_rounds(self):
        with tempfile.TemporaryDirectory() as d:
            for part, files in PARTS.items():
                os.mkdir(os.path.join(d, part))
                for file in files:
                    os.symlink(os.path.join(ROOT, file), os.path.join(d, part, os.path.basename(file)))
            path = os.path.join(d, "rounds.json")
            bench = os.path.join(ROOT, "tests", "bench")
            result = subprocess.run(
                [sys.executable, os.path.join(bench, "neighbour_bench.py"), "--build", "it=" + d, "--openmpi",
                 os.path.join(bench, "neighbour_openmpi"), "--ranks", "2", "--rounds", "2", "--seconds", "0.05",
                 "--quiet", "0", "--json", path],
                capture_output=True, text=True, timeout=240)
            self.assertEqual(result.returncode, 0, result.stderr)
            with open(path, encoding="utf-8") as f:
                raw = json.load(f)
        found = sorted((t["name"], t["neighbours"], t["round"]) for t in raw)
        self.assertEqual(found, [(name, n, r) for name in ("Open MPI", "it") for n in (0, 1) for r in (0, 1)])
        for turn in raw:
            self.assertGreater(turn["p50"], 0)
            self.assertLessEqual(turn["p50"], turn["p90"])
            self.assertGreater(turn["cores"], 0)
        self.assertIn("neighbours", result.stdout)


if __name__ == "__main__":
    unittest.main()
