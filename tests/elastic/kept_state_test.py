"""States that outlive their ranks (TorchState(keep=True)), under maypolerun with real deaths.

Bytes, not times, show that a process has got its state from the memory of a dead one: those that it has read from
there, and those that were broadcast. finish() compares the weights with those of the same steps in one undisturbed
process.
"""

import os
import signal
import unittest

import elastic_jobs
import harness

KEEP = {"MAYPOLE_KEEP_STATE": "1", "TRAIN_WIDTH": "40"}
ONE_NODE = ("-np", "3", "--min-np", "1", "--blacklist-cooldown-range", "1", "1")


class KeptStateTest(elastic_jobs.ElasticJobTest):
    def kill(self, pids):
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        harness.wait_until(lambda: not any(harness.alive(pid) for pid in pids), 30, "the ends of killed processes")

    def said(self, job, pid, key):
        return job.last[pid][key]

    def committed(self, job, pids, steps=12):
        """Waits until so many steps more are made (each third one is committed), and returns their number then."""
        begin = max(self.said(job, pid, "step") for pid in pids)
        harness.wait_until(lambda: min(self.said(job, pid, "step") for pid in pids) >= begin + steps, 60, "more steps")
        return begin + steps

    def test_a_new_rank_finds_what_the_dead_one_has_left(self):
        job = self.start(*ONE_NODE, **KEEP)
        ranks = self.await_ranks(job, 3)
        for victim_rank in (0, 2):
            self.committed(job, ranks)
            (victim,) = [p for p in ranks if self.said(job, p, "rank") == victim_rank]
            before = {p: self.said(job, p, "broadcast") for p in ranks}
            self.write("die", str(victim_rank))
            harness.wait_until(lambda pid=victim: not harness.alive(pid), 30, "the end of the rank")
            after = self.await_ranks(job, 3)
            (new,) = after - ranks
            self.assertGreater(self.said(job, new, "restored"), 8 * 40 * 40)  # weights, and as much momentum
            self.assertEqual(self.said(job, new, "broadcast"), 0)
            for survivor in after & ranks:
                self.assertEqual(self.said(job, survivor, "broadcast"), before[survivor])
                self.assertEqual(self.said(job, survivor, "restored"), 0)
            ranks = after
        self.finish(job, 3)

    def test_all_are_killed_at_once(self):
        job = self.start(*ONE_NODE, **KEEP)
        ranks = self.await_ranks(job, 3)
        steps = self.committed(job, ranks)
        self.kill(ranks)
        ranks = self.await_ranks(job, 3)
        for pid in ranks:
            # TRAIN_COMMIT is 3: no more than the steps since the last commit are lost.
            self.assertGreater(self.said(job, pid, "step"), steps - 3)
            self.assertGreater(self.said(job, pid, "restored"), 8 * 40 * 40)
            self.assertEqual(self.said(job, pid, "broadcast"), 0)
        self.finish(job, 3)

    def test_without_it_all_begin_again(self):
        job = self.start(*ONE_NODE, TRAIN_WIDTH="40")
        ranks = self.await_ranks(job, 3)
        self.committed(job, ranks, steps=60)
        self.kill(ranks)
        ranks = self.await_ranks(job, 3)
        self.assertEqual({job.first[pid]["step"] for pid in ranks}, {1})
        self.finish(job, 3)


if __name__ == "__main__":
    unittest.main()
