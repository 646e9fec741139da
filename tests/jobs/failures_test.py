"""Lost ranks, executors, coordinators: which ranks get which error, and how soon."""

import os
import signal
import time
import unittest

import harness


class FailuresTest(unittest.TestCase):
    def lose_rank(self, way, nodes, victim=1, status=None):
        with harness.Job(np=4, nodes=nodes, program="victim.py", args=[way, victim]) as job:
            got = job.wait(60)
            ended = job.record(victim)["ended"]
            for r in range(4):
                if r == victim:
                    continue
                record = job.record(r)
                self.assertIn("allreduce 'awaited'", record["text"], way)
                self.assertIn("rank %d" % victim, record["text"], way)
                self.assertLess(record["seen"] - ended, 1.0, "%s seen by rank %d" % (way, r))
                self.assertIn("rank %d" % victim, record["later"], way)
            if status is not None:
                self.assertEqual(got, status)
            return job.stderr()

    def test_killed_rank(self):
        for nodes in (1, 2):
            self.lose_rank("sigkill", nodes, status=128 + signal.SIGKILL)

    def test_segfault(self):
        self.lose_rank("segfault", 1, status=128 + signal.SIGSEGV)

    def test_exit_status_is_kept(self):
        self.lose_rank("exit3", 2, status=3)

    def test_own_traceback_comes_last(self):
        err = self.lose_rank("exception", 2, status=1)
        # As it came, or once more under "its last lines of stderr" if others
        # came after it: no other rank's error follows.
        tail = err[err.rindex("RuntimeError: the victim's own traceback"):]
        self.assertNotIn("Traceback", tail)
        self.assertNotIn("HorovodInternalError", tail)
        self.assertIn("rank 1", tail.splitlines()[-1])
        self.assertIn("exited with code 1", tail.splitlines()[-1])

    def test_clean_exit_of_a_rank_others_need(self):
        for nodes in (1, 2):
            self.lose_rank("exit0", nodes, victim=3)

    def test_shutdown_by_one_rank(self):
        for nodes in (1, 2):
            with harness.Job(np=4, nodes=nodes, program="victim.py", args=["shutdown", 2]) as job:
                for r in (0, 1, 3):
                    job.await_file("rank.%d.json" % r)
                job.touch("others.done")
                job.check_ok(30)
                for r in (0, 1, 3):
                    self.assertIn("rank 2", job.record(r)["text"])
                    self.assertIn("shut down", job.record(r)["text"])

    def test_killed_executors(self):
        for nodes in (1, 2):
            with self.subTest(nodes=nodes), harness.Job(np=4, nodes=nodes, program="hang.py") as job:
                for r in range(3):
                    job.await_file("waiting.%d" % r)
                killed = time.monotonic()
                os.kill(job.executors()[-1], signal.SIGKILL)
                for r in range(3):
                    job.await_file("rank.%d.json" % r, 20)
                    record = job.record(r)
                    self.assertIn("allreduce 'awaited'", record["text"])
                    self.assertIn("executor", record["text"])
                    self.assertLess(record["seen"] - killed, 5.0)

    def test_a_killed_coordinator_is_replaced(self):
        with harness.Job(np=4, nodes=2, program="hang.py") as job:
            for r in range(3):
                job.await_file("waiting.%d" % r)
            os.kill(job.daemons("maypole-coordinator")[0], signal.SIGKILL)
            harness.wait_until(lambda: job.stderr().count("event=coordinator_reconnected") == 2, 30, "both executors")
            job.touch("never")  # the last rank takes part now
            job.check_ok()
            self.assertEqual([record["text"] for record in job.records()], ["no error"] * 4)
            self.assertIn("was killed by signal 9 (Killed) and wrote nothing; another one is started", job.stderr())


if __name__ == "__main__":
    unittest.main()
