"""docs/benchmarks.md is rendered from its raw rounds."""

import os
import shutil
import subprocess
import tempfile
import unittest

import harness

DOCS = os.path.join(harness.ROOT, "docs")
COMPARE = os.path.join(harness.ROOT, "tests", "bench", "compare.py")
RAW, PAGE, PICTURE = "benchmarks.jsonl", "benchmarks.md", "benchmarks.png"


class PageTest(unittest.TestCase):

    @unittest.skipUnless(os.path.exists(os.path.join(DOCS, RAW)),
                         "nothing has been measured yet")
    def test_page_and_picture_come_from_the_rounds(self):
        directory = tempfile.mkdtemp(prefix="mpb", dir="/tmp")
        self.addCleanup(shutil.rmtree, directory)
        docs = os.path.join(directory, "docs")
        shutil.copytree(DOCS, docs)
        self.assertLess(os.path.getsize(os.path.join(docs, RAW)), 1 << 20)
        with open(os.path.join(docs, PAGE), encoding="utf-8") as f:
            committed = f.read()
        os.unlink(os.path.join(docs, PAGE))
        os.unlink(os.path.join(docs, PICTURE))
        subprocess.run(
            [harness.PYTHON, COMPARE, "render",
             "--raw", os.path.join(docs, RAW),
             "--page", os.path.join(docs, PAGE),
             "--picture", os.path.join(docs, PICTURE)],
            env=dict(harness.environment(), MPLCONFIGDIR=directory),
            check=True, timeout=60)
        with open(os.path.join(docs, PAGE), encoding="utf-8") as f:
            self.assertEqual(f.read(), committed,
                             "run: tests/bench/compare.py render")
        self.assertTrue(os.path.exists(os.path.join(docs, PICTURE)))


if __name__ == "__main__":
    unittest.main()
