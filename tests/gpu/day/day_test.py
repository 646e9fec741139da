"""A day on a real GPU can be carried, rehearses well from a read-only folder as another user, and its tables are true.

With DAY_TORCH=pypi in the environment it rehearses with the newest torch of PyPI, as this user.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

import environments
import installed
import pypi_torch

HERE = os.path.join(installed.ROOT, "tests", "gpu", "day")
SCRIPT = os.path.join(HERE, "day.sh")
NOBODY = 65534
# Phases that have nothing that a machine without a GPU could run, and the words of the reason.
NOT_REHEARSED = {"sanitizer": "a fake driver has no code of a GPU", "mps": "a fake driver knows no MPS"}

sys.path.insert(0, HERE)
import results  # noqa: E402
import run  # noqa: E402
import tables  # noqa: E402


class DayTest(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        cls.dir = installed.directory()
        cls.addClassCleanup(shutil.rmtree, cls.dir)
        wheel = installed.make_wheel(cls.dir)
        cls.folder = os.path.join(cls.dir, "day")
        os.mkdir(cls.folder)
        programs = [os.path.join(installed.ROOT, "tests/gpu", name, name) for name in ("conformance", "figures")]
        cls.said = subprocess.run([SCRIPT, "gather", cls.folder, wheel, *programs], check=True, text=True,
                                  stdout=subprocess.PIPE).stdout
        os.unlink(wheel)
        cls.python = None
        if os.environ.get("DAY_TORCH") == "pypi":
            cls.python = pypi_torch.environment(os.path.join(cls.dir, "env"))
        cls.environment = installed.Environment(os.path.join(cls.dir, "env"))

    def rehearse(self, *phases, python=None):
        """The process, the lines of the results and the log of a rehearsal by another user; by this one with an
        interpreter that only this user may read."""
        out = tempfile.mkdtemp(dir=self.dir)
        as_user = []
        if os.geteuid() == 0 and python is None:
            os.chown(out, NOBODY, NOBODY)
            as_user = ["setpriv", "--reuid=%d" % NOBODY, "--regid=%d" % NOBODY, "--clear-groups"]
        # The fakes must be readable for that user, too.
        fakes = os.path.join(self.dir, "fakes")
        for name in ("fake/libcuda.so.1", "fake_nccl/libnccl.so.2"):
            os.makedirs(os.path.dirname(os.path.join(fakes, name)), exist_ok=True)
            shutil.copy(os.path.join(installed.ROOT, "tests/gpu", name), os.path.join(fakes, name))
        env = {"PATH": "/usr/bin:/bin", "OUT": out, "HOME": "/nonexistent", "PYTHON": python or self.environment.path + "/bin/python",
               "MAYPOLE_DAY_FAKES": fakes, "MAYPOLE_DAY_FOLDER": self.folder}
        done = subprocess.run(as_user + [os.path.join(self.folder, "day.sh"), "rehearse", *phases], env=env, cwd="/",
                              text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=800)
        path = os.path.join(out, "results.jsonl")
        self.assertTrue(os.path.exists(os.path.join(out, "day.log")), done.stdout)
        lines = results.read(path) if os.path.exists(path) else []
        with open(os.path.join(out, "day.log"), encoding="utf-8") as f:
            log = f.read()
        return done, lines, log

    def test_all_phases_are_rehearsed(self):
        subprocess.run(["chmod", "-R", "a-w", self.folder], check=True)
        done, lines, log = self.rehearse(python=self.python)
        self.assertEqual(done.returncode, 0, done.stdout + log[-8000:])
        self.assertIn("A REHEARSAL", done.stdout)
        reasons = dict(NOT_REHEARSED)
        if self.python is None:
            reasons["distributed"] = "needs torch 2.1 or newer"
        for phase in run.PHASES:
            checks = [line for line in lines if line["phase"] == phase.name and line["check"] != "(whole)"]
            states = {line["state"] for line in checks}
            if phase.name in reasons:
                self.assertEqual(states - {"noted"}, {"skipped"})
                self.assertIn(reasons[phase.name], checks[-1]["values"]["reason"])
            else:
                self.assertTrue(states & {"passed", "measured"}, (phase.name, checks))
            self.assertRegex(done.stdout, r"(?m)^%s +\d" % phase.name)
            self.assertTrue(all(line.get("rehearsal") for line in lines))
        (said,) = [line["values"]["text"] for line in lines if line["check"] == "maypolerun --check-build"]
        # The Python that runs the day is the one whose packages count, such as its NCCL.
        self.assertRegex(said, r"PyTorch \S+ \(of PREFIX/env/bin/python")
        with self.assertRaises(tables.Rehearsed):
            tables.find(lines)
        self.assertEqual(os.listdir(os.path.dirname(self.folder)).count("__pycache__"), 0)

    def test_jax_is_rehearsed(self):
        done, lines, log = self.rehearse("arrays", python=environments.python("jax-0.4.38"))
        self.assertEqual(done.returncode, 0, done.stdout + log[-4000:])
        self.assertEqual([line["state"] for line in lines if line["check"].startswith("maypole.jax")], ["passed"])

    def test_the_folder_is_small_and_has_nothing_of_cuda(self):
        size = int(re.search(r"has (\d+) bytes", self.said).group(1))
        self.assertLessEqual(size, 50 << 20)
        names = [name for _, _, files in os.walk(self.folder) for name in files]
        self.assertFalse([name for name in names if re.match("lib(cuda|nccl)", name)])

    def test_a_phase_that_crashes_hangs_or_fails_ends_alone(self):
        folder = os.path.join(self.dir, "broken")
        shutil.copytree(self.folder, folder)
        subprocess.run(["chmod", "-R", "u+w", folder], check=True)
        phases = os.path.join(folder, "tests", "gpu", "day", "phases")
        bodies = {"there": "import os, subprocess\ndef run(day):\n    subprocess.Popen(['setsid', 'sleep', '1000'])\n"
                           "    day.skip('x', 'y')\n    os.abort()\n",
                  "arrays": "import subprocess\ndef run(day):\n    with day.check('sleeps') as values:\n"
                            "        values['pid'] = subprocess.Popen(['setsid', 'sleep', '1000']).pid\n"
                            "    import time; time.sleep(1000)\n",
                  "sanitizer": "def run(day):\n    with day.check('wrong') as values:\n        values['n'] = 1\n"
                               "        raise AssertionError('it is wrong')\n    with day.check('right'): pass\n"}
        for name, body in bodies.items():
            with open(os.path.join(phases, name + ".py"), "w", encoding="utf-8") as f:
                f.write(body)
        with open(os.path.join(folder, "tests", "gpu", "day", "run.py"), encoding="utf-8") as f:
            text = f.read()
        with open(os.path.join(folder, "tests", "gpu", "day", "run.py"), "w", encoding="utf-8") as f:
            f.write(text.replace('Phase("arrays", 30,', 'Phase("arrays", 3,'))
        subprocess.run(["chmod", "-R", "a+rX", folder], check=True)
        whole, self.folder = self.folder, folder
        try:
            done, lines, _ = self.rehearse("there", "sanitizer", "arrays")
        finally:
            self.folder = whole
        self.assertEqual(done.returncode, 1, done.stdout)
        ends = {line["phase"]: line["values"]["end"] for line in lines if line["check"] == "(whole)"}
        self.assertEqual(ends, {"there": "signal 6", "sanitizer": "ended", "arrays": "out of time"})
        states = {line["check"]: line["state"] for line in lines if line["phase"] == "sanitizer"}
        self.assertEqual((states["wrong"], states["right"]), ("failed", "passed"))
        (pid,) = [line["values"]["pid"] for line in lines if line["check"] == "sleeps"]
        self.assertFalse(os.path.exists("/proc/%d" % pid))

    def test_limits(self):
        every = sum(phase.seconds for phase in run.PHASES if not phase.alone)
        first = sum(phase.first or 0 for phase in run.PHASES)
        self.assertLessEqual(every, 540)
        self.assertLessEqual(first, 240)


class TablesTest(unittest.TestCase):

    LINES = [
        {"phase": "there", "check": "nvidia-smi", "state": "noted", "values": {"name": "Card X", "driver_version": "580.1"}},
        {"phase": "figures", "check": "allreduce, 2 ranks, agent", "state": "measured", "values": {
            "rows": {"1 MiB": {"staged": {"median_us": 123.4}, "gloo": {"median_us": 45678.0}}},
            "copy_bytes_per_second": 3.1e12, "ranks": 2}},
        {"phase": "figures", "check": "facts", "state": "measured", "values": {"meaningless": False, "figures": [
            {"name": "latency/hand_over/p50", "value": 12345.0, "unit": "ns"}]}},
        {"phase": "deaths", "check": "a rank is killed, ipc", "state": "passed", "values": {"seconds": {"0": 0.1, "1": 0.2}}},
        {"phase": "deaths", "check": "the executor is killed", "state": "failed", "values": {"reason": "x"}},
        {"phase": "deaths", "check": "(whole)", "state": "passed", "values": {"end": "ended"}},
        {"phase": "cores", "check": "allreduce on the CPU, 8 ranks of 16 cores", "state": "measured", "values": {
            "rows": {"64 KiB": {"staged": {"median_us": 77.0}, "arena": {"median_us": 66.0}}}, "ranks": 8}},
    ]

    def page(self, name):
        with open(os.path.join(installed.ROOT, "docs", name), encoding="utf-8") as f:
            return f.read()

    def test_the_pages_have_the_tables_of_what_was_measured(self):
        seen = []
        for name in tables.PAGES:
            page = self.page(name)
            seen += re.findall(r"<!-- day: (\w+) -->", page)
            self.assertEqual(tables.with_tables(page, tables.kept(os.path.join(installed.ROOT, "docs"))), page,
                             "run tests/gpu/day/tables.py")
        self.assertCountEqual(seen, tables.TABLES)

    def test_values_come_into_their_cells_and_nothing_else_does(self):
        page = "".join("<!-- day: %s -->\nold\n<!-- end of day -->\n" % name for name in tables.TABLES)
        text = tables.with_tables(page, self.LINES)
        for value in ("| Card X |", "| 1 MiB | not measured | not measured | 123 us | not measured | not measured | 45.7 ms |", "3.1 TB/s", "12.3 us",
                      "| a rank is killed, ipc | 0.20 s |", "| the executor is killed | not measured |",
                      "| deaths | 1 | 1 | 0 | 0 | ended |", "| 8 | 64 KiB | 77 us | 66 us | not measured | not measured |"):
            self.assertIn(value, text)
        self.assertNotIn("old", text)
        empty = tables.with_tables(page, [])
        # No cell of a row's measured columns has a figure when there are no results.
        for line in empty.splitlines():
            if line.startswith("|") and "---" not in line and "not measured" not in line:
                self.assertIn(line.split("|")[1].strip(), ("what", "phase", "fact", "tensor", "ranks"), line)

    def test_a_later_result_counts_and_a_rehearsal_never(self):
        later = dict(self.LINES[0], values={"name": "Card Y"})
        self.assertEqual(tables.find(self.LINES + [later])[0]["there", "nvidia-smi"]["name"], "Card Y")
        with self.assertRaises(tables.Rehearsed):
            tables.find([dict(self.LINES[0], rehearsal=True)])

    def test_a_line_that_was_cut_off_is_left_out(self):
        with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as f:
            f.write(json.dumps(self.LINES[0]) + "\n" + json.dumps(self.LINES[1])[:30])
            f.flush()
            self.assertEqual(results.read(f.name), self.LINES[:1])


if __name__ == "__main__":
    unittest.main()
