"""Jobs of Open MPI's mpirun on two nodes, which find each other through PMIx."""

import os
import signal
import unittest

import mpi_nodes
import namespaces
import start_fixture
from start_fixture import MPIRUN, mpirun


@unittest.skipIf(MPIRUN is None, "Open MPI is not installed (openmpi-bin)")
@unittest.skipIf(namespaces.available(), namespaces.available())
class TwoNodesTest(start_fixture.StartTest):
    def setUp(self):
        super().setUp()
        self.net = namespaces.Namespaces()
        self.net.__enter__()
        self.addCleanup(self.net.__exit__)
        self.nodes = mpi_nodes.MpiNodes(self.net, self.dir)

    def mpirun(self, ranks, *args):
        return self.nodes.on_n0(mpirun(ranks, *self.nodes.options, *args))

    def test_host_by_host(self):
        self.start(self.mpirun(4) + start_fixture.program("twice"))
        self.finish()
        for node, ranks in enumerate([[0, 1], [2, 3]]):
            for local, rank in enumerate(ranks):
                for seen in self.record("rank.%d.json" % rank).values():
                    self.check_place(seen, 4, rank=rank, local_rank=local, local_size=2, cross_rank=node,
                                     cross_size=2, homogeneous=True)

    def test_ranks_of_a_node_need_not_be_neighbours(self):
        self.start(self.mpirun(3, "--map-by", "node") + start_fixture.program("sum"))
        self.finish()
        self.check_places(3, [[0, 2], [1]])
        self.assertFalse(self.record("rank.1.json")["homogeneous"])

    def test_kill_9_of_all_ranks_leaves_nothing_on_either_node(self):
        self.start(self.mpirun(4) + start_fixture.program("hold"))
        ranks = [self.await_record("rank.%d.json" % r) for r in range(4)]
        self.assertEqual(len(os.listdir(self.runtime)), 2)
        for rank in ranks:
            os.kill(rank["pid"], signal.SIGKILL)
        self.processes[0].wait(60)
        self.check_nothing_left(20)

    def test_the_coordinator_stays_while_the_other_node_works(self):
        self.start(self.mpirun(4) + start_fixture.program("early"))
        for rank in (0, 1):
            self.await_record("rank.%d.json" % rank)
        # Launchers kill processes that ranks leave behind; there must be none.
        start_fixture.harness.wait_until(
            lambda: any(os.listdir(os.path.join(self.runtime, name)) == ["lock"] for name in os.listdir(self.runtime)),
            20, "the first node's directory to be empty")
        self.assertFalse(os.path.exists(os.path.join(self.dir, "rank.2.json")))
        self.finish()
        ended = [self.record("rank.%d.json" % rank)["ended"] for rank in range(4)]
        self.assertGreater(min(ended[2:]) - max(ended[:2]), 4)

    def test_rank_0_does_not_come(self):
        script = ('test "$OMPI_COMM_WORLD_RANK" = 0 || exec "$0" "$@"; cd "$MAYPOLE_TEST_DIR"; '
                  'until test -e rank.2.json && test -e rank.3.json; do sleep 0.1; done')
        self.start(self.mpirun(4, "-x", "MAYPOLE_START_TIMEOUT=3") + ["sh", "-c", script]
                   + start_fixture.program("fail"))
        # (mpirun's exit status does not matter: it requires all ranks to use PMIx.)
        self.processes[0].wait(60)
        self.check_nothing_left()
        for rank in (2, 3):
            text = self.record("rank.%d.json" % rank)["text"]
            self.assertIn("rank 0 of job mpirun.", text)
            self.assertIn("has not come within 3 s", text)


if __name__ == "__main__":
    unittest.main()
