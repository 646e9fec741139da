"""All collectives on real processes: one node, two nodes, uneven nodes."""

import unittest

import harness


class CollectivesTest(unittest.TestCase):
    def run_on(self, np, nodes):
        with harness.Job(np=np, nodes=nodes, program="collectives.py") as job:
            job.check_ok(120)
            records = job.records()
        self.assertEqual({r["checks"] for r in records}, {records[0]["checks"]})
        self.assertGreater(records[0]["checks"], 350)
        return records

    def test_one_rank_with_an_agent(self):
        self.run_on(1, 1)

    def test_four_ranks_on_one_node(self):
        records = self.run_on(4, 1)
        self.assertEqual([r["local_rank"] for r in records], [0, 1, 2, 3])
        self.assertEqual([r["cross_size"] for r in records], [1] * 4)

    def test_two_nodes_of_two_ranks(self):
        records = self.run_on(4, 2)
        self.assertEqual([r["local_rank"] for r in records], [0, 1, 0, 1])
        self.assertEqual([r["cross_rank"] for r in records], [0, 0, 1, 1])
        self.assertEqual([r["homogeneous"] for r in records], [True] * 4)

    def test_uneven_nodes(self):
        records = self.run_on(3, 2)
        self.assertEqual([r["local_size"] for r in records], [2, 2, 1])
        self.assertEqual([r["homogeneous"] for r in records], [False] * 3)

    def test_three_nodes_of_one_rank(self):
        self.run_on(3, 3)


if __name__ == "__main__":
    unittest.main()
