"""Random programs of collectives against a plain reference, in many settings.

Each setting is a job that plays one program after the other for a while, on
agents with rings small enough to meet every edge. A failure prints the command
that plays the same programs again. MAYPOLE_TEST_SECONDS: how long a setting.
"""

import os
import random
import subprocess
import unittest

import daemons
import harness

PROGRAM = os.path.join(harness.ROOT, "tests/properties/property_ranks")
SECONDS = float(os.environ.get("MAYPOLE_TEST_SECONDS", "1"))
SEED = int(os.environ.get("MAYPOLE_TEST_SEED") or random.SystemRandom().randrange(1, 10**9))


class PropertiesTest(unittest.TestCase):
    def play(self, ranks, nodes, chunk_bytes, ring_depth, most_bytes=256 * 1024, least=20, env=None):
        flags = ["--chunk_bytes=%d" % chunk_bytes]
        with daemons.Daemons(nodes, flags + ["--ring_depth=%d" % ring_depth]) as d:
            command = [PROGRAM, "--agents=" + d.agents, "--ranks=%d" % ranks, "--seed=%d" % SEED,
                       "--programs=1000000", "--seconds=%g" % SECONDS, "--most_bytes=%d" % most_bytes] + flags
            done = subprocess.run(command, capture_output=True, text=True, timeout=60 + 3 * SECONDS,
                                  env=dict(harness.environment(), **(env or {})))
        what = "%d ranks on %d nodes, agents' flags %s --ring_depth=%d" % (ranks, nodes, flags[0], ring_depth)
        print("%s, seed %d: %s" % (what, SEED, done.stdout.strip()), flush=True)
        self.assertEqual(done.returncode, 0, what + "\n" + done.stderr)
        played = int(done.stdout.split("programs=")[1].split()[0])
        self.assertGreaterEqual(played, least * min(1, SECONDS))

    def test_two_ranks_smallest_rings(self):
        self.play(2, 1, 4096, 2)

    def test_two_ranks(self):
        self.play(2, 1, 512 * 1024, 8, most_bytes=3 << 20, least=10)

    def test_two_ranks_that_sleep_at_once(self):
        self.play(2, 1, 8192, 3, env={"MAYPOLE_SPIN_US": "0"})

    def test_three_ranks(self):
        self.play(3, 1, 12288, 3)

    def test_four_ranks(self):
        self.play(4, 1, 4096, 5)

    def test_two_nodes_of_one_rank(self):
        self.play(2, 2, 4096, 2, least=10)

    def test_two_nodes_of_two_ranks(self):
        self.play(4, 2, 4096, 2, least=10)

    def test_four_ranks_on_two_nodes_large(self):
        self.play(4, 2, 65536, 4, most_bytes=1 << 20, least=5)

    def test_uneven_nodes(self):
        self.play(3, 2, 8192, 3, least=10)


if __name__ == "__main__":
    unittest.main()
