"""maypole.run() from a notebook: notebook_cells.py in a Python that has Jupyter's kernel and Debian's torch."""

import glob
import os
import subprocess
import unittest

import environments
import harness


class NotebookTest(unittest.TestCase):
    def test_cells(self):
        environment = os.path.dirname(os.path.dirname(environments.python("notebook")))
        (site,) = glob.glob(environment + "/lib/python3.11/site-packages")
        env = harness.environment({"MAYPOLE_BIN": os.path.join(harness.ROOT, "client/launcher")})
        env["PYTHONPATH"] += os.pathsep + site
        done = subprocess.run([harness.PYTHON, os.path.join(harness.ROOT, "tests/frameworks/notebook_cells.py")], env=env,
                              capture_output=True, text=True, timeout=600)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertRegex(done.stderr, r"Ran [5-9] tests")


if __name__ == "__main__":
    unittest.main()
