"""Elastic training with tensors on (fake) GPUs: a rank that uses GPU memory is killed, and the others go on.

Promised, and checked here: survivors keep their processes, and reduce on their GPUs again; the GPU memory that the dead
rank shared is released; all ranks end with the weights that one process would have. The driver and NCCL are fakes
(tests/gpu); ranks, executors and daemons are real.
"""

import json
import os
import queue
import shutil
import subprocess
import tempfile
import threading
import unittest

import daemons
import fake_gpu
import harness

PROGRAM = os.path.join(harness.ROOT, "tests/elastic/train_gpu.py")
FAKE_NCCL = os.path.join(harness.ROOT, "tests/gpu/fake_nccl/libnccl.so.2")
GPUS = 4
KILLS = int(os.environ.get("ELASTIC_GPU_KILLS", "3"))


class Rank:
    """A process of the job; `last` is the last step that it has told."""

    def __init__(self, env, log):
        self.process = subprocess.Popen([harness.PYTHON, PROGRAM], env=env, stdin=subprocess.DEVNULL,
                                        stdout=subprocess.PIPE, stderr=log, text=True)
        self.pid = self.process.pid
        self.last = {}
        self.end = None
        self._lines = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self):
        for line in self.process.stdout:
            said = json.loads(line)
            if "end" in said:
                self.end = said
            else:
                self.last = said

    def finish(self):
        status = self.process.wait(60)
        self._reader.join(60)
        return status

    def stop(self):
        self.process.kill()
        self.process.wait()
        self._reader.join()
        self.process.stdout.close()


class ElasticGpuTest(unittest.TestCase):

    def setUp(self):
        self.dir = tempfile.mkdtemp(prefix="mpe", dir="/tmp")
        self.addCleanup(shutil.rmtree, self.dir)
        self.log = open(os.path.join(self.dir, "log"), "w+")
        self.addCleanup(self.log.close)

    def start(self, site, gpus):
        """The daemons. The ranks take the GPUs 0 .. gpus-1 in turn."""
        self.site, self.gpus, self.started = site, gpus, 0
        state = os.path.join(self.dir, "gpus")
        os.mkdir(state)
        self.fake = {"MAYPOLE_FAKE_CUDA": "devices=%d,memory=%d,state=%s" % (GPUS, fake_gpu.MEMORY, state),
                     "LD_LIBRARY_PATH": fake_gpu.DIRECTORY, "MAYPOLE_NCCL_LIBRARY": FAKE_NCCL,
                     "MAYPOLE_GPU_HOST_BYTES": "0"}
        d = daemons.Daemons(nodes=1, env=self.fake)
        d.__enter__()
        self.addCleanup(d.__exit__, None, None, None)
        self.socket = d.sockets[0]

    def rank(self, gpu):
        env = harness.environment({
            "MAYPOLE_ELASTIC": "1", "MAYPOLE_MIN_SIZE": "2", "MAYPOLE_AGENT": self.socket, "MAYPOLE_JOB": "elastic",
            "MAYPOLE_TOKEN": "of this test", "MAYPOLE_START_TIMEOUT": "60", "MAYPOLE_TEST_DIR": self.dir,
            "MAYPOLE_GPU_SITE": self.site, "TRAIN_GPU": str(gpu), **self.fake})
        env["PYTHONPATH"] += os.pathsep + fake_gpu.PROGRAMS
        rank = Rank(env, self.log)
        rank.gpu = gpu
        self.addCleanup(rank.stop)
        return rank

    def stderr(self):
        with open(self.log.name) as f:
            return f.read()

    def all_on_gpu(self, ranks, after=None):
        """Waits until all make steps together, with operations on the GPU, in a later epoch than `after` says, by pid."""
        after = after or {}

        def there():
            for rank in ranks:
                self.assertIsNone(rank.process.poll(), self.stderr())
            return all(r.last.get("size") == len(ranks) and r.last["joins"] > after.get(r.pid, 0) and r.last["on_gpu"] > 3
                       for r in ranks)

        harness.wait_until(there, 60, "steps on the GPU of %d ranks" % len(ranks))

    def free_bytes(self):
        code = ("import sys; sys.path.insert(0, %r)\nimport device\n"
                "print(sum(device.Gpu(i).free_bytes() for i in range(%d)))" % (fake_gpu.PROGRAMS, GPUS))
        env = harness.environment(self.fake)
        return int(subprocess.check_output([harness.PYTHON, "-c", code], env=env, text=True))

    def train(self, site, gpus):
        self.start(site, gpus)
        ranks = [self.rank(n % gpus) for n in range(3)]
        self.all_on_gpu(ranks)
        free = self.free_bytes()
        self.assertLess(free, GPUS * fake_gpu.MEMORY)
        for turn in range(KILLS):
            victim = ranks.pop(turn % 3)
            joins = {r.pid: r.last["joins"] for r in ranks}
            victim.process.kill()
            victim.process.wait()
            self.all_on_gpu(ranks, joins)  # survivors, with their processes
            for r in ranks:
                self.assertEqual(r.last["pid"], r.pid)
            ranks.append(self.rank(victim.gpu))
            self.all_on_gpu(ranks)
            # What the dead rank and its epoch had is given back, while the job runs.
            harness.wait_until(lambda: self.free_bytes() >= free, 30, "as much free memory as before the death")
        with open(os.path.join(self.dir, "finish"), "w"):
            pass
        for r in ranks:
            self.assertEqual(r.finish(), 0, self.stderr())
            self.assertTrue(r.end["right"])
            self.assertEqual(r.end["weights"], ranks[0].end["weights"])
            self.assertEqual(r.end["step"], ranks[0].end["step"])
        harness.wait_until(lambda: self.free_bytes() == GPUS * fake_gpu.MEMORY, 30, "all memory free")

    def test_site_agent(self):
        self.train("agent", 1)

    def test_site_client(self):
        self.train("client", 3)


if __name__ == "__main__":
    unittest.main()
