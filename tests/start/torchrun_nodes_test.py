"""Jobs of torchrun on two nodes, which its store tells of each other."""

import os
import unittest

import machines
import start_fixture
from start_fixture import torchrun


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

    def run_agents(self, nproc, rendezvous, mode):
        for node, count in enumerate(nproc):
            argv = torchrun(count, "--nnodes", str(len(nproc)), *rendezvous(node))
            self.start(self.machines[node].command(argv + start_fixture.program(mode)[1:], cwd=self.dir))

    @staticmethod
    def static(node):
        return ["--node_rank", str(node), "--master_addr", "n0", "--master_port", "29500"]

    @staticmethod
    def c10d(node):
        return ["--rdzv_backend", "c10d", "--rdzv_id", "here", "--rdzv_endpoint", "n0:29400"]

    def test_the_agents_store(self):
        self.run_agents([2, 1], self.static, "sum")
        self.finish()
        self.check_places(3, [[0, 1], [2]])

    def test_a_store_that_rank_0_opens(self):
        self.run_agents([2, 2], self.c10d, "twice")
        self.finish()
        for rank in range(4):
            seen = self.record("rank.%d.json" % rank)
            self.check_place(seen["first"], 4, rank=rank, local_size=2, cross_size=2)
            self.check_place(seen["second"], 4, rank=rank, local_size=2, cross_size=2)


if __name__ == "__main__":
    unittest.main()
