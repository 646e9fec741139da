"""Daemons of two protocol versions in one cluster, as in a rolling upgrade: this one, and an invented next one."""

import os
import time
import unittest

import builds
import harness
from scene import Ranks

def steps(job):
    try:
        with open(os.path.join(job.dir, "steps.0")) as f:
            return int(f.read() or 0)
    except FileNotFoundError:
        return 0


def await_steps(job, more=3):
    want = steps(job) + more
    harness.wait_until(lambda: steps(job) >= want, 30, "the job to go on")


class UpgradeTest(unittest.TestCase):

    new, old = builds.NEXT, builds.THIS

    def start(self, d, layout="2x2"):
        """Ranks that compute sums until they are told to end."""
        return Ranks(d.sockets, layout, "restarts.py")

    def finish(self, job):
        job.touch("go")
        self.assertEqual(job.statuses(60), [0] * job.np)
        records = [job.await_record(r) for r in range(job.np)]
        self.assertEqual([r["wrong"] for r in records], [0] * job.np)
        self.assertEqual(len({r["steps"] for r in records}), 1)

    def check(self, coordinator, agents, layout="2x2"):
        with builds.Daemons(coordinator, agents) as d, self.start(d, layout) as job:
            job.await_ready()
            await_steps(job)
            self.finish(job)
            self.check_versions(d, coordinator, agents)

    def check_versions(self, d, coordinator, agents):
        this = int(harness.protocol_version())
        self.assertEqual(d.versions(), {
            "n%d" % n: this + (coordinator is agent is self.new) for n, agent in enumerate(agents)})

    def test_the_coordinator_first(self):
        self.check(self.new, [self.old, self.old])

    def test_the_agents_first(self):
        self.check(self.old, [self.new, self.new])

    def test_agents_of_both_in_a_job_of_many_ranks(self):
        self.check(self.new, [self.old, self.new], "2x10")

    def test_a_running_job_gets_a_new_coordinator_and_the_old_one_back(self):
        for agents in ([self.old, self.old], [self.new, self.new], [self.new, self.old]):
            with builds.Daemons(self.old, agents) as d, self.start(d) as job:
                job.await_ready()
                for build in (self.new, self.old, self.new):
                    await_steps(job)
                    d.replace_coordinator(build)
                    since = time.monotonic()
                    await_steps(job)
                    self.assertLess(time.monotonic() - since, 10)
                self.finish(job)
                self.check_versions(d, self.new, agents)


if __name__ == "__main__":
    unittest.main()
