"""maypolerun with the real daemons: Ctrl-C, ordinary users, no leftovers."""

import os
import pwd
import shutil
import signal
import time
import unittest

import harness


class LaunchTest(unittest.TestCase):
    def interrupt(self, sig, status):
        with harness.Job(np=4, nodes=2, program="hang.py") as job:
            for r in range(3):
                job.await_file("waiting.%d" % r)
            family = harness.descendants(job.process.pid)
            self.assertGreaterEqual(len(family), 4 + 2 + 2 + 1)  # ranks, agents, executors, coordinator
            start = time.monotonic()
            job.process.send_signal(sig)
            self.assertEqual(job.wait(10), status)
            self.assertLess(time.monotonic() - start, 2.0)
            harness.wait_until(lambda: not any(harness.alive(p) for p in family), 1,
                               "all processes to end")
            left = [n for n in os.listdir(job.dir) if n.startswith("maypole")]
            self.assertEqual(left, [])

    def test_ctrl_c(self):
        self.interrupt(signal.SIGINT, 130)

    def test_sigterm(self):
        self.interrupt(signal.SIGTERM, 143)

    def test_killed_launcher_leaves_no_process(self):
        with harness.Job(np=2, nodes=2, program="hang.py") as job:
            job.await_file("waiting.0")
            family = harness.descendants(job.process.pid)
            os.kill(job.process.pid, signal.SIGKILL)
            harness.wait_until(lambda: not any(harness.alive(p) for p in family), 5,
                               "all processes to end")

    def test_output_is_prefixed_by_rank(self):
        with harness.Job(np=2, command=["/bin/sh", "-c", "echo I am $MAYPOLE_RANK"]) as job:
            job.check_ok(20)
            lines = job.stdout().splitlines()
        self.assertEqual(sorted(lines), ["[0]<stdout>:I am 0", "[1]<stdout>:I am 1"])

    @unittest.skipIf(os.geteuid() != 0, "needs root to become somebody else")
    def test_ordinary_user(self):
        uid = pwd.getpwnam("nobody").pw_uid
        prefix = ["setpriv", "--reuid=%d" % uid, "--regid=%d" % uid, "--clear-groups"]
        root = harness.public_copy()
        self.addCleanup(shutil.rmtree, root, True)
        with harness.Job(np=4, nodes=2, program="steady.py", args=[5, 1000], prefix=prefix,
                         root=root) as job:
            for r in range(4):
                job.await_file("counted.%d" % r)
            owners = {os.stat("/proc/%d" % p).st_uid for p in harness.descendants(job.process.pid)}
            self.assertEqual(owners, {uid})
            job.touch("end")
            job.check_ok(20)


if __name__ == "__main__":
    unittest.main()
