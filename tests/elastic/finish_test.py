"""The end of an elastic training, with maypolerun and real daemons: who has completed it, and who has only left."""

import glob
import os
import shutil
import subprocess
import tempfile
import unittest

import concurrently
import harness

PROGRAM = os.path.join(harness.ROOT, "tests/elastic/finish.py")
MAYPOLERUN = os.path.join(harness.ROOT, "client/launcher/maypolerun")


class FinishTest(unittest.TestCase):
    def run_job(self, *how, ranks=("-np", "2", "--min-np", "1")):
        """Its status, the lines of its processes, its stderr, and how many processes there were."""
        directory = tempfile.mkdtemp(prefix="mpf", dir="/tmp")
        self.addCleanup(shutil.rmtree, directory)
        process = subprocess.Popen([MAYPOLERUN, *ranks, "--no-prefix", harness.PYTHON, PROGRAM, *how],
                                   env=harness.environment({"MAYPOLE_TEST_DIR": directory}), stdin=subprocess.DEVNULL,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
        self.addCleanup(harness.end, process)
        out, err = process.communicate(timeout=120)
        return process.returncode, out.splitlines(), err, len(glob.glob(directory + "/up.*"))

    def late(self, seconds, how="late"):
        status, lines, err, processes = self.run_job(how, seconds)
        self.assertEqual(status, 0, err)
        self.assertEqual(processes, 3)
        self.assertEqual(lines.count("trains from 0"), 2, lines)  # nobody begins again
        self.assertEqual([line for line in lines if line.startswith("done")], ["done 40"])
        self.assertIn("the training is over: rank 0 (node node0", err)
        self.assertIn("this process came too late and ends, with status 0", err)

    def test_who_comes_after_the_end_does_not_train_again(self):
        self.late("0")

    def test_nor_after_a_long_evaluation(self):
        """Longer than an executor waits that has no rank."""
        self.late("12")

    def test_nor_when_the_other_calls_os_exit(self):
        self.late("0", "exits")

    def test_nor_when_the_coordinator_was_replaced(self):
        self.late("0", "replaced")

    def test_a_rank_that_leaves_is_replaced(self):
        status, lines, err, processes = self.run_job("leaves")
        self.assertEqual(status, 0, err)
        self.assertEqual(processes, 3)
        self.assertEqual(lines.count("trains from 0"), 2, lines)
        self.assertEqual(len([line for line in lines if line.startswith("done")]), 2, lines)
        self.assertRegex(err, r"process [01] \(host localhost\) exited with code 143; the job goes on")

    def test_a_failure_after_the_training_is_the_jobs(self):
        status, lines, err, processes = self.run_job("fails")
        self.assertEqual((status, processes), (3, 2), err)
        self.assertEqual(lines.count("trains from 0"), 2, lines)
        self.assertRegex(err.splitlines()[-1], r"process \d \(pid \d+, host localhost\) exited with code 3$")

    def early(self, least):
        status, lines, err, processes = self.run_job("early", ranks=("-np", "3", "--min-np", least))
        self.assertEqual((status, processes), (143, 3), err)
        self.assertEqual([line for line in lines if line.startswith("done")], ["done 10"])
        self.assertRegex(err, r"maypolerun: process \d \(host localhost\) was still training 5 s after another process had "
                              r"trained to the end, and was stopped: not all ranks have ended their training at the same step")

    def test_a_rank_that_returns_earlier_than_the_others(self):
        self.early("2")

    def test_nor_if_those_that_are_left_are_too_few(self):
        self.early("3")

    def test_who_comes_in_a_later_training_does_not_begin_with_the_first_one(self):
        """Nor does a survivor that has not completed the first one when others had."""
        status, lines, err, processes = self.run_job("later", ranks=("-np", "3", "--min-np", "2"))
        self.assertEqual((status, processes), (0, 4), err)
        self.assertEqual([line for line in lines if line.startswith("pretrains")], ["pretrains from 0"] * 3)
        skipped = "completed training 1 of the program (pretrain), and are in training 2 (train); run() takes state"
        self.assertEqual(err.count(skipped), 2, err)
        done = [line for line in lines if line.startswith("done")]
        self.assertEqual(len(done), 3, lines)
        self.assertEqual(len(set(done)), 1, lines)
        self.assertEqual(done[0].split()[2], "10")


if __name__ == "__main__":
    concurrently.main()
