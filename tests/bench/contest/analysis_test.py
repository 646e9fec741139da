"""From rounds to figures: kinds, medians, ratios, bounds, the page."""

import json
import os
import tempfile
import unittest

from contest import analysis, page, plan
from contest.analysis import ALL, FAR, NEAR


def case(what, us, flags, setting="1x2", memcpy=20.0):
    turns = len(flags) - 1
    return {"kind": "case", "setting": setting, "what": what,
            "bytes": plan.bytes_of(what), "operations": 1, "warmups": 0,
            "measured": 1, "others": 0.01, "in_arena": {}, "pingpong_ns": flags,
            "memcpy_gbs": [memcpy] * turns, "us": us}


RUN = {"kind": "run", "machine": "machine: a test's", "versions": {"X": "1"},
       "cores": 2, "quick": False}


class AnalysisTest(unittest.TestCase):

    def setUp(self):
        self.dir = tempfile.mkdtemp(dir=os.environ.get("TEST_TMPDIR"))

    def results(self, *lines):
        path = os.path.join(self.dir, "raw.jsonl")
        settings = {line["setting"] for line in lines if "setting" in line}
        head = [RUN] + [{"kind": "setting", "setting": s, "missing": {}}
                        for s in sorted(settings)]
        with open(path, "w", encoding="utf-8") as f:
            f.writelines(json.dumps(line) + "\n" for line in head + list(lines))
        return analysis.load(path)

    def test_near_far_and_mixed_rounds(self):
        results = self.results(case(
            "16MiB", {"maypole": [[10], [11], [40], [50], [60]],
                      "openmpi": [[30], [33], [44], [100], [120]]},
            [100, 110, 179, 181, 400, 390]))
        found = results.case("1x2", "16MiB")
        self.assertEqual(found.kinds, [NEAR, NEAR, "", FAR, FAR])
        self.assertEqual(results.kinds(), [NEAR, FAR])
        self.assertEqual(found.median("maypole", NEAR), 10.5)
        self.assertEqual(found.median("maypole", FAR), 55)
        self.assertEqual(found.median("maypole", ALL), 40)
        self.assertIsNone(found.median("gloo"))
        ratios = [c for c in analysis.checks(results) if c.target == 2.5]
        self.assertEqual([(c.kind, c.value, c.met) for c in ratios],
                         [(NEAR, 3.0, True)])

    def test_one_kind_is_judged_as_near(self):
        results = self.results(case(
            "1MiB", {"maypole": [[10], [10]], "openmpi": [[15], [19]],
                     "torch": [[40], [20]]}, [100, 110, 105]))
        self.assertEqual(results.kinds(), [ALL])
        found = {c.text: c for c in analysis.checks(results) if c.unit == "x"}
        mpi = found["staged against Open MPI"]
        self.assertEqual((mpi.value, mpi.target, mpi.met), (1.7, 2, False))
        torch = found["staged against torch.distributed"]
        self.assertEqual((torch.value, torch.target, torch.met), (3, 3, True))

    def test_a_turn_counts_by_its_median(self):
        results = self.results(case("4", {"maypole": [[1, 2, 900], [3, 4, 5]]},
                                    [100, 100, 100]))
        self.assertEqual(results.case("1x2", "4").median("maypole"), 3)
        latency, = [c for c in analysis.checks(results)
                    if c.text == "staged, C++"]
        self.assertTrue(latency.met)
        missing, = [c for c in analysis.checks(results)
                    if c.text == "staged, Python"]
        self.assertIsNone(missing.met)

    def test_bounds(self):
        # Two buffers of 64 MiB at 22.8 GB/s.
        self.assertAlmostEqual(analysis.bound_us(2, 64 << 20, 22.8), 5886.7,
                               places=1)
        # Over two nodes each node sends the tensor's bytes once.
        self.assertAlmostEqual(analysis.bus_bandwidth(2, 125_000_000, 1e6),
                               1e9)
        results = self.results(
            case("64MiB", {"maypole_arena": [[8000], [8200]]}, [100, 100, 100],
                 memcpy=22.8),
            case("64MiB", {"maypole": [[560000], [565000]]}, [100, 100, 100],
                 setting="2x2-1g"),
            {"kind": "wire", "setting": "2x2-1g", "iperf3_bps": [9.4e8, 9.5e8]})
        arena, = [c for c in analysis.checks(results)
                  if c.text.startswith("arena, part") and c.what == "64MiB"]
        self.assertAlmostEqual(arena.value, 72.7, places=1)
        self.assertTrue(arena.met)
        wire, = [c for c in analysis.checks(results)
                 if c.setting == "2x2-1g"]
        self.assertAlmostEqual(wire.value, 100.5, places=1)

    def test_who_failed_is_on_the_page(self):
        results = self.results(
            case("4", {"maypole": [[1]]}, [100, 100]),
            {"kind": "failed", "setting": "1x2", "what": "4",
             "contestant": "gloo", "reason": "it ended"})
        path = os.path.join(self.dir, "page.md")
        page.write(results, path, os.path.join(self.dir, "p.png"), "raw.jsonl")
        with open(path, encoding="utf-8") as f:
            self.assertIn("**gloo failed**: it ended", f.read())

    def test_operations_of_a_batch_stay_exact(self):
        for setting in plan.SETTINGS:
            for what in plan.SIZES:
                operations = plan.case_plan(what, setting).operations
                # 13 bits of the first sum's exponent, 127 in a float32.
                self.assertLess(float(setting.ranks)**operations, 2.0**113)


if __name__ == "__main__":
    unittest.main()
