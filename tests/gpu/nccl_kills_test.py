"""Deaths at random moments of collectives over several GPUs: nobody hangs, nothing is left.

All kinds of collectives, in several process sets; NCCL in the executors (8 ranks on 4
GPUs) or in the ranks (4 ranks).

RUNS: the number of runs. A failing run prints its number; `RUNS=1 FIRST=n` repeats
it (with other timing).
"""

import os
import random
import signal
import time
import unittest

import client_site_test
import fake_gpu
import harness
import nccl_test

FIRST = int(os.environ.get("FIRST", "0"))
RUNS = int(os.environ.get("RUNS", "200"))


class NcclKillsTest(unittest.TestCase):

    def kill(self, r, job, pid):
        job.touch("go")
        time.sleep(r.uniform(0, 0.3))
        harness.kill(pid, signal.SIGKILL)
        return time.time()

    def check(self, job, ranks, dead, killed, pattern, seconds):
        # maypolerun ends nobody before kFailureGrace (5 s), which begins when a rank
        # ends badly: the one that was killed, as survivors end well.
        status = job.wait(30)
        self.assertEqual(status, 128 + signal.SIGKILL if dead else 0)
        for rank in range(ranks):
            if rank in dead:
                continue
            self.assertTrue(os.path.exists(os.path.join(job.dir, "rank.%d.json" % rank)), "rank %d has hung or crashed" % rank)
            text, when = job.record(rank)["error"]
            self.assertRegex(text, pattern)
            self.assertLess(when - killed, seconds)

    def play(self, run):
        r = random.Random(run)
        nodes = r.choice([1, 2, 2])
        kind = r.choice(["rank", "rank", "executor", "executor", "agent"])
        nccl = "seed=%d,late=1000" % run + r.choice(["", ",peer_death=error"])
        rounds = 12 if kind == "agent" else 100000
        site = r.choice([nccl_test, nccl_test, client_site_test])
        with site.several([rounds, run, "wait_at", 2], nodes, fake="seed=%d" % run, nccl=nccl) as job:
            for rank in range(site.RANKS):
                job.await_file("rank.%d.waits" % rank)
            if kind == "rank":
                rank = r.randrange(site.RANKS)
                killed = self.kill(r, job, job.rank_pid(rank))
                self.check(job, site.RANKS, [rank], killed, r"rank %d\b" % rank, fake_gpu.RANK_SECONDS)
            elif kind == "executor":
                killed = self.kill(r, job, r.choice(job.executors()))
                self.check(job, site.RANKS, [], killed, "executor|agent", fake_gpu.EXECUTOR_SECONDS)
            else:  # the executor goes on without its agent
                self.kill(r, job, r.choice(job.daemons("maypole-worker")))
                job.check_ok()
                self.assertEqual({record["error"] for record in job.records()}, {None})
            self.assertEqual(job.free_bytes(), job.total_bytes())

    def test_random_deaths(self):
        for run in range(FIRST, FIRST + RUNS):
            with self.subTest(run=run):
                self.play(run)


if __name__ == "__main__":
    unittest.main()
