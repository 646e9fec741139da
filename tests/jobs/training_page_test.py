"""The examples of docs/torch_training.md and docs/python.md run as they are."""

import os
import unittest

import harness


class TrainingPageTest(unittest.TestCase):
    def test_every_example_ends_with_equal_weights(self):
        page = os.path.join(harness.ROOT, "docs", "torch_training.md")
        with harness.Job(np=2, program="training_page.py", args=[page]) as job:
            job.check_ok(280)
            self.assertEqual([record["examples"] for record in job.records()], [9, 9])

    def test_what_the_page_on_the_interface_shows(self):
        page = os.path.join(harness.ROOT, "docs", "python.md")
        with harness.Job(np=3, program="python_page.py", args=[page]) as job:
            job.check_ok(120)
            for r, record in enumerate(job.records()):
                self.assertEqual((record["is_over"], record["weights_are_equal"]), (True, True))
                self.assertGreaterEqual(record["in_arena"], 2)
                self.assertEqual(record["x"], [r, 1.0])


if __name__ == "__main__":
    unittest.main()
