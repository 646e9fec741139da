"""The comparison works: all contestants, real ranks, page and picture."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import unittest
import uuid

import harness
import namespaces
from contest import plan

COMPARE = os.path.join(harness.ROOT, "tests", "bench", "compare.py")
REASON = namespaces.available()
SETTINGS = ["1x2"] + ([] if REASON else ["2x2-1g"])
# Our processes are known by a variable that all of them inherit.
MARK = "BENCH_TEST_MARK"


def marked(mark):
    """Processes whose environment has the mark."""
    found = []
    for pid in harness.processes():
        try:
            with open(f"/proc/{pid}/environ", "rb") as f:
                if f"{MARK}={mark}".encode() in f.read().split(b"\0"):
                    found.append(pid)
        except OSError:
            continue
    return found


class CompareTest(unittest.TestCase):

    def setUp(self):
        self.dir = tempfile.mkdtemp(prefix="mpb", dir="/tmp")
        self.addCleanup(shutil.rmtree, self.dir)
        self.mark = uuid.uuid4().hex

    def path(self, name):
        return os.path.join(self.dir, name)

    def command(self, *options):
        return [harness.PYTHON, COMPARE, "--quick", "--tree", harness.ROOT,
                "--raw", self.path("raw.jsonl"), "--page", self.path("page.md"),
                "--picture", self.path("page.png"), *options]

    def environment(self):
        return dict(os.environ, PATH=harness.environment()["PATH"],
                    MPLCONFIGDIR=self.dir, **{MARK: self.mark})

    def lines(self, kind):
        with open(self.path("raw.jsonl"), encoding="utf-8") as f:
            found = [json.loads(line) for line in f]
        return [line for line in found if line["kind"] == kind]

    def check_nothing_is_left(self, pid):
        harness.wait_until(lambda: not marked(self.mark), 10,
                           "the comparison's processes to be gone")
        if not REASON:
            names = subprocess.check_output(
                ["ip", "netns", "list"], text=True,
                env=harness.environment()).split()
            self.assertFalse([n for n in names if n in (f"mp{pid}a",
                                                        f"mp{pid}b")])

    def test_all_contestants_take_turns(self):
        process = subprocess.Popen(
            self.command("--settings", ",".join(SETTINGS)),
            env=self.environment(), stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE, text=True)
        _, said = process.communicate(timeout=280)
        self.assertEqual(process.returncode, 0, said)
        self.check_nothing_is_left(process.pid)
        self.assertEqual([s["missing"] for s in self.lines("setting")],
                         [{}] * len(SETTINGS))
        cases = {(c["setting"], c["what"]): c for c in self.lines("case")}
        for setting in plan.SETTINGS:
            if setting.key not in SETTINGS:
                continue
            for what in plan.QUICK[setting.key]:
                self.check_case(cases[setting.key, what])
        for line in self.lines("waiting"):
            self.assertEqual(sorted(line["cores"]), sorted(plan.CONTESTANTS))
            for name, cores in line["cores"].items():
                # Asleep, not spinning, is far below.
                self.assertLess(cores, 0.2, name)
        for line in self.lines("wire"):
            for rate in line["iperf3_bps"]:
                self.assertLess(rate, 1.05e9)
                self.assertGreater(rate, 1e8)
        example, = self.lines("example")
        self.assertEqual(sorted(example["us_per_step"]), ["ddp", "maypole"])
        with open(self.path("page.md"), encoding="utf-8") as f:
            page = f.read()
        self.assertIn("| 1 node, 2 ranks | 1 MiB | staged against Open MPI |",
                      page)
        with open(self.path("page.png"), "rb") as f:
            self.assertEqual(f.read(4), b"\x89PNG")
        os.unlink(self.path("page.md"))
        subprocess.run(self.command("render"), env=self.environment(),
                       check=True, capture_output=True, timeout=60)
        with open(self.path("page.md"), encoding="utf-8") as f:
            self.assertEqual(f.read(), page)

    def check_case(self, case):
        expected = {c.key for c in plan.COLUMNS if case["what"] in c.whats}
        self.assertEqual(set(case["us"]), expected)
        if (case["setting"], case["what"]) == ("1x2", "1MiB"):
            self.assertEqual(case["in_arena"], {"maypole_arena": 1.0,
                                                "maypole_py_arena": 1.0})
        turns = len(case["memcpy_gbs"])
        self.assertEqual(len(case["pingpong_ns"]), turns + 1)
        for key, times in case["us"].items():
            self.assertEqual([len(t) for t in times],
                             [case["measured"]] * turns, key)
            self.assertTrue(all(us > 0 for t in times for us in t), key)

    def test_it_cleans_up_when_told_to_end(self):
        process = subprocess.Popen(
            self.command("--settings", SETTINGS[-1], "--turns", "100000"),
            env=self.environment(), stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE, text=True)
        try:
            harness.wait_until(
                lambda: "starting" in process.stderr.readline(), 60,
                "the contestants to be started")
            # The limits, a rank of each contestant, their daemons.
            harness.wait_until(lambda: len(marked(self.mark)) > 12, 60,
                               "the contestants' processes")
            process.terminate()
            process.stderr.read()
            self.assertEqual(process.wait(60), 143)
        finally:
            if process.poll() is None:
                process.kill()
            process.communicate()
        self.check_nothing_is_left(process.pid)


if __name__ == "__main__":
    unittest.main()
