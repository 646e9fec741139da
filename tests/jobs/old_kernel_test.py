"""Jobs where the kernel refuses calls that are newer than Linux 4.18, and CLONE_PIDFD: as RHEL 8, a container, qemu-user.

common/system/testing/on_old_kernel.cc makes these calls fail in all processes of a job.
"""

import os
import platform
import re
import signal
import subprocess
import time
import unittest

import cluster
import harness

ON_OLD_KERNEL = os.path.join(harness.ROOT, "common/on_old_kernel")
START_SECONDS = 240  # on a busy machine
WORKER = os.path.join(harness.ROOT, "worker/maypole-worker")


class OldKernelTest(unittest.TestCase):
    def kill(self, job):
        """Kills rank 1 of a job that runs; returns what rank 0 was told, and after how long."""
        for r in range(2):
            job.await_file("running.%d" % r)
        killed = time.monotonic()
        os.kill(job.rank_pid(1), signal.SIGKILL)
        job.await_file("rank.0.json", 20)
        return job.record(0)["text"], time.monotonic() - killed

    def test_arrays_on_one_node_and_on_two(self):
        for nodes, prefix in ((1, [ON_OLD_KERNEL]), (2, [ON_OLD_KERNEL, "--error=EPERM"])):
            with self.subTest(prefix=prefix), \
                    harness.Job(np=2, nodes=nodes, program="numpy_steps.py", prefix=prefix) as job:
                for r in range(2):
                    job.await_file("running.%d" % r)
                job.touch("end")
                job.check_ok()
                for record in job.records():
                    self.assertEqual(record["total"], 3.0)
                    self.assertGreaterEqual(record["steps"], 3)

    def test_a_rank_that_is_killed_is_named(self):
        for nodes in (1, 2):
            told = []
            for prefix in ([], [ON_OLD_KERNEL]):
                with self.subTest(nodes=nodes, prefix=prefix), \
                        harness.Job(np=2, nodes=nodes, program="numpy_steps.py", prefix=prefix) as job:
                    text, seconds = self.kill(job)
                    self.assertLess(seconds, 5)
                    self.assertEqual(job.wait(30), 128 + signal.SIGKILL)
                    self.assertRegex(job.stderr(), r"rank 1 .*was killed by signal 9 \(Killed\)")
                    # The step in which it was killed, pids and hosts differ.
                    told.append(re.sub(r"pid \d+|job \S+|'(end|gradient)'", "", text))
            self.assertIn("rank 1", told[0])
            self.assertEqual(told[0], told[1])

    def test_daemons_and_a_killed_rank_whose_child_lives(self):
        """The child holds the rank's socket open, so only the end of the process shows that it was killed."""
        for prefix in ([], [ON_OLD_KERNEL]):
            with self.subTest(prefix=prefix), cluster.Cluster() as c:
                address = c.coordinator(prefix=prefix)
                agent = c.agent(0, address, prefix=prefix)
                ranks = [c.rank(r, 2, agent, local_rank=r, program="numpy_steps.py", args=[1], prefix=prefix)
                         for r in range(2)]
                for r in range(2):
                    harness.wait_until(lambda name="running.%d" % r: os.path.exists(c.path(name)), START_SECONDS, "the ranks")
                (child,) = [int(name.partition(".")[2]) for name in os.listdir(c.dir) if name.startswith("child.")]
                self.addCleanup(harness.kill, child)
                ranks[1].kill()
                harness.wait_until(lambda: os.path.exists(c.path("rank.0.json")), 20, "rank 0 to be told")
                self.assertTrue(harness.alive(child))
                self.assertEqual(ranks[0].wait(60), 3)
                self.assertRegex(c.record(0)["text"], r"rank 1 \(.*pid %d.*died" % ranks[1].pid)
                harness.kill(child)

    def test_an_elastic_job_replaces_the_dead(self):
        with harness.Job(np=2, nodes=None, program="numpy_elastic.py", prefix=[ON_OLD_KERNEL], launcher_args=[
                "--min-np", "1", "--blacklist-cooldown-range", "1", "1"]) as job:
            def together():
                found = {int(name.rpartition(".")[2]) for name in os.listdir(job.dir) if name.startswith("together.2.")}
                return {pid for pid in found if harness.alive(pid)}

            first = harness.wait_until(lambda: len(together()) == 2 and together(), START_SECONDS, "two ranks")
            victim = min(first)
            os.kill(victim, signal.SIGKILL)
            harness.wait_until(lambda: len(together() - {victim}) == 2, START_SECONDS, "another rank")
            self.assertEqual(len(together() & first), 1)
            job.touch("end")
            job.check_ok()
            done = [name for name in os.listdir(job.dir) if name.startswith("done.")]
            self.assertEqual(len(done), 2)
            self.assertEqual(len({job._read(name) for name in done}), 1)
            self.assertIn("was killed by signal 9 (Killed); the job goes on", job.stderr())

    def test_a_call_that_nothing_replaces_is_named_at_the_start(self):
        line = (r"the kernel here \(Linux %s\) refuses memfd_create: Function not implemented; Maypole cannot run without it\. "
                r"Linux 3\.17 or newer has it; in a container or sandbox, allow the call" % re.escape(platform.release()))
        prefix = [ON_OLD_KERNEL, "--without=memfd_create"]
        with harness.Job(np=2, program="numpy_steps.py", prefix=prefix) as job:
            self.assertEqual(job.wait(30), 1)
            self.assertRegex(job.stderr(), r"\Amaypolerun: %s\n\Z" % line)
        agent = subprocess.run(prefix + [WORKER, "--socket=/nowhere/s", "--coordinator=127.0.0.1:1", "--node=n0", "--metrics="],
                               capture_output=True, text=True, timeout=30)
        self.assertEqual(agent.returncode, 1)
        self.assertRegex(agent.stderr, 'level=error program=maypole-worker .*event=failed reason="%s"' % line)


if __name__ == "__main__":
    unittest.main()
