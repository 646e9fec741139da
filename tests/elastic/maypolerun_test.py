"""maypolerun's elastic jobs with real daemons and real torch: processes are killed and replaced, hosts come and go.

What the training promises is checked by train.py and torch_test.py; here, too, at the end of each job. Another host is
this machine, by a fake ssh.
"""

import json
import os
import random
import re
import shutil
import signal
import subprocess
import tempfile
import threading
import unittest

import harness

PROGRAM = os.path.join(harness.ROOT, "tests/elastic/train.py")
MAYPOLERUN = os.path.join(harness.ROOT, "client/launcher/maypolerun")
KILLS = int(os.environ.get("ELASTIC_KILLS", "4"))  # in one training
FAKE_SSH = """#!/bin/sh
for a; do last="$a"; done
SSH_CONNECTION="127.0.0.1 1 127.0.0.1 22" exec sh -c "$last"
"""


class Job:
    """One maypolerun, and what its processes say, by pid."""

    def __init__(self, directory, args):
        with open(os.path.join(directory, "ssh"), "w") as f:
            f.write(FAKE_SSH)
        os.chmod(os.path.join(directory, "ssh"), 0o755)
        env = harness.environment({"MAYPOLE_TEST_DIR": directory, "TRAIN_SAMPLES": "120"})
        env["PATH"] = directory + ":" + env["PATH"]
        self.log = open(os.path.join(directory, "stderr"), "w+")
        self.process = subprocess.Popen([MAYPOLERUN, *args, harness.PYTHON, PROGRAM], env=env, stdin=subprocess.DEVNULL,
                                        stdout=subprocess.PIPE, stderr=self.log, text=True, start_new_session=True)
        self.last = {}  # step of each process
        self.ends = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self):
        for line in self.process.stdout:
            said = json.loads(re.sub(r"^\[\d+\]<stdout>:", "", line))
            if "end" in said:
                self.ends.append(said)
            else:
                self.last[said["pid"]] = said

    def pids(self, size):
        """Those that make steps in the newest epoch of the job; None unless there are `size`."""
        steps = {pid: said for pid, said in dict(self.last).items() if harness.alive(pid)}
        together = {pid for pid, said in steps.items() if said["size"] == size}
        return together if len(together) == size == len(steps) else None

    def stderr(self):
        with open(self.log.name) as f:
            return f.read()

    def close(self):
        harness.end(self.process)
        self._reader.join()
        self.process.stdout.close()
        self.log.close()


class MaypolerunElasticTest(unittest.TestCase):
    def setUp(self):
        self.dir = tempfile.mkdtemp(prefix="mpr", dir="/tmp")
        self.addCleanup(shutil.rmtree, self.dir)
        seed = int(os.environ.get("ELASTIC_SEED", random.randrange(10**6)))
        print("seed %d (ELASTIC_SEED)" % seed)
        self.random = random.Random(seed)

    def start(self, *args):
        job = Job(self.dir, args)
        self.addCleanup(job.close)
        return job

    def await_ranks(self, job, size):
        """The pids, once `size` ranks make steps together."""
        found = []

        def there():
            self.assertIsNone(job.process.poll(), job.stderr())
            found[:] = [job.pids(size)]
            return found[0] is not None

        harness.wait_until(there, 60, "steps of %d ranks" % size)
        return found[0]

    def write(self, name, text):
        path = os.path.join(self.dir, name)
        with open(path + ".new", "w") as f:
            f.write(text)
        os.rename(path + ".new", path)
        return path

    def finish(self, job, ranks):
        self.write("finish", "")
        self.assertEqual(job.process.wait(60), 0, job.stderr())
        job.close()
        self.assertEqual(len(job.ends), ranks)
        for end in job.ends:
            self.assertEqual(end["weights"], job.ends[0]["weights"])
            self.assertEqual(end["history"], job.ends[0]["history"])
            self.assertLess(end["replayed"], 1e-9)

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
