"""A model of 10,000 named tensors, all under way at once; and a model with more
tensors than a node has slots."""

import unittest

import harness

NAMES, STEPS = 10000, 3


class ManyNamesTest(unittest.TestCase):
    def check(self, nodes, np=4, names=NAMES, steps=STEPS):
        with harness.Job(np=np, nodes=nodes, program="many_names.py", args=[names, steps],
                         launcher_args=["--verbose"]) as job:
            for r in range(np):
                job.await_file("done.%d" % r, 120)
            job.touch("end")
            job.check_ok(30)
            for record in job.records():
                self.assertEqual(record["wrong"], 0)
            print("%d nodes: steps of %d names took %s s" % (
                nodes, names, ["%.2f" % s for s in job.record(0)["seconds"]]), flush=True)

    def test_one_node(self):
        self.check(1)

    def test_two_nodes(self):
        self.check(2)

    def test_more_names_than_slots(self):
        self.check(1, np=2, names=16385 + 500, steps=1)


if __name__ == "__main__":
    unittest.main()
