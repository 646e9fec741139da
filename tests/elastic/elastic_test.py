"""Elastic jobs with real daemons: ranks die and join, and the other processes continue without a restart."""

import os
import select
import signal
import subprocess
import time
import unittest

import daemons
import harness

PROGRAM = os.path.join(harness.ROOT, "tests/elastic/elastic_rank")
ABORTED = 10
DEADLINE_EXCEEDED = 4


class Rank:
    def __init__(self, agent, job, least, most, start_timeout):
        self.process = subprocess.Popen([PROGRAM, agent, job] + [str(n) for n in (least, most, start_timeout)],
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=harness.environment(),
                                        bufsize=0)
        self.pid = self.process.pid

    def tell(self, command):
        self.process.stdin.write(command.encode() + b"\n")

    def hear(self, seconds=60):
        """Reads the answer to the oldest unanswered command, as words."""
        line = b""
        until = time.monotonic() + seconds
        while not line.endswith(b"\n"):
            ready, _, _ = select.select([self.process.stdout], [], [], max(0, until - time.monotonic()))
            if not ready:
                raise AssertionError("process %d says nothing" % self.pid)
            more = os.read(self.process.stdout.fileno(), 1)
            if not more:
                raise AssertionError("process %d has ended" % self.pid)
            line += more
        return line.decode().split()

    def end(self):
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()


class ElasticTest(unittest.TestCase):
    def start(self, *flags):
        d = daemons.Daemons(nodes=2, coordinator_flags=["--elastic_settle=200ms"] + list(flags))  # the last counts
        d.__enter__()
        self.addCleanup(d.__exit__, None, None, None)
        return d

    def rank(self, d, node, least=3, most=4, start_timeout=60):
        rank = Rank(d.sockets[node], "elastic", least, most, start_timeout)
        self.addCleanup(rank.end)
        return rank

    def join(self, ranks):
        """Makes all processes join; returns (epoch, size) and their ranks, in the given order."""
        for r in ranks:
            r.tell("join")
        heard = [r.hear() for r in ranks]
        for r, words in zip(ranks, heard):
            self.assertEqual(words[0], "joined", words)
            self.assertEqual(int(words[1]), r.pid)
        self.assertEqual(len({(w[2], w[4]) for w in heard}), 1, heard)
        self.assertEqual(int(heard[0][4]), len(ranks))
        self.places = [[int(n) for n in w[5:]] for w in heard]
        return int(heard[0][2]), [int(w[3]) for w in heard]

    def check_sum(self, ranks, name):
        for i, r in enumerate(ranks):
            r.tell("sum %s %d" % (name, 10 ** i))
        for r in ranks:
            self.assertEqual(r.hear(), ["sum", str(sum(10 ** i for i in range(len(ranks))))])

    def leave(self, ranks):
        for r in ranks:
            r.tell("leave")
        for r in ranks:
            self.assertEqual(r.hear(), ["left"])

    def test_one_is_killed_two_go_on_with_new_ones(self):
        d = self.start()
        a, b, c = self.rank(d, 0), self.rank(d, 0), self.rank(d, 1)
        epoch, ranks = self.join([a, b, c])
        self.assertEqual(epoch, 1)
        self.assertEqual(sorted(ranks), [0, 1, 2])
        self.assertEqual(abs(ranks[0] - ranks[1]), 1)  # a node's ranks stand together
        order = sorted([b, c], key=lambda r: ranks[[a, b, c].index(r)])
        self.check_sum([a, b, c], "x")

        # One dies while the others wait for it.
        for r in (b, c):
            r.tell("sum y 1")
        time.sleep(0.3)  # they wait, most likely; nothing depends on it
        os.kill(a.pid, signal.SIGKILL)
        for r in (b, c):
            words = r.hear()
            self.assertEqual(words[:2], ["failed", str(ABORTED)], words)
            self.assertIn("(pid %d," % a.pid if r is b else "pid %d)" % a.pid, " ".join(words))

        # The two continue with a new process; they keep their order.
        self.leave([b, c])
        new = self.rank(d, 1)
        epoch, ranks = self.join(order + [new])
        self.assertEqual(epoch, 2)
        self.assertLess(ranks[0], ranks[1])
        self.assertEqual(ranks[order.index(b)], 0 if order[0] is b else 2)
        self.assertEqual(self.places[order.index(b)], [0, 1, ranks[order.index(b)] // 2, 2])
        self.check_sum(order + [new], "x")

        # A fourth comes while the epoch runs: the others are told, and make room.
        b.tell("wanted")
        self.assertEqual(b.hear(), ["wanted", "0"])
        fourth = self.rank(d, 0)
        fourth.tell("join")
        until = time.monotonic() + 30
        for r in (b, c, new):
            words = ["wanted", "0"]
            while words[1] == "0":
                self.assertLess(time.monotonic(), until)
                time.sleep(0.02)
                r.tell("wanted")
                words = r.hear()
            self.assertEqual(words, ["wanted", "1"])
        self.check_sum([b, c, new], "z")
        before = ranks
        self.leave(order + [new])
        for r in order + [new]:
            r.tell("join")
        heard = [r.hear() for r in order + [new, fourth]]
        self.assertEqual({tuple(w[i] for i in (0, 2, 4)) for w in heard}, {("joined", "3", "4")}, heard)
        after = [int(w[3]) for w in heard]
        self.assertEqual(sorted(after), [0, 1, 2, 3])
        self.assertEqual(sorted(range(3), key=before.__getitem__), sorted(range(3), key=after.__getitem__))
        self.check_sum(order + [new, fourth], "x")
        for r in (a,):
            self.assertEqual(r.process.wait(10), -signal.SIGKILL)
        for r in (b, c, new, fourth):
            self.assertIsNone(r.process.poll())

    def test_who_has_left_and_ends_is_not_waited_for(self):
        d = self.start("--elastic_settle=2s")
        a, b, c = [self.rank(d, n, 2, 3) for n in (0, 0, 1)]
        for r in (a, b, c):
            r.tell("join")
        first = [r.hear() for r in (a, b, c)]
        self.assertEqual([w[0] for w in first], ["joined"] * 3, first)
        self.leave([a, b, c])
        for r in (b, c):
            r.tell("join")
        # It may return as long as its process lives.
        self.assertEqual(select.select([b.process.stdout], [], [], 3)[0], [])
        a.process.stdin.close()
        self.assertEqual(a.process.wait(10), 0)
        heard = [r.hear(20) for r in (b, c)]
        self.assertEqual([(w[0], w[4]) for w in heard], [("joined", "2")] * 2, heard)
        self.check_sum([b, c], "x")

    def test_too_few_are_told_how_many_are_there(self):
        d = self.start()
        a, b = [self.rank(d, n, start_timeout=2) for n in (0, 1)]
        for r in (a, b):
            r.tell("join")
        words = [r.hear() for r in (a, b)]
        for w in words:
            self.assertEqual(w[:2], ["failed", str(DEADLINE_EXCEEDED)], w)
        self.assertIn("of at least 3 ranks are there: node n", " ".join(words[0]))


if __name__ == "__main__":
    unittest.main()
