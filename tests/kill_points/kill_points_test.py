"""A rank dies at each transition of the board; checks what the others see.

This file lists every kill point of the source (MAYPOLE_KILL_POINT) with the jobs
in which ranks reach it. killed_ranks plays a round and judges it.
"""

import os
import re
import subprocess
import unittest

import daemons
import harness

PROGRAM = os.path.join(harness.ROOT, "tests/kill_points/killed_ranks")
FLAGS = ["--chunk_bytes=4096"]
LONG = os.environ.get("MAYPOLE_TEST_LONG") == "1"

# Points by where ranks pass them: in jobs on one node; also in jobs on several
# nodes; only in those; by ranks that find the executor dead.
ONE_NODE = """
pool.taken arrival.claimed arrival.reduced arrival.committed
arrival.delivered arrival.placed commit.eager
eager.copied eager.consumed ticket.found ticket.placed
fail.failing fail.text fail.failed fail.counted
""".split()
ANY_NODES = """
arrive.written arrive.published arrival.complete commit.kept decide.decided
wake.claimed engine.ticket engine.taken stage.place stage.copied stage.published
reduce.ready reduce.summed reduce.published consume.ready consume.decided
consume.copied consume.published retire.begun retire.published publish.stored
slot.wanted slot.requested slot.allotted start.flag start.arrived sleep.flag
sleep.looked sleep.over attend.flag wait.begun park.flag
""".split()
SEVERAL_NODES = "ready.set ready.claimed".split()
# With few slots.
FEW_SLOTS = "slot.recalled slot.returned".split()
EXECUTOR = "abort.claimed abort.text abort.coded".split()
# The others' errors about a death; here the second rank dies.
SECOND_DEATH = "abort.arena_left".split()


def points_in_source():
    """The kill points in client/ and common/, from this test's data."""
    found = set()
    for part in ("client", "common"):
        for directory, _, names in os.walk(os.path.join(harness.ROOT, part)):
            for name in names:
                if name.endswith(".cc"):
                    with open(os.path.join(directory, name)) as f:
                        found.update(re.findall(r'MAYPOLE_KILL_POINT\("([^"]+)"\)', f.read()))
    return found


class KillPointsTest(unittest.TestCase):
    def rounds(self, nodes, ranks, points, nths, depth=2, extra=(), must=True, flags=()):
        """One round for each point and nth; returns the points never reached."""
        missed = []
        with daemons.Daemons(nodes, FLAGS + ["--ring_depth=%d" % depth] + list(flags)) as d:
            for point in points:
                reached = 0
                for nth in nths:
                    reached += self.round(d, ranks, "%s:%d" % (point, nth), extra)
                if not reached:
                    missed.append(point)
        if must:
            self.assertEqual(missed, [], "never reached by %d ranks on %d nodes" % (ranks, nodes))
        return missed

    def round(self, d, ranks, kill_at, extra):
        command = [PROGRAM, "--agents=" + d.agents, "--workers=" + ",".join(map(str, d.workers)),
                   "--ranks=%d" % ranks, "--kill_at=" + kill_at] + FLAGS + list(extra)
        if not LONG:
            command.append("--grace_ms=100")
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        again = "again: killed_ranks --agents=... " + " ".join(command[3:])
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr + again)
        return int(re.search(r"reached=(\d+)", done.stdout).group(1))

    def test_every_point_is_listed(self):
        self.assertEqual(points_in_source(),
                         set(ONE_NODE + ANY_NODES + SEVERAL_NODES + FEW_SLOTS + EXECUTOR + SECOND_DEATH))

    def test_one_node(self):
        for ranks in (2, 3, 4) if LONG else (3,):
            self.rounds(1, ranks, ONE_NODE + ANY_NODES, (1, 2, 5, 23) if LONG else (2,))

    def test_two_nodes(self):
        points = ANY_NODES + SEVERAL_NODES
        for ranks in (3, 4) if LONG else (4,):
            self.rounds(2, ranks, points if LONG else points[::5], (1, 2, 5, 23) if LONG else (1,))

    def test_slots_that_are_given_back(self):
        for nodes, ranks in ((1, 3), (2, 4)):
            self.rounds(nodes, ranks, FEW_SLOTS, (1, 2) if LONG else (1,), flags=["--slots=64"])

    def test_executor_dies_and_then_who_says_so(self):
        # Which rank sees it first is chance: some rounds, and it need not be
        # reached.
        self.rounds(1, 3, SECOND_DEATH, (1,), extra=["--executor", "--rounds=%d" % (20 if LONG else 3)], must=False)
        self.rounds(1, 2, EXECUTOR, (1,), extra=["--executor", "--rounds=%d" % (20 if LONG else 3)], must=LONG)


if __name__ == "__main__":
    unittest.main()
