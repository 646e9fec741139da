"""Collectives of more than 2^31 elements, on one node and on two.

Takes up to 7 GiB of memory; skipped where there is less.
"""

import os
import subprocess
import unittest

import daemons
import harness

PROGRAM = os.path.join(harness.ROOT, "tests/properties/large_ranks")
KINDS = ["allreduce", "broadcast", "allgather", "alltoall", "reducescatter"]


def available_gib():
    with open("/proc/meminfo") as f:
        lines = dict(line.split(":") for line in f)
    return int(lines["MemAvailable"].split()[0]) / 2**20


class LargeTest(unittest.TestCase):
    def run_on(self, nodes):
        if available_gib() < 9:
            self.skipTest("needs 9 GiB of free memory")
        with daemons.Daemons(nodes) as d:
            for kind in KINDS:
                done = subprocess.run([PROGRAM, "--agents=" + d.agents, "--kind=" + kind], capture_output=True,
                                      text=True, timeout=200, env=harness.environment())
                self.assertEqual(done.returncode, 0, "%d nodes: %s" % (nodes, done.stderr))
                self.assertIn("large: %s ok" % kind, done.stdout)
                print("%d nodes: %s" % (nodes, done.stdout.strip()), flush=True)

    def test_one_node(self):
        self.run_on(1)

    def test_two_nodes(self):
        self.run_on(2)


if __name__ == "__main__":
    unittest.main()
