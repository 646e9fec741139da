"""A model of 10,000 tensors: each has a name, all are under way at once."""

import unittest

import harness

NAMES, STEPS = 10000, 3


class ManyNamesTest(unittest.TestCase):
    def check(self, nodes):
        with harness.Job(np=4, nodes=nodes, program="many_names.py", args=[NAMES, STEPS],
                         launcher_args=["--verbose"]) as job:
            for r in range(4):
                job.await_file("done.%d" % r, 120)
            job.touch("end")
            job.check_ok(30)
            for record in job.records():
                self.assertEqual(record["wrong"], 0)
            print("%d nodes: steps of %d names took %s s" % (
                nodes, NAMES, ["%.2f" % s for s in job.record(0)["seconds"]]), flush=True)

    def test_one_node(self):
        self.check(1)

    def test_two_nodes(self):
        self.check(2)

    def test_more_than_the_limit(self):
        with harness.Job(np=2, program="many_names.py", args=[16385, 1]) as job:
            self.assertNotEqual(job.wait(120), 0)
            errors = job.stderr()
        self.assertIn("the job has used 16384 different operation names on this node; use the same names in every step",
                      errors)


if __name__ == "__main__":
    unittest.main()
