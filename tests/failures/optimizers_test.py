"""Two optimizers, a model used twice, and DataLoader's workers, in real jobs."""

import os
import unittest

import harness


class OptimizersTest(unittest.TestCase):
    def check(self, np, nodes):
        program = os.path.join(harness.ROOT, "tests", "failures", "programs", "optimizers.py")
        with harness.Job(np=np, nodes=nodes, command=[harness.PYTHON, program]) as job:
            job.check_ok(50)
            for r, record in enumerate(job.records()):
                with self.subTest(rank=r):
                    self.check_record(record, np)

    def check_record(self, seen, np):
        self.assertLess(seen["model_used_twice"], 1e-6)
        text, off = seen["two_backwards"]
        self.assertRegex(text, r"the gradient of '.*' was computed more than backward_passes_per_step=1 times before "
                         r"step\(\); increase backward_passes_per_step.*; step\(\): the gradient of '.*' was "
                         "changed while it was reduced")
        self.assertLess(off, 1e-6)
        self.assertLess(seen["in_turn"], 1e-6)
        self.assertLess(seen["named_apart"], 1e-6)
        self.assertLess(seen["same_names"], 1e-6)
        self.assertEqual(seen["data_loader"], [4, [np] * 3])

    def test_one_node(self):
        self.check(2, 1)

    def test_two_nodes(self):
        self.check(2, 2)


if __name__ == "__main__":
    unittest.main()
