"""Allreduces over several GPUs by NCCL in the executors: one node and two, and deaths.

The driver and NCCL are fakes (tests/gpu/fake, tests/gpu/fake_nccl); ranks,
executors and daemons are real.
"""

import signal
import time
import unittest

import fake_gpu
import harness

RANKS = 8
ROUNDS = 8


def several(args, nodes, fake="", nccl="", env=None):
    """A job of 8 ranks, two for each of 4 GPUs; the rounds begin when operations run there, if they all can."""
    on_gpu = "crowded" not in args and "MAYPOLE_GPU_MEMORY" not in (env or {})
    return fake_gpu.Job(RANKS, "several.py", args, nodes=nodes, fake="devices=4" + ("," + fake if fake else ""),
                        nccl=fake_gpu.FAKE_NCCL, env={"MAYPOLE_FAKE_NCCL": nccl, "ON_GPU": str(int(on_gpu)), **(env or {})})


class NcclTest(unittest.TestCase):

    def records(self, nodes, seed, args=(), fake="", nccl="", env=None):
        """What the ranks have recorded, which has no error and the same results."""
        with several([ROUNDS, seed, *args], nodes, fake=fake, nccl=nccl, env=env) as job:
            job.check_ok()
            records = job.records()
            self.assertEqual(job.free_bytes(), job.total_bytes())
        for record in records:
            self.assertIsNone(record["error"])
            self.assertGreater(record["compared"], ROUNDS)
            self.assertEqual(record["digest"], records[0]["digest"])
        return records

    def play(self, nodes, seed=1, **options):
        """Returns the digest of the results, and how many operations ran on GPUs."""
        records = self.records(nodes, seed, **options)
        return records[0]["digest"], sum(record["on_gpu"] for record in records)

    def test_one_node_and_two_and_the_host_give_the_same_results(self):
        digest, on_gpu = self.play(2, env={"MAYPOLE_GPU_MEMORY": "host"})
        self.assertEqual(on_gpu, 0)
        for nodes in (1, 2):
            other, on_gpu = self.play(nodes)
            self.assertEqual(other, digest)
            self.assertGreater(on_gpu, 8 * ROUNDS)

    def test_late_work_and_late_launches(self):
        for seed in (2, 3):
            _, on_gpu = self.play(2, seed, fake="seed=%d" % seed, nccl="seed=%d,late=2000" % seed)
            self.assertGreater(on_gpu, 8 * ROUNDS)

    def test_a_rank_without_room_brings_all_to_the_host(self):
        # On two nodes, the operations of rank 0 in which rank 5 takes part are those of all ranks.
        for nodes, crowded in ((1, 2), (2, 5)):
            for seed in (4, 8):
                records = self.records(nodes, seed, ["crowded", crowded])
                for rank, record in enumerate(records):
                    self.assertGreaterEqual(record["on_gpu"], record["roomy"], rank)
                    self.assertLessEqual(record["on_gpu"], record["large"], rank)
                for rank in (0, crowded):
                    self.assertGreater(records[rank]["on_gpu"], records[rank]["roomy"])
                    self.assertLess(records[rank]["on_gpu"], records[rank]["large"])

    def test_the_next_epoch_connects_anew(self):
        with several([6, 7, "epochs", 3], 2, nccl="seed=7") as job:
            job.check_ok()
            for record in job.records():
                self.assertIsNone(record["error"])
                self.assertEqual(len(record["on_gpu_before"]), 2)
                self.assertGreater(min(record["on_gpu_before"] + [record["on_gpu"]]), 0)
            self.assertEqual(job.free_bytes(), job.total_bytes())

    def check_survivors(self, job, ranks, since, pattern, seconds=fake_gpu.RANK_SECONDS):
        for rank in ranks:
            record = job.record(rank)
            self.assertIsNotNone(record["error"], "rank %d saw no error" % rank)
            text, when = record["error"]
            self.assertRegex(text, pattern)
            self.assertLess(when - since, seconds)
            self.assertGreater(record["on_gpu"], 0)

    def test_a_rank_is_killed(self):
        for nodes in (1, 2):
            with several([1000, 5, "kill", 3, 4], nodes, nccl="seed=5") as job:
                job.await_file("killed")
                killed = time.time()
                job.wait(30)
                self.check_survivors(job, [0, 1, 2, 4, 5, 6, 7], killed, "rank 3")
                self.assertEqual(job.free_bytes(), job.total_bytes())

    def test_an_executor_is_killed(self):
        with several([1000, 6, "wait_at", 4], 2, nccl="seed=6") as job:
            for rank in range(8):
                job.await_file("rank.%d.waits" % rank)
            job.touch("go")
            for rank in range(8):
                job.await_file("rank.%d.goes_on" % rank)
            harness.kill(job.executors()[0], signal.SIGKILL)
            killed = time.time()
            job.wait(30)
            self.check_survivors(job, range(4), killed, "executor|agent")
            self.check_survivors(job, range(4, 8), killed, "executor of node node0", fake_gpu.EXECUTOR_SECONDS)
            self.assertEqual(job.free_bytes(), job.total_bytes())


if __name__ == "__main__":
    unittest.main()
