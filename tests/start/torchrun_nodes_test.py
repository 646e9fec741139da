"""Jobs of torchrun on two nodes, which find each other through its store."""

import os
import unittest

import machines
import start_fixture
from start_fixture import torchrun

# The ranks of node 1 fail once; those of node 0 are only started again. (Read
# before init(), which waits for all: no rank of the first life has told yet.)
ONE_NODE_FAILS = """\
import glob, os, sys, time
sys.path.insert(0, %r)
import place_program

told = os.path.join(place_program.DIR, "first.*.json")
life = "second" if glob.glob(told) else "first"
seen = place_program.join()
place_program.tell("%%s.%%d.json" %% (life, seen["rank"]), count=os.environ["TORCHELASTIC_RESTART_COUNT"], **seen)
if life == "first":
    while len(glob.glob(told)) < 4:
        time.sleep(0.05)
    if seen["cross_rank"] == 1:
        sys.exit(3)
    time.sleep(60)
"""


@unittest.skipIf(machines.available(), machines.available())
class TwoNodesTest(start_fixture.StartTest):
    """An agent of torchrun on each of two machines."""

    def make_directory(self):
        self.machines = machines.Machines(["n0", "n1"])
        self.machines.__enter__()
        self.addCleanup(self.machines.__exit__)
        directory = os.path.join(self.machines.dir, "t")
        os.mkdir(directory)
        return directory

    def run_agents(self, nproc, rendezvous, program, *options, env=None):
        for node, count in enumerate(nproc):
            argv = torchrun(count, "--nnodes", str(len(nproc)), *options, *rendezvous(node))
            self.start(self.machines[node].command(argv + program, cwd=self.dir), env)

    @staticmethod
    def static(node):
        return ["--node_rank", str(node), "--master_addr", "n0", "--master_port", "29500"]

    @staticmethod
    def c10d(node):
        return ["--rdzv_backend", "c10d", "--rdzv_id", "here", "--rdzv_endpoint", "n0:29400"]

    def test_the_agents_store(self):
        self.run_agents([2, 1], self.static, start_fixture.program("sum")[1:])
        self.finish()
        self.check_places(3, [[0, 1], [2]])

    def test_a_store_that_rank_0_opens(self):
        self.run_agents([2, 2], self.c10d, start_fixture.program("twice")[1:])
        self.finish()
        for rank in range(4):
            seen = self.record("rank.%d.json" % rank)
            self.check_place(seen["first"], 4, rank=rank, local_size=2, cross_size=2)
            self.check_place(seen["second"], 4, rank=rank, local_size=2, cross_size=2)

    def test_a_token_of_the_users_own(self):
        self.run_agents([1, 1], self.c10d, start_fixture.program("sum")[1:], env={"MAYPOLE_TOKEN": "some random text"})
        self.finish()
        for rank in range(2):
            self.check_place(self.record("rank.%d.json" % rank), 2, rank=rank, local_size=1, cross_size=2)

    def test_a_restart_with_the_agents_store(self):
        # It still has the values that the first life has published.
        self.run_agents([1, 1], self.static, start_fixture.program("restart")[1:],
                        "--max_restarts", "1", "--monitor_interval", "0.5")
        self.finish()
        self.check_places(2, [[0], [1]])

    def test_a_restart_that_one_agent_counts(self):
        script = os.path.join(self.dir, "one_node_fails.py")
        with open(script, "w") as f:
            f.write(ONE_NODE_FAILS % os.path.dirname(start_fixture.program("sum")[1]))
        self.run_agents([2, 2], self.c10d, [script], "--max_restarts", "1", "--monitor_interval", "0.5")
        self.finish()
        counts = set()
        for rank in range(4):
            seen = self.record("second.%d.json" % rank)
            self.check_place(seen, 4, rank=rank, local_size=2, cross_size=2)
            counts.add(seen["count"])
        # Otherwise the test would prove nothing.
        self.assertEqual(counts, {"0", "1"})


if __name__ == "__main__":
    unittest.main()
