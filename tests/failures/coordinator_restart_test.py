"""A coordinator that is killed and started again at its address: jobs go on (docs/recovery.md).

--long: repeats this 200 times.
"""

import os
import random
import signal
import statistics
import sys
import time
import unittest

import daemon_faults
import harness
from scene import Scene

TIMES = 200 if "--long" in sys.argv else 6


class CoordinatorRestartTest(unittest.TestCase):

    def test_jobs_go_on(self):
        self.check(TIMES)

    def test_jobs_go_on_whose_executors_pass_messages_on(self):
        self.check(TIMES // 2, "--relay_nodes=1", "--fan_out=1", "--frozen_nodes=0")

    def test_executors_that_know_more_than_fits_into_a_message(self):
        # gRPC takes 4 MiB. One executor stands still, so the others keep what the coordinator has decided: an id for each name.
        number, length = 9000, 511
        with Scene(3, witness=False, coordinator_flags=["--metrics=127.0.0.1:0", "--resume_timeout=60s"]) as scene:
            with scene.job("3x1", "many_names.py", [number, length]) as job:
                job.await_ready()
                stopped = scene.executors(job)[2]
                os.kill(stopped, signal.SIGSTOP)
                try:
                    job.touch("go")
                    for r in (0, 1):
                        job.await_file("submitted.%d" % r)
                    decided = lambda: harness.metric(scene.daemons.metrics, "maypole_operations_total")
                    harness.wait_until(lambda: decided() > number, 60, "the coordinator to decide all")
                    os.kill(scene.daemons.coordinator, signal.SIGKILL)
                    daemon_faults.start_coordinator_again(scene)
                finally:
                    os.kill(stopped, signal.SIGCONT)
                self.assertEqual(job.statuses(60), [0] * 3)
                self.assertEqual([job.record(r) for r in range(3)], [dict(wrong=0, number=number)] * 3)

    def check(self, times, *coordinator_flags):
        pauses = []
        with Scene(2, witness=False, coordinator_flags=coordinator_flags) as scene:
            with scene.job("2x2", "restarts.py", []) as job:
                job.await_ready()
                for _ in range(times):
                    steps = self.steps(job)
                    harness.wait_until(lambda: self.steps(job) > steps, 20, "the job to go on")
                    os.kill(scene.daemons.coordinator, signal.SIGKILL)
                    time.sleep(random.choice((0, 0.05, 0.3)))
                    daemon_faults.start_coordinator_again(scene)
                    since = time.monotonic()
                    # A rank may have begun a step before the kill.
                    steps = self.steps(job) + 1
                    harness.wait_until(lambda: self.steps(job) > steps, 20, "the job to go on after a restart")
                    pauses.append(time.monotonic() - since)
                job.touch("go")
                self.assertEqual(job.statuses(60), [0] * job.np)
                for r in range(job.np):
                    record = job.await_record(r)
                    self.assertEqual(record["wrong"], 0)
                    self.assertGreater(record["steps"], 2 * times)
                self.assertEqual(len({job.await_record(r)["steps"] for r in range(job.np)}), 1)
        pauses.sort()
        print("from the new coordinator's start to the next step, %d times: median %.2f s, greatest %.2f s" %
              (times, statistics.median(pauses), pauses[-1]))
        self.assertLess(pauses[-1], 10)

    @staticmethod
    def steps(job):
        try:
            with open(os.path.join(job.dir, "steps.0")) as f:
                return int(f.read() or 0)
        except FileNotFoundError:
            return 0


if __name__ == "__main__":
    unittest.main(argv=[a for a in sys.argv if a != "--long"])
