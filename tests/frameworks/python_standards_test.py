"""ruff and mypy find nothing in client/python/maypole; pyproject.toml configures their checks.

To run it over a working tree, without Bazel: /usr/bin/python3 tests/frameworks/python_standards_test.py
"""

import os
import re
import subprocess
import tempfile
import unittest

import environments

# Not the runfiles, whose files are links: ruff does not follow them.
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))

SCRIPT = """
from typing import Any
import maypole.jax, maypole.keras, maypole.mxnet, maypole.tensorflow
import maypole.torch as hvd

def check(x: Any) -> int:
    some: hvd.ProcessSet = hvd.add_process_set([0, 1])
    hvd.allreduce(x, op=hvd.Sum, compression=hvd.Compression.powersgd(4), process_set=some)
    hvd.allreduce(x, op="sum")  # wrong
    hvd.broadcast(x, "0")  # wrong
    maypole.tensorflow.allreduce(x, op=maypole.tensorflow.ReduceOp.Max)
    maypole.jax.allreduce(x, op=maypole.jax.Average)
    maypole.mxnet.allreduce_(x, process_set=[0, 1])  # wrong
    print(hvd.elastic.TorchState, maypole.keras.callbacks.MetricAverageCallback)
    return hvd.rank() + maypole.keras.size()
"""


class PythonStandardsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.bin = os.path.dirname(environments.python("standards"))

    def check(self, program, *args, status=0, **env):
        done = subprocess.run([os.path.join(self.bin, program), *args], cwd=ROOT, env={**os.environ, **env},
                              capture_output=True, text=True, timeout=280)
        self.assertEqual(done.returncode, status, done.stdout + done.stderr)
        return done.stdout

    def test_ruff(self):
        self.check("ruff", "check", "--no-cache", "--quiet", "client/python/maypole")
        seen = self.check("ruff", "check", "--no-cache", "--show-files", "client/python/maypole").splitlines()
        self.assertIn(os.path.join(ROOT, "client/python/maypole/torch/ops.py"), seen)

    def test_mypy(self):
        cache = os.path.join(os.path.dirname(self.bin), "mypy_cache")
        self.assertIn("Success", self.check("mypy", "--cache-dir", cache))

    def test_the_types_that_a_script_sees(self):
        cache = os.path.join(os.path.dirname(self.bin), "mypy_cache_of_scripts")
        with tempfile.TemporaryDirectory() as directory:
            path = os.path.join(directory, "script.py")
            with open(path, "w", encoding="utf-8") as f:
                f.write(SCRIPT)
            said = self.check("mypy", "--cache-dir", cache, "--config-file=", "--strict", "--ignore-missing-imports",
                              "--follow-imports=silent", path, status=1,
                              MYPYPATH=os.path.join(ROOT, "client", "python"))
        wrong = [i for i, line in enumerate(SCRIPT.splitlines(), 1) if line.endswith("# wrong")]
        self.assertEqual([int(line) for line in re.findall(r"script\.py:(\d+): error", said)], wrong, said)


if __name__ == "__main__":
    unittest.main()
