"""The C ABI from a C program, on one node and on two."""

import os
import unittest

import harness

PROGRAM = os.path.join(harness.ROOT, "tests/properties/c_abi")


class CAbiTest(unittest.TestCase):
    def run_on(self, nodes):
        env = {"LD_LIBRARY_PATH": os.path.dirname(harness.LIBRARY)}
        with harness.Job(np=4, nodes=nodes, command=[PROGRAM], env=env) as job:
            job.check_ok(90)
            lines = [line for line in job.stdout().splitlines() if "c_abi: " in line]
        self.assertEqual(len(lines), 4)
        for line in lines:
            self.assertGreater(int(line.split("c_abi: ")[1].split()[0]), 100)

    def test_one_node(self):
        self.run_on(1)

    def test_two_nodes(self):
        self.run_on(2)


if __name__ == "__main__":
    unittest.main()
