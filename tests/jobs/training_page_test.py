"""The examples of docs/torch_training.md run as they are."""

import os
import unittest

import harness


class TrainingPageTest(unittest.TestCase):
    def test_every_example_ends_with_equal_weights(self):
        page = os.path.join(harness.ROOT, "docs", "torch_training.md")
        with harness.Job(np=2, program="training_page.py", args=[page]) as job:
            job.check_ok(120)
            self.assertEqual([record["examples"] for record in job.records()], [8, 8])


if __name__ == "__main__":
    unittest.main()
