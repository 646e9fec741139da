"""hvd.elastic with real daemons and real torch: ranks are killed, leave and join in the middle of training.

Promised, and checked here: survivors keep their processes; the committed training is one that a single process could
have made, with the same steps on the same samples; in each epoch every sample is in exactly one such step, except for
up to (ranks - 1) samples that occur twice to fill the last batch; all ranks end with equal weights.
"""

import json
import os
import queue
import random
import shutil
import signal
import subprocess
import tempfile
import threading
import time
import unittest

import daemons
import harness

PROGRAM = os.path.join(harness.ROOT, "tests/elastic/train.py")
SAMPLES = 120
# From a death to the survivors' next step.
PROMISED_SECONDS = 3.0
# The same after the death of a node, which may come back within --resume_timeout (3 s).
NODE_SECONDS = 3.0 + PROMISED_SECONDS


class Rank:
    """A process of the job, and the lines that it writes."""

    def __init__(self, env, log):
        self.log = log  # of all ranks
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
            self._lines.put(json.loads(line))
        self._lines.put(None)

    def until(self, condition, what, seconds=60):
        """The first step, from the next one on, of which the condition is true."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                said = self._lines.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                raise self._failed("waited %g s for %s" % (seconds, what)) from None
            if said is None or "end" in said:
                raise self._failed("ended before %s" % what)
            self.last = said
            if condition(said):
                return said

    def _failed(self, what):
        with open(self.log.name, errors="replace") as f:
            return AssertionError("process %d %s; its last step: %s; the ranks' log:\n%s" %
                                  (self.pid, what, self.last, f.read()[-6000:]))

    def finish(self, seconds=60):
        """Its exit status; reads the lines that are left."""
        status = self.process.wait(seconds)
        self._reader.join(seconds)
        while True:
            said = self._lines.get(timeout=seconds)
            if said is None:
                return status
            if "end" in said:
                self.end = said

    def stop(self):
        self.process.kill()
        self.process.wait()
        self._reader.join()
        self.process.stdout.close()


class TorchElasticTest(unittest.TestCase):
    def setUp(self):
        self.dir = tempfile.mkdtemp(prefix="mpe", dir="/tmp")
        self.addCleanup(shutil.rmtree, self.dir)
        seed = int(os.environ.get("ELASTIC_SEED", random.randrange(10**6)))
        print("seed %d (ELASTIC_SEED)" % seed)
        self.random = random.Random(seed)

    def start(self, nodes):
        d = daemons.Daemons(nodes=nodes)
        d.__enter__()
        self.addCleanup(d.__exit__, None, None, None)
        self.daemons = d

    def rank(self, node, least=2, most=None, timeout=60, **settings):
        env = harness.environment({
            "MAYPOLE_ELASTIC": "1", "MAYPOLE_MIN_SIZE": str(least), "MAYPOLE_AGENT": self.daemons.sockets[node],
            "MAYPOLE_JOB": "elastic", "MAYPOLE_TOKEN": "of this test", "MAYPOLE_START_TIMEOUT": str(timeout),
            "MAYPOLE_TEST_DIR": self.dir, "TRAIN_SAMPLES": str(SAMPLES)})
        if os.environ.get("ELASTIC_KEEP") == "1":
            env["MAYPOLE_KEEP_STATE"] = "1"
        if most is not None:
            env["MAYPOLE_MAX_SIZE"] = str(most)
        env.update(settings)
        log = open(os.path.join(self.dir, "log"), "ab")
        self.addCleanup(log.close)
        rank = Rank(env, log)
        self.addCleanup(rank.stop)
        return rank

    def log(self):
        with open(os.path.join(self.dir, "log"), errors="replace") as f:
            return f.read()

    def all_of_size(self, ranks, size):
        """Waits until all of them make steps in an epoch of that size; returns when the last one made its first."""
        return max(r.until(lambda s: s["size"] == size, "a step of %d ranks" % size)["at"] for r in ranks)

    def kill(self, ranks, victim):
        """Kills one, and returns how long the others needed until all had made their next step."""
        ranks.remove(victim)
        victim.process.kill()
        at = time.monotonic()
        seconds = self.all_of_size(ranks, len(ranks)) - at
        print("a rank was killed: %d others made their next step %.3f s later" % (len(ranks), seconds))
        self.assertLess(seconds, PROMISED_SECONDS)
        for r in ranks:
            self.assertIsNone(r.process.poll())
            self.assertEqual(r.last["pid"], r.pid)
        return seconds

    def some_steps(self, ranks):
        """Lets all make a random number of steps."""
        wanted = self.random.randrange(3, 40)
        for r in ranks:
            begin = r.last["step"] if r.last else 0
            r.until(lambda s, to=begin + wanted: s["step"] >= to or s["step"] < to - wanted, "%d steps" % wanted)

    def finish(self, ranks):
        with open(os.path.join(self.dir, "finish"), "w"):
            pass
        for r in ranks:
            self.assertEqual(r.finish(), 0, self.log())
        ends = [r.end for r in ranks]
        for e in ends:
            self.assertEqual(e["weights"], ends[0]["weights"])
            self.assertEqual(e["history"], ends[0]["history"])
            self.assertEqual(e["size"], len(ranks))
            self.assertLess(e["replayed"], 1e-9)
        begin = 0
        for end in ends[0]["ends"]:
            samples = sum(ends[0]["history"][begin:end], [])
            self.assertEqual(set(samples), set(range(SAMPLES)))
            self.assertLess(len(samples) - SAMPLES, 5)
            begin = end
        self.assertEqual(begin, len(ends[0]["history"]))
        print("%d steps, %d epochs, difference to a training without ranks: %.1e" %
              (begin, len(ends[0]["ends"]), ends[0]["replayed"]))

    def train_through_losses(self, nodes, **settings):
        self.start(nodes)
        ranks = [self.rank(n % nodes, **settings) for n in range(3)]
        self.all_of_size(ranks, 3)
        figures = []
        for turn in range(3):
            self.some_steps(ranks)
            # Rank 0, whose state counts, in the first turn.
            victim = (self.random.choice(ranks) if turn > 0 else
                      next(r for r in ranks if r.last["rank"] == 0))
            figures.append(self.kill(ranks, victim))
            self.some_steps(ranks)
            new = self.rank(turn % nodes, **settings)
            self.all_of_size(ranks + [new], 3)
            ranks.append(new)
        # The node's host is taken away: a rank leaves.
        self.some_steps(ranks)
        leaver = ranks.pop(self.random.randrange(3))
        leaver.process.send_signal(signal.SIGTERM)
        self.assertEqual(leaver.finish(), 143, self.log())
        self.assertIsNone(leaver.end)
        self.all_of_size(ranks, 2)
        self.finish(ranks)
        print("from a kill to the next step: " + ", ".join("%.3f" % f for f in figures) + " s")

    def test_one_node(self):
        self.train_through_losses(1)

    def test_two_nodes(self):
        self.train_through_losses(2)

    def test_larger_tensors(self):
        self.train_through_losses(2, TRAIN_WIDTH="150")

    def test_gradients_in_buckets(self):
        self.train_through_losses(1, TRAIN_VIEW="1", TRAIN_WIDTH="150")

    def test_deaths_while_others_die_or_come(self):
        self.start(2)
        ranks = [self.rank(n % 2, least=1) for n in range(4)]
        self.all_of_size(ranks, 4)
        for _ in range(3):
            self.some_steps(ranks)
            new = self.rank(self.random.randrange(2), least=1)
            time.sleep(self.random.uniform(0, 2))  # it starts, waits, or has entered
            for victim in self.random.sample(ranks, 2):
                ranks.remove(victim)
                victim.process.kill()
                time.sleep(self.random.uniform(0, 0.1))  # the others end the epoch, or start the next
            ranks.append(new)
            self.all_of_size(ranks, 3)
            ranks.append(self.rank(self.random.randrange(2), least=1))
            self.all_of_size(ranks, 4)
        self.finish(ranks)

    def test_rank_0_dies_before_a_new_rank_has_its_state(self):
        self.start(2)
        ranks = [self.rank(node, TRAIN_DIES="0 2") for node in range(2)]
        self.all_of_size(ranks, 2)
        self.some_steps(ranks)
        node = 0 if ranks[0].last["rank"] == 0 else 1
        # The new one ranks before the one that has the state, because it is on the node of rank 0.
        new = self.rank(node)
        self.assertEqual(ranks[node].process.wait(60), -signal.SIGKILL)
        left = ranks[1 - node]
        self.all_of_size([left, new], 2)
        self.assertEqual(left.until(lambda s: s["joins"] == 3, "its third epoch")["rank"], 0)
        self.finish([left, new])

    def test_an_executor_dies(self):
        self.start(2)
        ranks = [self.rank(n % 2) for n in range(4)]
        self.all_of_size(ranks, 4)
        self.some_steps(ranks)
        harness.kill(self.executor(1))
        # All go on: the dead executor's ranks find a new one, and enter when they are there.
        for r in ranks:
            r.until(lambda s, joins=r.last["joins"]: s["size"] == 4 and s["joins"] > joins, "a step of 4 ranks again")
        self.finish(ranks)

    def test_a_node_dies(self):
        self.start(2)
        ranks = [self.rank(n % 2) for n in range(4)]
        self.all_of_size(ranks, 4)
        self.some_steps(ranks)
        at = time.monotonic()
        for pid in [self.executor(1), self.daemons.workers[1], ranks[1].pid, ranks[3].pid]:
            harness.kill(pid)
        ranks = [ranks[0], ranks[2]]
        seconds = self.all_of_size(ranks, 2) - at
        print("a node was lost: the others made their next step %.3f s later" % seconds)
        self.assertLess(seconds, NODE_SECONDS)
        self.finish(ranks)

    def test_all_ranks_and_an_executor_die(self):
        """Kept states: the node whose executor is lost gets the state from the other."""
        self.start(2)
        ranks = [self.rank(n % 2, MAYPOLE_KEEP_STATE="1") for n in range(4)]
        self.all_of_size(ranks, 4)
        for r in ranks:
            r.until(lambda s, step=r.last["step"]: s["step"] >= step + 12, "12 steps more")
        steps = min(r.last["step"] for r in ranks)
        for r in ranks:
            r.stop()
        harness.kill(self.executor(1))  # not before: its ranks would give the next one their states
        ranks = [self.rank(n % 2, least=4, MAYPOLE_KEEP_STATE="1") for n in range(4)]
        for n, r in enumerate(ranks):
            first = r.until(lambda s: True, "its first step")
            self.assertGreater(first["step"], steps - 3)  # TRAIN_COMMIT
            self.assertEqual(first["restored"] > 0, n % 2 == 0)
            self.assertGreater(first["broadcast"], 0)
        self.finish(ranks)

    def executor(self, node):
        (pid,) = [p for p, (parent, argv) in harness.processes().items()
                  if parent == self.daemons.workers[node] and "--executor" in argv]
        return pid

    def test_too_few_are_told_who_is_missing(self):
        self.start(1)
        ranks = [self.rank(0, timeout=4) for _ in range(2)]
        self.all_of_size(ranks, 2)
        ranks[0].process.kill()
        self.assertEqual(ranks[1].finish(), 1)
        self.assertIn("continuing from the last commit", self.log())
        self.assertIn("the job did not start within 4 s: 1 of at least 2 ranks are there", self.log())
        self.assertIn("pid %d" % ranks[0].pid, self.log())

    def test_too_few_go_on_when_one_comes_and_sigterm_ends_the_wait(self):
        self.start(1)
        ranks = [self.rank(0, most=3) for _ in range(2)]
        self.all_of_size(ranks, 2)
        ranks.pop(0).process.kill()
        harness.wait_until(lambda: "continuing from the last commit" in self.log(), 30, "the survivor to notice")
        ranks.append(self.rank(0, most=3))
        self.all_of_size(ranks, 2)
        ranks.pop(0).process.kill()
        harness.wait_until(lambda: self.log().count("continuing from the last commit") == 2, 30, "the other to notice")
        ranks[0].process.send_signal(signal.SIGTERM)
        self.assertEqual(ranks[0].finish(10), 143, self.log())


if __name__ == "__main__":
    unittest.main()
