"""For tests of maypolerun's elastic jobs: one job, and what its processes print.

    class MyTest(elastic_jobs.ElasticJobTest):
        def test_it(self):
            job = self.start("-np", "3", "--min-np", "2")
            pids = self.await_ranks(job, 3)
            self.finish(job, 3)

train.py and finish() check what the training promises. The other host is this machine, through a fake ssh.
"""

import json
import os
import random
import re
import shutil
import subprocess
import tempfile
import threading
import unittest

import harness

PROGRAM = os.path.join(harness.ROOT, "tests/elastic/train.py")
MAYPOLERUN = os.path.join(harness.ROOT, "client/launcher/maypolerun")
START_SECONDS = 240  # on a busy machine, and with a torch that takes long to import
FAKE_SSH = """#!/bin/sh
for a; do last="$a"; done
SSH_CONNECTION="127.0.0.1 1 127.0.0.1 22" exec sh -c "$last"
"""


class Job:
    """One maypolerun, and what its processes say, by pid."""

    def __init__(self, directory, args, env):
        with open(os.path.join(directory, "ssh"), "w") as f:
            f.write(FAKE_SSH)
        os.chmod(os.path.join(directory, "ssh"), 0o755)
        env = harness.environment({"MAYPOLE_TEST_DIR": directory, "TRAIN_SAMPLES": "120", "TRAIN_HASHES": "1", **env})
        env["PATH"] = directory + ":" + env["PATH"]
        self.log = open(os.path.join(directory, "stderr"), "w+")
        self.process = subprocess.Popen([MAYPOLERUN, *args, harness.PYTHON, PROGRAM], env=env, stdin=subprocess.DEVNULL,
                                        stdout=subprocess.PIPE, stderr=self.log, text=True, start_new_session=True)
        self.first, self.last = {}, {}  # step of each process
        self.ends = []
        self.replayed = 0  # signs of life of processes that have finished
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self):
        for line in self.process.stdout:
            said = json.loads(re.sub(r"^\[\d+\]<stdout>:", "", line))
            if said.get("end"):
                self.ends.append(said)
            elif "end" in said:
                self.replayed += 1
            else:
                self.first.setdefault(said["pid"], said)
                self.last[said["pid"]] = said

    def pids(self, size):
        """Those that make steps in the newest epoch of the job; None unless there are `size`."""
        here = set(harness.descendants(self.process.pid))
        for pid in set(self.last) - here:  # the number of one that has ended may soon be another process's
            del self.last[pid], self.first[pid]
        steps = dict(self.last)
        together = {pid for pid, said in steps.items() if said["size"] == size}
        return together if len(together) == size == len(steps) else None

    def table(self):
        """Its processes, as (pid, parent, command line)."""
        table = harness.processes()
        return [(p, table[p][0], " ".join(table[p][1])[:60]) for p in harness.descendants(self.process.pid) if p in table]

    def stderr(self):
        with open(self.log.name) as f:
            return f.read()

    def close(self):
        harness.end(self.process)
        self._reader.join()
        self.process.stdout.close()
        self.log.close()


class ElasticJobTest(unittest.TestCase):
    def setUp(self):
        self.dir = tempfile.mkdtemp(prefix="mpr", dir="/tmp")
        self.addCleanup(shutil.rmtree, self.dir)
        seed = int(os.environ.get("ELASTIC_SEED", random.randrange(10**6)))
        print("seed %d (ELASTIC_SEED)" % seed)
        self.random = random.Random(seed)
        self.kills = 0

    def start(self, *args, **env):
        job = Job(self.dir, args, env)
        self.addCleanup(job.close)
        return job

    def await_ranks(self, job, size):
        """The pids, once `size` ranks make steps together."""
        found = []

        def there():
            self.assertIsNone(job.process.poll(), job.stderr())
            found[:] = [job.pids(size)]
            return found[0] is not None

        try:
            harness.wait_until(there, START_SECONDS, "steps of %d ranks" % size)
        except AssertionError as error:
            raise AssertionError("%s, after %d kills; the last steps: %s; maypolerun's processes: %s; its stderr:\n%s" % (
                error, self.kills, list(job.last.values()), job.table(), job.stderr()[-8000:])) from None
        return found[0]

    def write(self, name, text):
        path = os.path.join(self.dir, name)
        with open(path + ".new", "w") as f:
            f.write(text)
        os.rename(path + ".new", path)
        return path

    def finish(self, job, ranks):
        self.write("finish", "")
        # After thousands of steps the processes compute for minutes what one alone would have trained.
        replayed = -1
        while job.process.poll() is None and job.replayed > replayed:
            replayed = job.replayed
            try:
                job.process.wait(60)
            except subprocess.TimeoutExpired:
                pass
        self.assertEqual(job.process.poll(), 0, job.stderr()[-8000:])
        job.close()
        self.assertEqual(len(job.ends), ranks)
        for end in job.ends:
            self.assertEqual(end["weights"], job.ends[0]["weights"])
            self.assertEqual(end["history"], job.ends[0]["history"])
            self.assertLess(end["replayed"], 1e-9)
