"""An agent that is killed and started again, and ranks that call init() again."""

import os
import signal
import unittest

import daemon_faults
import harness
from scene import Scene


class AgentRestartTest(unittest.TestCase):
    def restart(self, scene, job):
        """Restarts the agent; rank 0 leaves the executor that the one before has started, and comes to the new one."""
        job.await_ready()
        scene.orphans += scene.executors(job)
        os.kill(scene.daemons.workers[0], signal.SIGKILL)
        daemon_faults.start_agent_again(scene, 0)
        job.touch("agent")
        harness.wait_until(lambda: "event=session_refused" in scene.daemons.log(), 30, "the new executor to be refused")

    def test_ranks_that_begin_again_one_after_the_other(self):
        with Scene(1, witness=False) as scene, scene.job("1x2", "one_after_the_other.py") as job:
            self.restart(scene, job)
            job.touch("go")
            self.assertEqual(job.statuses(), [0, 0])
            self.assertEqual([(job.record(r)["text"], job.record(r)["total"]) for r in (0, 1)], [(None, 3.0)] * 2)

    def test_a_rank_that_stays_is_named_as_the_reason(self):
        with Scene(1, witness=False, worker_flags=["--resume_timeout=500ms"]) as scene:
            with scene.job("1x2", "one_after_the_other.py") as job:
                self.restart(scene, job)
                self.assertRegex(job.await_record(0)["text"],
                                 r"node 'n0' is in job '%s' already \(from host .*\); if its agent was restarted, call "
                                 r"init\(\) again when the ranks that run there have left the job or ended, else give every "
                                 r"worker its own --node" % job.job)


if __name__ == "__main__":
    unittest.main()
