"""Errors that concern one operation: on all ranks, with names and values."""

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
    "gather": "allgather 'grad.w': mismatched shapes: %s submitted [*, 4], rank 3 submitted [*, 5]; "
              "every rank must submit the same shape but for the first dimension",
}


class ErrorsTest(unittest.TestCase):
    def check(self, nodes):
        with harness.Job(np=4, nodes=nodes, program="mismatch.py") as job:
            job.check_ok(60)
            for record in job.records():
                for case, text in EXPECTED.items():
                    self.assertEqual(record[case], text % "ranks 0,1,2", case)
                self.assertEqual(record["late"], [10.0] * 3)
            duplicate = job.record(0)["duplicate"]
        self.assertIn("allreduce 'late'", duplicate)
        self.assertIn("still pending", duplicate)

    def test_one_node(self):
        self.check(1)

    def test_two_nodes(self):
        self.check(2)


if __name__ == "__main__":
    unittest.main()
