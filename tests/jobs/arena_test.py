"""Arena tensors and gradient buckets on real ranks, on one node and two."""

import unittest

import harness

# What programs/arena.py runs: 5 dtypes, 2 sizes, 3 turns.
TENSORS = 30
STEPS_IN_BUCKETS = 5  # of 6, the first is without
PARAMETERS = 6
# In the arena, whole pages.
TENSOR_BYTES = 6000640


class ArenaTest(unittest.TestCase):

    def run_on(self, np, nodes):
        with harness.Job(np=np, nodes=nodes, program="arena.py") as job:
            job.check_ok(170)
            records = job.records()
        for record in records:
            self.assertEqual(record["optimizer"]["replaced"],
                             STEPS_IN_BUCKETS * PARAMETERS)
            self.assertEqual(record["bytes"], [TENSOR_BYTES, TENSOR_BYTES, 0])
            self.assertLess(record["optimizer"]["difference"], 1e-5)
        text, fallbacks = records[0]["full"]
        self.assertRegex(text, "9663676416 bytes is in ordinary memory.*arena")
        self.assertEqual(fallbacks["arena_full"], 1)
        return records

    def check(self, np, nodes=1):
        for record in self.run_on(np, nodes):
            self.assertEqual(record["tensors"], TENSORS)
            # Aligned parts; misaligned, mixed and out of place ones.
            self.assertEqual(record["parts"], [3, 0])
            self.assertEqual(record["fork"], 1)
            self.assertEqual(record["optimizer"]["operations"], [
                STEPS_IN_BUCKETS, 2 * STEPS_IN_BUCKETS, STEPS_IN_BUCKETS])
            if nodes == 1:  # the same additions in the same order
                self.assertEqual(record["optimizer"]["difference"], 0)
            self.assertEqual(record["again"], TENSORS)

    def test_two_ranks(self):
        self.check(2)

    def test_four_ranks(self):
        self.check(4)

    def test_two_nodes_of_two_ranks(self):
        self.check(4, nodes=2)


if __name__ == "__main__":
    unittest.main()
