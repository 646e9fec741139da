"""Repeated kill -9 of a random rank at a random time."""

import os
import random
import re
import subprocess
import unittest

import daemons
import harness

PROGRAM = os.path.join(harness.ROOT, "tests/kill_points/killed_ranks")
ROUNDS = int(os.environ.get("MAYPOLE_TEST_ROUNDS", "5"))
SEED = int(os.environ.get("MAYPOLE_TEST_SEED") or random.SystemRandom().randrange(1, 10**9))


class RandomKillTest(unittest.TestCase):
    def rounds(self, ranks, nodes, chunk_bytes, ring_depth, env=None):
        flags = ["--chunk_bytes=%d" % chunk_bytes]
        with daemons.Daemons(nodes, flags + ["--ring_depth=%d" % ring_depth]) as d:
            command = [PROGRAM, "--agents=" + d.agents, "--ranks=%d" % ranks, "--rounds=%d" % ROUNDS,
                       "--seed=%d" % SEED] + flags
            done = subprocess.run(command, capture_output=True, text=True, timeout=30 + 3 * ROUNDS,
                                  env=dict(harness.environment(), **(env or {})))
        what = "%d ranks on %d nodes, agents' flags %s --ring_depth=%d" % (ranks, nodes, flags, ring_depth)
        print("%s, seed %d: %s" % (what, SEED, done.stdout.strip()), flush=True)
        again = "again: %s; killed_ranks --agents=... --ranks=%d --rounds=1 --seed=(above) %s" % (
            what, ranks, " ".join(flags))
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr + again)
        self.assertEqual(int(re.search(r"reached=(\d+)", done.stdout).group(1)), ROUNDS)

    def test_two_ranks(self):
        self.rounds(2, 1, 4096, 2)

    def test_four_ranks(self):
        self.rounds(4, 1, 8192, 3)

    def test_three_ranks_that_sleep_at_once(self):
        self.rounds(3, 1, 4096, 2, env={"MAYPOLE_SPIN_US": "0"})

    def test_two_nodes(self):
        self.rounds(4, 2, 4096, 2)

    def test_uneven_nodes(self):
        self.rounds(3, 2, 16384, 4)


if __name__ == "__main__":
    unittest.main()
