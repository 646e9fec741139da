"""tools/ci/progress.py: of Bazel's many lines about its progress one now and then, and all others."""
import os
import signal
import subprocess
import sys
import unittest

from tools.ci import progress


class ProgressTest(unittest.TestCase):
    def setUp(self):
        self.progress = progress.Progress(1000)

    def line(self, text, second):
        return self.progress.line(text, 1000 + second)

    def test_steps_now_and_then(self):
        self.assertIsNone(self.line("[600 / 1,240] Compiling a.cc; 1s local", 1))
        self.assertIsNone(self.line("[601 / 1,240] Compiling b.cc; 1s local ... (2 actions, 1 running)", 19))
        self.assertEqual(self.line("[640 / 1,240] Compiling c.cc", 21), "build: 640 of 1240 steps are done, 600 are left")
        self.assertIsNone(self.line("[640 / 1,240] Compiling d.cc", 22))
        self.assertEqual(self.line("[660 / 1,240] Compiling e.cc", 42),
                         "build: 660 of 1240 steps are done, 580 are left: about 10 min")
        self.assertIsNone(self.line("[661 / 1,240] Compiling f.cc", 50))
        self.assertEqual(self.line("[1,240 / 1,240] checking cached actions", 62),
                         "build: 1240 of 1240 steps are done, 0 are left: about 1 min")

    def test_the_last_minutes_count(self):
        self.line("[900 / 1,240] Compiling", 21)
        self.line("[1000 / 1,240] what the cache has", 22)
        for second in range(30, 400, 10):
            self.line("[%d / 1,240] Compiling" % (1000 + second // 10), second)
        self.assertEqual(self.line("[1,040 / 1,240] Compiling", 419),
                         "build: 1040 of 1240 steps are done, 200 are left: about 37 min")

    def test_no_guess_before_a_step_is_done(self):
        self.assertEqual(self.line("[0 / 9] [Prepa] BazelWorkspaceStatusAction", 20), "build: 0 of 9 steps are done, 9 are left")

    def test_loading_now_and_then(self):
        self.assertIsNone(self.line("Loading: 0 packages loaded", 1))
        self.assertIsNone(self.line("    currently loading: client ... (2 packages)", 30))
        self.assertEqual(self.line("Analyzing: 2 targets (6 packages loaded)", 31), "build: Analyzing: 2 targets (6 packages loaded)")
        self.assertIsNone(self.line("Analyzing: 2 targets (7 packages loaded)", 32))

    def test_all_else_passes_at_once(self):
        for text in ("ERROR: a.cc:1: no", "    int a;", "INFO: Build completed successfully, 9 total actions", ""):
            self.assertEqual(self.line(text, 1), text)

    def test_hours(self):
        self.assertEqual(progress.duration(3 * 3600 + 240), "3 h 4 min")


class ProgramTest(unittest.TestCase):
    def start(self, script):
        process = subprocess.Popen([sys.executable, progress.__file__, "sh", "-c", script], stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True)
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.stderr.close)
        return process

    def test_status_and_output(self):
        process = self.start("echo out; echo '[1 / 2] Compiling' >&2; echo 'ERROR: no' >&2; exit 7")
        self.assertEqual(process.communicate(timeout=60), ("out\n", "ERROR: no\n"))
        self.assertEqual(process.returncode, 7)

    def test_a_signal_ends_the_command(self):
        process = self.start("echo $$; exec sleep 600")
        child = int(process.stdout.readline())
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
        self.assertEqual(process.returncode, 128 + signal.SIGTERM)
        with self.assertRaises(ProcessLookupError):
            os.kill(child, 0)


if __name__ == "__main__":
    unittest.main()
