"""ruff and mypy find nothing in client/python/maypole; pyproject.toml says what they look for.

To run it over a working tree, without Bazel: /usr/bin/python3 tests/frameworks/python_standards_test.py
"""

import os
import subprocess
import unittest

import environments

# Not the runfiles, whose files are links: ruff does not follow them.
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))


class PythonStandardsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.bin = os.path.dirname(environments.python("standards"))

    def check(self, program, *args):
        done = subprocess.run([os.path.join(self.bin, program), *args], cwd=ROOT, capture_output=True, text=True, timeout=300)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout

    def test_ruff(self):
        self.check("ruff", "check", "--no-cache", "--quiet", "client/python/maypole")
        seen = self.check("ruff", "check", "--no-cache", "--show-files", "client/python/maypole").splitlines()
        self.assertIn(os.path.join(ROOT, "client/python/maypole/torch/ops.py"), seen)

    def test_mypy(self):
        cache = os.path.join(os.path.dirname(self.bin), "mypy_cache")
        self.assertIn("Success", self.check("mypy", "--cache-dir", cache))


if __name__ == "__main__":
    unittest.main()
