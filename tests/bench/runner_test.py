"""The Python twin's parts: statistics, table, patterns, runner."""

import json
import unittest

import torch

import cases
import report
from pattern import PERIOD, Pattern
from runner import Runner, WrongResult


class ReportTest(unittest.TestCase):

    def test_percentile(self):
        self.assertEqual(report.percentile([7], 90), 7)
        self.assertEqual(report.percentile([3, 1, 2], 50), 2)
        self.assertEqual(report.percentile([4, 1, 3, 2], 50), 2.5)
        values = [10 * i for i in range(11, 0, -1)]
        self.assertEqual(report.percentile(values, 90), 100)
        self.assertAlmostEqual(report.percentile(values, 95), 105)

    def test_slowest_rank(self):
        self.assertEqual(report.slowest_rank([1, 5, 3, 2, 4, 9], 2), [2, 5, 9])

    def test_table_is_that_of_the_cpp_program(self):
        # report_test.cc expects the same texts.
        self.assertEqual(
            report.head_text("C++", 4, 2),
            "allreduce, sum of float32, in place; C++ API, 4 ranks on 2 nodes\n"
            "case              bytes  tensors  rounds    median us       p90 us"
            "      GB/s\n")
        self.assertEqual(
            report.row_text(report.Row("64 KiB", 65536, 1, [100, 300, 200.25])),
            "64 KiB            65536        1       3        200.2        280.1"
            "     0.327\n")

    def test_json(self):
        rows = [report.Row("4 B", 4, 1, [2.0, 4.0])]
        self.assertEqual(json.loads(report.json_text("x", 4, 2, rows)), {
            "api": "x", "ranks": 4, "nodes": 2, "cases": [{
                "label": "4 B", "bytes": 4, "tensors": 1, "rounds": 2,
                "median_us": 3.0, "p90_us": 3.8, "gb_per_s": 0.001333,
                "times_us": [2.0, 4.0]}]})


class CasesTest(unittest.TestCase):

    def test_wrong_flags_are_named(self):
        for arguments, expected in (
            ({"sizes": "4,6"}, "'6': a size must be"),
            ({"sizes": "4,x"}, "'x' is not a number"),
            ({"sizes": "4,"}, "'' is not a number"),
            ({"sizes": "1KiB,1024"}, "given twice"),
            ({"max_bytes": "much"}, "'much'"),
            ({"rounds": -1}, "-1 rounds"),
            ({"sizes": "", "resnet": False}, "no size"),
        ):
            with self.assertRaisesRegex(ValueError, expected):
                cases.make_cases(**arguments)


class FakeLibrary:
    """Rank 1 of 3, alone: adds the values that the others would have; may add errors."""

    rank, size, nodes = 1, 3, 1

    def __init__(self, spoil=None):
        self.rounds = 0
        self.spoil = spoil
        self.pattern = Pattern(3)

    def barrier(self):
        pass

    def allreduce(self, names, tensors):
        self.rounds += 1
        for number, tensor in enumerate(tensors):
            other = torch.empty_like(tensor)
            for rank in (0, 2):
                self.pattern.fill(rank, self.rounds, number, other)
                tensor += other
        if self.spoil:
            self.spoil(self.rounds - 1, tensors)

    def gather(self, mine):
        return [0.0] * len(mine) + mine + [1e9 + i for i in range(len(mine))]


CASE = cases.Case("two", [("bench.a", (10, 10)), ("bench.b", (70000,))], 2, 3)


class RunnerTest(unittest.TestCase):

    def test_times_are_the_slowest_ranks(self):
        library = FakeLibrary()
        row = Runner(library).run(CASE)
        self.assertEqual(library.rounds, 5)
        self.assertEqual(row, report.Row("two", 280400, 2,
                                         [1e9, 1e9 + 1, 1e9 + 2]))

    def test_a_wrong_element_is_reported(self):
        for index in (0, PERIOD - 1, PERIOD, 69999):
            seen = []

            def spoil(turn, tensors):
                if turn == 3:
                    seen.append(tensors[1][index].item())
                    tensors[1][index] = 0.5

            with self.assertRaises(WrongResult) as caught:
                Runner(FakeLibrary(spoil)).run(CASE)
            self.assertEqual(
                str(caught.exception),
                "wrong result: case two, tensor bench.b, round 3 "
                f"(of 2 + 3), index {index} of 70000: got 0.5, expected "
                f"{seen[0]:.9g}")

    def test_not_a_number_is_wrong(self):
        def spoil(turn, tensors):
            tensors[0][3, 4] = float("nan")

        with self.assertRaisesRegex(WrongResult, "index 34 of 100: got nan"):
            Runner(FakeLibrary(spoil)).run(CASE)


if __name__ == "__main__":
    unittest.main()
