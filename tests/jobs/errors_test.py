"""Errors of one operation: all ranks get them, with names and values; waits
that a signal or a deadlock ends."""

import unittest

import harness

EXPECTED = {
    "shape": "allreduce 'grad.w': mismatched shapes: %s submitted [3], rank 3 submitted [4]; "
             "every rank must submit the same shape",
    "dtype": "allreduce 'grad.w': mismatched dtypes: %s submitted float32, rank 3 submitted float64; "
             "every rank must submit the same dtype",
    "op": "allreduce 'grad.w': mismatched reduction operations: %s submitted sum, rank 3 submitted "
          "average; every rank must submit the same reduction",
    "prescale": "allreduce 'grad.w': mismatched prescale factors: %s submitted 1, rank 3 submitted 0.5; "
                "every rank must submit the same prescale factor",
    "root": "broadcast 'grad.w': mismatched root ranks: %s submitted 0, rank 3 submitted 1; "
            "every rank must submit the same root rank",
    "max": "allreduce 'grad.w': mismatched reduction operations: %s submitted product, rank 3 submitted max; "
           "every rank must submit the same reduction",
    "scatter": "reducescatter 'grad.w': mismatched shapes: %s submitted [4, 2], rank 3 submitted [5, 2]; "
               "every rank must submit the same shape",
    "exchange": "alltoall 'grad.w': mismatched shapes: %s submitted [*, 2], rank 3 submitted [*, 3]; "
                "every rank must submit the same shape except for the first dimension",
    "group": "allreduce 'grad.w.1of3': mismatched shapes: %s submitted [3], rank 3 submitted [4]; "
             "every rank must submit the same shape",
    "gather": "allgather 'grad.w': mismatched shapes: %s submitted [*, 4], rank 3 submitted [*, 5]; "
              "every rank must submit the same shape except for the first dimension",
}

# Told to the members, ranks 0 and 3.
IN_A_SET = ("allreduce 'grad.w' of process set 1: mismatched shapes: rank 0 submitted [3], rank 3 submitted [4]; "
            "every rank must submit the same shape")


class ErrorsTest(unittest.TestCase):
    def check(self, nodes):
        with harness.Job(np=4, nodes=nodes, program="mismatch.py") as job:
            job.check_ok(120)
            for record in job.records():
                for case, text in EXPECTED.items():
                    self.assertEqual(record[case], text % "ranks 0,1,2", case)
                self.assertEqual(record["late"], [10.0] * 3)
            duplicate = job.record(0)["duplicate"]
            self.assertEqual([r["set"] for r in job.records()], [IN_A_SET, "no error", "no error", IN_A_SET])
        self.assertIn("allreduce 'late'", duplicate)
        self.assertIn("still pending", duplicate)

    def test_one_node(self):
        self.check(1)

    def test_two_nodes(self):
        self.check(2)


class BlockedTest(unittest.TestCase):
    def check(self, nodes):
        with harness.Job(np=2, nodes=nodes, program="blocked.py") as job:
            job.check_ok(120)
            records = job.records()
        for record in records:
            self.assertEqual(record["total"], [2.0] * 3)
            self.assertIn("deadlock", record["text"])
            self.assertIn("allreduce 'loss', which rank 1 has not submitted", record["text"])
            self.assertIn("allgather 'loss', which rank 0 has not submitted", record["text"])
            self.assertLess(record["seconds"], 20)
        # The signal came after 2 s, its handler ran soon.
        self.assertGreater(records[0]["interrupted_after"], 1.9)
        self.assertLess(records[0]["interrupted_after"], 4)

    def test_one_node(self):
        self.check(1)

    def test_two_nodes(self):
        self.check(2)


if __name__ == "__main__":
    unittest.main()
