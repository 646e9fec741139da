"""maypole-timeline on files as Maypole writes them; start and stop of timelines."""

import importlib.util
import io
import os
import shutil
import tempfile
import unittest
from contextlib import redirect_stderr, redirect_stdout
from types import SimpleNamespace

from maypole import _native
from maypole.common import timeline
from maypole.timeline import summary, trace
from maypole.timeline.__main__ import main

# Two ranks; rank 1 was 200 ms late for "grad", rank 0 1 ms for "loss".
LINES = """[
{"ph":"M","pid":1,"tid":0,"name":"process_name","args":{"name":"rank 0 (n0)"}},
{"ph":"M","pid":2,"tid":0,"name":"process_name","args":{"name":"rank 1 (n1)"}},
{"ph":"M","pid":100000,"tid":0,"name":"process_name","args":{"name":"executor n0"}},
{"ph":"X","pid":1,"tid":1,"ts":1000.000,"dur":210000.000,"name":"allreduce grad","cat":"operation","args":{"tensor":"grad","kind":"allreduce","rank":0,"number":1,"bytes":4,"process_set":0,"last_rank":1,"late_after_previous_ms":200.000000,"late_after_first_ms":200.000000,"waited_ms":200.000000}},
{"ph":"X","pid":1,"tid":1,"ts":1000.000,"dur":200000.000,"name":"NODES","cat":"phase"},
{"ph":"X","pid":1,"tid":1,"ts":201000.000,"dur":10000.000,"name":"DATA","cat":"phase"},
{"ph":"X","pid":2,"tid":1,"ts":201000.000,"dur":10000.000,"name":"allreduce grad","cat":"operation","args":{"tensor":"grad","kind":"allreduce","rank":1,"number":1,"bytes":4,"process_set":0,"last_rank":1,"late_after_previous_ms":200.000000,"late_after_first_ms":200.000000,"waited_ms":0.000000}},
{"ph":"X","pid":2,"tid":100001,"ts":1000.000,"dur":200000.000,"name":"late by 200.0 ms for allreduce grad","cat":"critical_path","args":{"rank":1,"tensor":"grad","kind":"allreduce","number":1,"late_after_previous_ms":200.0,"late_after_first_ms":200.0,"waiting":1}},
{"ph":"s","pid":2,"tid":100001,"ts":200999.999,"name":"late","cat":"critical_path","id":1},
{"ph":"X","pid":100000,"tid":1,"ts":201000.000,"dur":1000.000,"name":"NODES allreduce grad","cat":"order","args":{"tensor":"grad"}},
{"ph":"X","pid":1,"tid":1,"ts":221000.000,"dur":10000.000,"name":"allreduce loss","cat":"operation","args":{"tensor":"loss","kind":"allreduce","rank":0,"number":1,"bytes":4,"process_set":0,"last_rank":0,"late_after_previous_ms":1.000000,"late_after_first_ms":1.000000,"waited_ms":0.000000}},
{"ph":"X","pid":2,"tid":1,"ts":220000.000,"dur":11000.000,"name":"allreduce loss","cat":"operation","args":{"tensor":"loss","kind":"allreduce","rank":1,"number":1,"bytes":4,"process_set":0,"last_rank":0,"late_after_previous_ms":1.000000,"late_after_first_ms":1.000000,"waited_ms":1.000000}},
{"ph":"X","pid":2,"tid":1,"ts":240000.000,"dur":1000.000,"name":"allreduce alone","cat":"operation","args":{"tensor":"alone","kind":"allreduce","rank":1,"number":1,"bytes":4,"process_set":0}},
{"ph":"i","pid":100000,"tid":200001,"ts":241000.000,"name":"records lost: 3","cat":"lost","s":"p","args":{"lost":3}}
]
"""

TABLES = """5 parts of operations in 0.240 s, 2 ranks
3 records were lost: the ranks were faster than the timeline
1 parts are of operations that not all ranks recorded

rank  last  all waited for it (s)  it waited (s)
1     1     0.200                  0.001
0     1     0.001                  0.200

waited (s)  times  most for        operation
0.200       1      rank 1 (0.200)  allreduce grad
0.001       1      rank 0 (0.001)  allreduce loss"""


