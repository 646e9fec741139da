"""`import maypole` on arrays by value, on one node and on two; and the example of docs/arrays.md as it stands there."""

import os
import re
import unittest

import environments
import harness


class ArraysTest(unittest.TestCase):
    def run_on(self, np, nodes, python=harness.PYTHON):
        command = [python, os.path.join(harness.ROOT, "tests/programs/arrays.py")]
        with harness.Job(np=np, nodes=nodes, command=command, env={"JAX_PLATFORMS": "cpu"}) as job:
            job.check_ok(120)
            records = job.records()
        for record in records:
            self.assertGreater(record["checks"], 600)
            self.assertEqual(record["checks"], records[0]["checks"] + len(record["odd"]))
            self.assertIn("mismatched shapes: rank 0 submitted [1], rank 1 submitted [2]", record["differ"])
            self.assertTrue(record["joined"])
        return records[0]

    def test_two_ranks(self):
        self.assertEqual(self.run_on(2, 1)["foreign"], ["torch"])

    def test_two_nodes_of_two_ranks(self):
        self.run_on(4, 2)

    def test_bfloat16_and_numpy_2(self):
        self.assertTrue(self.run_on(2, 1, environments.python("tensorflow-2.18"))["bfloat16"])

    def test_the_example_of_the_page(self):
        with open(os.path.join(harness.ROOT, "docs/arrays.md"), encoding="utf-8") as f:
            (example,) = re.findall(r"^```python\n(.*?)^```", f.read(), re.M | re.S)
        self.assertLessEqual(len(example.splitlines()), 20)
        with harness.Job(np=2, command=[harness.PYTHON, "-c", example]) as job:
            job.check_ok(60)
            self.assertRegex(job.stdout(), r"2 ranks: loss \d\.\de-\d\d, weights \[ ?1\.0* +-2\.0* +3\.0* +0\.50* +0\.10*\]")


class JaxArraysTest(ArraysTest):
    """JAX's arrays, which must not be written to."""

    def test_two_ranks(self):
        for name in environments.names("jax"):
            with self.subTest(name):
                self.assertEqual(self.run_on(2, 1, environments.python(name))["foreign"], ["jax.numpy"])


for _name in unittest.defaultTestLoader.getTestCaseNames(JaxArraysTest):
    if _name != "test_two_ranks":
        setattr(JaxArraysTest, _name, None)

if __name__ == "__main__":
    unittest.main()
