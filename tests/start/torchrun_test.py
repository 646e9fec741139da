"""Jobs started by torchrun (python3 -m torch.distributed.run)."""

import os
import unittest

import harness
import start_fixture
from start_fixture import torchrun


class OneNodeTest(start_fixture.StartTest):
    def environment(self, extra=None, root=harness.ROOT):
        # A separate job beside other jobs on this machine.
        return super().environment(dict({"PET_MASTER_PORT": str(20000 + os.getpid() % 10000)}, **(extra or {})), root)

    def test_three_ranks(self):
        self.start(torchrun(3) + start_fixture.program("sum")[1:])
        self.finish()
        self.check_places(3, [[0, 1, 2]])

    def test_standalone(self):
        self.start(torchrun(2, "--standalone") + start_fixture.program("twice")[1:])
        self.finish()
        for rank in range(2):
            seen = self.record("rank.%d.json" % rank)
            self.check_place(seen["first"], 2, rank=rank, local_size=2)
            self.check_place(seen["second"], 2, rank=rank, local_size=2)

    def test_a_restart_is_a_new_job(self):
        # Its port stays, for that is the agent's; the count tells it apart.
        self.start(torchrun(2, "--max_restarts", "1") + start_fixture.program("restart")[1:])
        self.finish()
        self.check_places(2, [[0, 1]])

    def test_a_restart_with_a_port_of_its_own(self):
        self.start(torchrun(2, "--standalone", "--max_restarts", "1") + start_fixture.program("restart")[1:])
        self.finish()
        self.check_places(2, [[0, 1]])


if __name__ == "__main__":
    unittest.main()
