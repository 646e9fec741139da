"""All collectives on real processes: one node, two nodes, uneven nodes; process
sets within and over nodes; ranks that join early."""

import unittest

import harness


class CollectivesTest(unittest.TestCase):
    def run_on(self, np, nodes):
        with harness.Job(np=np, nodes=nodes, program="collectives.py") as job:
            job.check_ok(120)
            records = job.records()
        self.assertEqual({r["checks"] for r in records}, {records[0]["checks"]})
        self.assertGreater(records[0]["checks"], 900)
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


class ProcessSetsTest(unittest.TestCase):
    def run_on(self, nodes):
        with harness.Job(np=4, nodes=nodes, program="process_sets.py") as job:
            job.check_ok(120)
            records = job.records()
        for r, record in enumerate(records):
            # 3 rounds of 12 steps, 10 results on each set; all are in 3 or more.
            self.assertGreaterEqual(record["checks"], 3 * 12 * 10 * 3, r)
            self.assertEqual(record["ids"], records[0]["ids"])
            self.assertIn("process set %d" % record["ids"][0], record["again"])
            self.assertIn("[0, 4]", record["range"])
            for text in ("ranks 0,1,2", "[0, 1, 2]", "rank 3", "[0, 1, 3]"):
                self.assertIn(text, record["differ"])
            self.assertIn("removed", record["removed"])
        self.assertIn("its ranks are [1, 2]", records[0]["foreign"])
        self.assertIn("root rank 1", records[0]["root"])

    def test_on_one_node(self):
        self.run_on(1)

    def test_within_and_over_two_nodes(self):
        self.run_on(2)


class JoinTest(unittest.TestCase):
    def run_on(self, np, nodes):
        with harness.Job(np=np, nodes=nodes, program="join.py") as job:
            job.check_ok(120)
            records = job.records()
        last = np - 1
        self.assertEqual([r["lasts"] for r in records], [[last, last - 1, last - 2]] * np)
        for record in records[1:]:
            self.assertIn("broadcast 'from'", record["text"])
            self.assertIn("rank 0", record["text"])
            # At least 12 steps of 13 results, each rank.
            self.assertGreaterEqual(record["checks"], 12 * 13)

    def test_on_one_node(self):
        self.run_on(4, 1)

    def test_over_two_nodes(self):
        self.run_on(4, 2)

    def test_uneven_nodes(self):
        self.run_on(3, 2)


if __name__ == "__main__":
    unittest.main()