class FileTest(unittest.TestCase):
    def setUp(self):
        self.dir = tempfile.mkdtemp(dir=os.environ.get("TEST_TMPDIR"))
        self.addCleanup(shutil.rmtree, self.dir)

    def path(self, text, name="t.json"):
        path = os.path.join(self.dir, name)
        with open(path, "w", encoding="utf-8") as f:
            f.write(text)
        return path

    def test_reads_who_was_late(self):
        loaded = trace.load(self.path(LINES))
        self.assertEqual(loaded.tracks, ["rank 0 (n0)", "rank 1 (n1)", "executor n0"])
        self.assertEqual(len(loaded.operations), 5)
        self.assertEqual([p.name for p in loaded.operations[0].phases], ["NODES", "DATA"])
        self.assertAlmostEqual(loaded.operations[0].begin, 0)
        self.assertEqual([(l.rank, l.tensor, l.waiting) for l in loaded.late], [(1, "grad", 1)])
        self.assertAlmostEqual(loaded.late[0].seconds, 0.2)
        self.assertEqual(summary.text(loaded), TABLES)

    def test_reads_what_a_killed_job_has_left(self):
        whole = trace.load(self.path(LINES))
        unclosed = LINES.rstrip().rstrip("]").rstrip()
        for text in (unclosed, unclosed + ",", unclosed + ',\n{"ph":"X","pi'):
            self.assertEqual(trace.load(self.path(text)), whole)
        self.assertEqual(trace.load(self.path("[")).operations, [])

    def test_a_job_of_one_rank_has_no_tables(self):
        alone = trace.load(self.path("[" + LINES.splitlines()[1] + """
{"ph":"X","pid":1,"tid":1,"ts":1.0,"dur":1.0,"name":"allreduce x","cat":"operation","args":{"tensor":"x","ranks":1}}]"""))
        self.assertEqual(summary.text(alone), "1 parts of operations in 0.000 s, 1 ranks")

    def test_refuses_other_files(self):
        for text in ("", "hello", '{"traceEvents": []}', "[1, 2]", '[{"ph":"X","pid":1,"ts":1}]'):
            with self.assertRaisesRegex(trace.NotATimeline, "t.json"):
                trace.load(self.path(text))

    def run_main(self, *argv):
        out, err = io.StringIO(), io.StringIO()
        with redirect_stdout(out), redirect_stderr(err):
            status = main(list(argv))
        return status, out.getvalue(), err.getvalue()

    def test_program(self):
        status, out, err = self.run_main(self.path(LINES))
        self.assertEqual((status, err), (0, ""))
        self.assertIn("allreduce grad", out)
        status, _, err = self.run_main(os.path.join(self.dir, "missing"))
        self.assertEqual(status, 1)
        self.assertIn("missing", err)

    @unittest.skipIf(importlib.util.find_spec("matplotlib") is None, "matplotlib is not installed")
    def test_draws(self):
        png = os.path.join(self.dir, "t.png")
        for text in (LINES, "["):
            # matplotlib may say something about its cache.
            self.assertEqual(self.run_main(self.path(text), "-o", png)[0], 0)
            with open(png, "rb") as f:
                self.assertEqual(f.read(4), b"\x89PNG")
        status, _, err = self.run_main(self.path(LINES), "-o", "/nowhere/t.png")
        self.assertEqual(status, 1)
        self.assertIn("/nowhere/t.png", err)


class StartTest(unittest.TestCase):
    def setUp(self):
        self.calls = []
        self.status = _native.OK
        _native.use(SimpleNamespace(start_timeline=lambda *args: self.called("start", *args),
                                    stop_timeline=lambda: self.called("stop"), last_error=lambda: "why"))
        self.addCleanup(_native.use, None)

    def called(self, *call):
        self.calls.append(call)
        return self.status

    def test_start_and_stop(self):
        timeline.start_timeline("t.json")
        timeline.start_timeline(b"x", mark_cycles=True)
        timeline.stop_timeline()
        self.assertEqual(self.calls, [("start", b"t.json", False), ("start", b"x", True), ("stop",)])

    def test_errors(self):
        for status, kind in ((_native.INVALID_ARGUMENT, ValueError), (_native.FAILED_PRECONDITION, ValueError),
                             (_native.DEADLINE_EXCEEDED, RuntimeError), (_native.ABORTED, RuntimeError)):
            self.status = status
            with self.assertRaisesRegex(kind, "why"):
                timeline.start_timeline("t.json")
            with self.assertRaisesRegex(kind, "why"):
                timeline.stop_timeline()


if __name__ == "__main__":
    unittest.main()
