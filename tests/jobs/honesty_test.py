"""Distributed training gives the same result as one process on the global batches."""

import unittest

import harness

STEPS = 50


class HonestyTest(unittest.TestCase):
    def train(self, np, nodes):
        with harness.Job(np=np, nodes=nodes, program="train.py", args=[STEPS]) as job:
            job.check_ok(120)
            return job.records()

    def test_losses_and_weights(self):
        alone = self.train(1, 1)[0]["losses"]
        self.assertEqual(len(alone), STEPS)
        self.assertLess(alone[-1], 0.5 * alone[0], "nothing was learned: the test would show nothing")
        for np, nodes in ((4, 2), (4, 1), (3, 2)):
            with self.subTest(np=np, nodes=nodes):
                records = self.train(np, nodes)
                self.assertEqual({r["digest"] for r in records}, {records[0]["digest"]})
                for step, (got, want) in enumerate(zip(records[0]["losses"], alone)):
                    self.assertAlmostEqual(got, want, delta=1e-4 + 1e-3 * abs(want), msg="step %d" % step)

    def test_runs_of_one_layout_are_bit_equal(self):
        first, second = self.train(4, 1), self.train(4, 1)
        self.assertEqual(first[0]["digest"], second[0]["digest"])


if __name__ == "__main__":
    unittest.main()
