"""maypolerun's elastic jobs with real daemons and real torch: processes are killed and replaced, hosts come and go.

train.py and torch_test.py check what the training promises; so does this test at the end of each job. The other host is
this machine, through a fake ssh.
"""

import os
import signal
import unittest

import elastic_jobs
import harness

KILLS = int(os.environ.get("ELASTIC_KILLS", "4"))  # in one training


class MaypolerunElasticTest(elastic_jobs.ElasticJobTest):
    def test_the_dead_are_replaced(self):
        job = self.start("-np", "3", "--min-np", "2", "--blacklist-cooldown-range", "1", "1")
        ranks = self.await_ranks(job, 3)
        for _ in range(2):
            victim = self.random.choice(sorted(ranks))
            os.kill(victim, signal.SIGKILL)
            harness.wait_until(lambda pid=victim: not harness.alive(pid), 30, "the end of a killed process")
            after = self.await_ranks(job, 3)
            self.assertEqual(len(ranks & after), 2)  # the survivors have kept their processes
            ranks = after
        self.assertEqual(job.stderr().count("was killed by signal 9 (Killed); the job goes on"), 2)
        self.finish(job, 3)

    def agents(self, job):
        table = harness.processes()
        return [p for p in harness.descendants(job.process.pid)
                if p in table and os.path.basename(table[p][1][0]) == "maypole-worker" and "--executor" not in table[p][1]]

    def test_an_agent_that_dies_while_it_starts_is_started_again(self):
        job = self.start("-np", "2", "--min-np", "1", "-H", "localhost:1,root@127.0.0.1:1", "--blacklist-cooldown-range",
                         "1", "1")
        ranks = self.await_ranks(job, 2)
        known = set(self.agents(job))
        for victim in sorted(known):
            for _ in range(3):  # the second and the third have just begun
                os.kill(victim, signal.SIGKILL)
                (victim,) = harness.wait_until(lambda: set(self.agents(job)) - known, 30, "another agent")
                known.add(victim)
        self.assertEqual(self.await_ranks(job, 2), ranks)  # neither host was given up
        for victim in sorted(ranks):
            os.kill(victim, signal.SIGKILL)
            harness.wait_until(lambda pid=victim: not harness.alive(pid), 30, "the end of a killed process")
            after = self.await_ranks(job, 2)
            self.assertEqual(len(ranks & after), 1)
            ranks = after
        self.finish(job, 2)

    def test_random_deaths_of_ranks_and_agents(self):
        job = self.start("-np", "4", "--min-np", "1", "-H", "localhost:2,root@127.0.0.1:2", "--blacklist-cooldown-range",
                         "1", "1")
        ranks = self.await_ranks(job, 4)
        agents = 0
        for number in range(KILLS):
            of_ranks = self.random.randrange(3) > 0 or number == 0
            if not of_ranks:  # one that was killed before may not be back yet
                harness.wait_until(lambda: len(self.agents(job)) == 2, 30, "two agents")
            victim = self.random.choice(sorted(ranks) if of_ranks else self.agents(job))
            agents += victim not in ranks
            self.kills += 1
            os.kill(victim, signal.SIGKILL)
            harness.wait_until(lambda pid=victim: not harness.alive(pid), 30, "the end of a killed process")
            ranks = self.await_ranks(job, 4)
        # An agent that is gone has been replaced, also for those that live.
        harness.wait_until(lambda: len(self.agents(job)) == 2, 30, "two agents")
        self.finish(job, 4)
        print("killed %d ranks, %d agents" % (KILLS - agents, agents))

    def test_hosts_come_and_go(self):
        hosts = self.write("hosts", "localhost:2\n")
        script = self.write("discover", "#!/bin/sh\ncat %s\n" % hosts)
        os.chmod(script, 0o755)
        job = self.start("--min-np", "1", "--host-discovery-script", script)
        ranks = self.await_ranks(job, 2)
        self.write("hosts", "localhost:2\nroot@127.0.0.1:1\n")
        more = self.await_ranks(job, 3)
        self.assertTrue(ranks < more)
        self.write("hosts", "root@127.0.0.1:1\n")
        self.assertEqual(self.await_ranks(job, 1), more - ranks)
        self.write("hosts", "localhost:1\nroot@127.0.0.1:1\n")
        self.assertTrue(more - ranks < self.await_ranks(job, 2))
        self.assertIn("host localhost is not listed any more", job.stderr())
        self.finish(job, 2)


if __name__ == "__main__":
    unittest.main()
