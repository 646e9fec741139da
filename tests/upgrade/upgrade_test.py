"""Builds of different protocol versions in one cluster, as in a rolling upgrade.

In the plain run the earlier one is this build, whose daemons speak no newer version
than 10. --earlier: it is a commit of that version, which is built first (builds.py).
"""

import os
import sys
import time
import unittest

import builds
import harness
from scene import Ranks

EARLIER = "--earlier" in sys.argv


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

    @classmethod
    def setUpClass(cls):
        # The earlier coordinator knows no tickets.
        cls.new = builds.Build(harness.ROOT, agent_flags=["--share_secret"]) if EARLIER else builds.THIS
        cls.old = builds.earlier() if EARLIER else builds.PRETENDING

    def start(self, d, layout="2x2", ranks=None):
        """Ranks that compute sums until they are told to end; ranks: the build of each."""
        wrap = (lambda r: ranks[r].rank_environment()) if ranks else (lambda r: ())
        return Ranks(d.sockets, layout, "restarts.py", wrap_rank=wrap)

    def finish(self, job):
        job.touch("go")
        self.assertEqual(job.statuses(60), [0] * job.np)
        records = [job.await_record(r) for r in range(job.np)]
        self.assertEqual([r["wrong"] for r in records], [0] * job.np)
        self.assertEqual(len({r["steps"] for r in records}), 1)

    def check(self, coordinator, agents, layout="2x2", ranks=None):
        with builds.Daemons(coordinator, agents) as d, self.start(d, layout, ranks) as job:
            job.await_ready()
            await_steps(job)
            self.finish(job)
            self.check_versions(d, coordinator, agents)

    def check_versions(self, d, coordinator, agents):
        if coordinator is self.new or not EARLIER:
            newest = int(harness.protocol_version())
            self.assertEqual(d.versions(), {
                "n%d" % n: newest if coordinator is agent is self.new else 10 for n, agent in enumerate(agents)})

    def test_the_coordinator_first(self):
        self.check(self.new, [self.old, self.old])

    def test_the_agents_first(self):
        self.check(self.old, [self.new, self.new])

    # Of more than 16 ranks that leave, a new agent is told together, an old one one by one.
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

    def test_containers_of_both_on_both_agents(self):
        if not EARLIER:
            self.skipTest("a library speaks what it is built for: --earlier has it")
        new, old = self.new, self.old
        self.check(new, [new, new], ranks=[old, old, old, old])
        self.check(old, [old, old], ranks=[new, new, new, new])
        self.check(new, [new, old], ranks=[old, new, new, old])


if __name__ == "__main__":
    unittest.main(argv=[a for a in sys.argv if a != "--earlier"])
