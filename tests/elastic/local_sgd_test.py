"""DiLoCo in an elastic job with maypolerun and real torch: a rank dies between two agreements, and is replaced."""

import os
import shutil
import subprocess
import tempfile
import unittest

import harness

PROGRAM = os.path.join(harness.ROOT, "tests/elastic/local_sgd.py")
MAYPOLERUN = os.path.join(harness.ROOT, "client/launcher/maypolerun")


class LocalSGDTest(unittest.TestCase):
    def test_a_death_between_two_agreements(self):
        directory = tempfile.mkdtemp(prefix="mpl", dir="/tmp")
        self.addCleanup(shutil.rmtree, directory)
        process = subprocess.Popen([MAYPOLERUN, "-np", "3", "--min-np", "2", "--no-prefix", "--blacklist-cooldown-range", "1",
                                    "1", harness.PYTHON, PROGRAM],
                                   env=harness.environment({"MAYPOLE_TEST_DIR": directory}), stdin=subprocess.DEVNULL,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
        self.addCleanup(harness.end, process)
        out, err = process.communicate(timeout=120)
        self.assertEqual(process.returncode, 0, err)
        self.assertTrue(os.path.exists(directory + "/died"))
        ends = [line.split()[1:] for line in out.splitlines() if line.startswith("agreed ")]
        self.assertEqual(len(ends), 3, out)
        self.assertEqual(len(set(map(tuple, ends))), 1, out)  # equal bits
        sizes, right, _ = ends[0]
        self.assertEqual(right, "right")
        # The interrupted interval is trained anew, and counts once.
        self.assertRegex(sizes, "^3,3,[23],[23],3,3,3,3$")


if __name__ == "__main__":
    unittest.main()
