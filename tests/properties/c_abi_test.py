"""The C ABI from a C program, on one node and on two."""

import os
import subprocess
import unittest

import harness

PROGRAM = os.path.join(harness.ROOT, "tests/properties/c_abi")
EXAMPLE = os.path.join(harness.ROOT, "tests/properties/header_example")
ENV = {"LD_LIBRARY_PATH": os.path.dirname(harness.LIBRARY)}


class CAbiTest(unittest.TestCase):
    def run_on(self, nodes):
        with harness.Job(np=4, nodes=nodes, command=[PROGRAM], env=ENV) as job:
            job.check_ok(90)
            lines = [line for line in job.stdout().splitlines() if "c_abi: " in line]
        self.assertEqual(len(lines), 4)
        for line in lines:
            self.assertGreater(int(line.split("c_abi: ")[1].split()[0]), 100)

    def test_one_node(self):
        self.run_on(1)

    def test_two_nodes(self):
        self.run_on(2)


class HeaderExampleTest(unittest.TestCase):
    def test_alone(self):
        ran = subprocess.run([EXAMPLE], env=harness.environment(ENV), capture_output=True, text=True, timeout=60)
        self.assertEqual((ran.returncode, ran.stdout, ran.stderr), (0, "rank 0 of 1: 4\n", ""))

    def test_two_ranks(self):
        with harness.Job(np=2, command=[EXAMPLE], env=ENV) as job:
            job.check_ok(60)
            for r in range(2):
                self.assertIn("rank %d of 2: 8" % r, job.stdout())


if __name__ == "__main__":
    unittest.main()
