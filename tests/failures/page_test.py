"""docs/failures.md is rendered from its raw runs, and every fault is on it."""

import os
import unittest

import harness
import page
import registry

DOCS = os.path.join(harness.ROOT, "docs")
RAW, PAGE = os.path.join(DOCS, "failures.jsonl"), os.path.join(DOCS, "failures.md")


class PageTest(unittest.TestCase):

    def test_the_page_comes_from_the_runs(self):
        with open(PAGE, encoding="utf-8") as f:
            self.assertEqual(f.read(), page.render(*page.read(RAW)),
                             "run: bazel run -c opt //tests/failures:measure -- --render")

    def test_every_fault_was_measured(self):
        measured = {(run["fault"], run["layout"]) for run in page.read(RAW)[1]}
        self.assertEqual(measured, {(f.name, layout) for f in registry.ALL for layout in f.layouts})

    def test_every_measured_time_is_within_its_bound(self):
        for run in page.read(RAW)[1]:
            for who, seconds in run["seconds"].items():
                self.assertLess(seconds, registry.BY_NAME[run["fault"]].bound, "%s: %s" % (run["fault"], who))

    def test_percentiles(self):
        values = [i / 10 for i in range(20, 0, -1)]
        self.assertEqual([page.percentile(values, share) for share in (0.5, 0.95, 0.99, 1)], [1.0, 1.9, 2.0, 2.0])
        self.assertEqual(page.percentile([3], 0.5), 3)


if __name__ == "__main__":
    unittest.main()
