"""docs/scale.md is rendered from its raw runs."""

import os
import shutil
import tempfile
import unittest

import harness
import scale
import scale_page

DOCS = os.path.join(harness.ROOT, "docs")


class ScalePageTest(unittest.TestCase):

    def test_page_and_picture_come_from_the_runs(self):
        directory = tempfile.mkdtemp(prefix="mps", dir="/tmp")
        self.addCleanup(shutil.rmtree, directory)
        os.environ["MPLCONFIGDIR"] = directory
        docs = os.path.join(directory, "docs")
        os.mkdir(docs)
        shutil.copy(os.path.join(DOCS, "scale.jsonl"), docs)
        self.assertLess(os.path.getsize(os.path.join(docs, "scale.jsonl")), 1 << 20)
        page, picture = os.path.join(docs, "scale.md"), os.path.join(docs, "scale.png")
        self.assertEqual(scale.main(["render", "--raw", os.path.join(docs, "scale.jsonl"),
                                     "--page", page, "--picture", picture]), 0)
        with open(os.path.join(DOCS, "scale.md"), encoding="utf-8") as committed:
            with open(page, encoding="utf-8") as rendered:
                self.assertEqual(rendered.read(), committed.read(),
                                 "run: tests/scale/scale.py render")
        self.assertTrue(os.path.exists(picture))

    def test_the_median_of_the_rounds_counts(self):
        directory = tempfile.mkdtemp(prefix="mps", dir="/tmp")
        self.addCleanup(shutil.rmtree, directory)
        raw = os.path.join(directory, "raw.jsonl")
        with open(raw, "w", encoding="utf-8") as f:
            f.write('{"kind": "machine", "text": "m", "version": "v", "rounds": 3, "load_average": 0}\n')
            for cpu in (5, 1, 2):
                f.write('{"kind": "job", "program": "now", "shared": true, "nodes": 16, "load_average": 1, '
                        '"result": {"late": {"coordinator_cpu_s": %d}}}\n' % cpu)
        results = scale_page.Results(raw)
        self.assertEqual(results.nodes(), [16])
        self.assertEqual(results.job(16, "late", "coordinator_cpu_s"), 2)
        self.assertIsNone(results.median(lambda r: r["late"], nodes=64))


if __name__ == "__main__":
    unittest.main()
