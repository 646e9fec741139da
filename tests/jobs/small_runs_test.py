"""Small operations over several nodes: inputs travel before the coordinator has ordered them (docs/eager.md)."""

import unittest

import harness

NP, COUNTED, TENSORS = 4, 200, 10  # as programs/frozen.py
NEGOTIATED = "--coordinator-flag=--frozen_nodes=0"


class SmallRunsTest(unittest.TestCase):
    def counted(self, *flags):
        """Of all nodes, in steps of which the values are checked: operations, and those that were small."""
        with harness.Job(np=NP, nodes=2, program="frozen.py", args=["steady"],
                         launcher_args=[NEGOTIATED, *flags]) as job:
            job.await_file("rank.0.pid")
            for name in ("settled", "count"):
                job.touch(name)
            self.await_all(job, "warm")
            before = self.values(job)
            job.touch("counting")
            self.await_all(job, "counted")
            after = self.values(job)
            for name in ("other", "late", "end"):
                job.touch(name)
            job.check_ok(60)
        return [a - b for a, b in zip(after, before)]

    def await_all(self, job, name):
        for r in range(job.np):
            job.await_file("%s.%d" % (name, r), 120)

    def values(self, job):
        nodes = [end for name, end in job.endpoints().items() if name.startswith("node")]
        return [sum(harness.metric(end, "maypole_%s_operations_total" % kind) for end in nodes)
                for kind in ("executor", "small")]

    def test_most_small_operations_need_no_data_after_the_order(self):
        operations, small = self.counted()
        self.assertEqual(operations, 2 * COUNTED * TENSORS)
        self.assertGreater(small, operations / 2)

    def test_off(self):
        operations, small = self.counted("--coordinator-flag=--eager_nodes=0")
        self.assertEqual((operations, small), (2 * COUNTED * TENSORS, 0))


if __name__ == "__main__":
    unittest.main()
