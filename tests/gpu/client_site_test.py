"""Site client: NCCL in the training processes, on one node and two, and deaths.

The driver and NCCL are fakes (tests/gpu/fake, tests/gpu/fake_nccl); ranks,
executors and daemons are real.
"""

import signal
import time
import unittest

import fake_gpu
import harness

RANKS = 4
ROUNDS = 8


def several(args, nodes, site="client", fake="", nccl="", gpus=RANKS, env=None):
    """A job of 4 ranks, one for each GPU; the rounds begin when operations run there, if they can."""
    on_gpu = site != "host" and gpus == RANKS and "MAYPOLE_NCCL_LIBRARY" not in (env or {})
    return fake_gpu.Job(RANKS, "several.py", args, nodes=nodes, fake="devices=4" + ("," + fake if fake else ""),
                        nccl=fake_gpu.FAKE_NCCL, env={"MAYPOLE_FAKE_NCCL": nccl, "MAYPOLE_GPU_SITE": site,
                                             "RANKS_PER_GPU": str(RANKS // gpus), "ON_GPU": str(int(on_gpu)),
                                             **(env or {})})


class ClientSiteTest(unittest.TestCase):

    def play(self, nodes, seed=1, **options):
        """Returns the digest of the results, and how many operations ran on GPUs."""
        with several([ROUNDS, seed], nodes, **options) as job:
            job.check_ok()
            records = job.records()
            self.assertEqual(job.free_bytes(), job.total_bytes())
        for record in records:
            self.assertIsNone(record["error"])
            self.assertGreater(record["compared"], ROUNDS)
            self.assertEqual(record["digest"], records[0]["digest"])
        return records[0]["digest"], sum(record["on_gpu"] for record in records)

    def test_the_results_are_those_of_the_other_sites(self):
        digest, on_gpu = self.play(2, site="host")
        self.assertEqual(on_gpu, 0)
        for nodes in (1, 2):
            for site in ("agent", "client"):
                other, on_gpu = self.play(nodes, site=site)
                self.assertEqual(other, digest)
                self.assertGreater(on_gpu, RANKS * ROUNDS / 2)

    def test_late_work_and_late_launches(self):
        for seed in (2, 3):
            _, on_gpu = self.play(2, seed, fake="seed=%d" % seed, nccl="seed=%d,late=2000" % seed)
            self.assertGreater(on_gpu, RANKS * ROUNDS / 2)

    def test_results_that_are_enqueued_only(self):
        for nodes in (1, 2):
            _, on_gpu = self.play(nodes, 9, fake="seed=9", nccl="seed=9,late=2000",
                                  env={"MAYPOLE_ENABLE_ASYNC_COMPLETION": "1"})
            self.assertGreater(on_gpu, RANKS * ROUNDS / 2)

    def test_auto_is_client_where_each_rank_has_a_gpu(self):
        for nodes in (1, 2):
            with several([ROUNDS, 1], nodes, site="auto") as job:
                job.check_ok()
                # Not before all ranks know which GPUs the others use.
                self.assertGreater(sum(record["on_gpu"] for record in job.records()), RANKS)
                self.assertEqual(job.stderr().count("run at site client, by NCCL in this process: each rank"), 1)

    def test_auto_is_agent_where_ranks_share_a_gpu(self):
        with several([ROUNDS, 1], 1, site="auto", gpus=1) as job:
            job.check_ok()
            self.assertGreater(sum(record["on_gpu"] for record in job.records()), RANKS)
            self.assertIn("run at site agent, in the executor of the node: ranks of this node share a GPU", job.stderr())

    def test_ranks_that_share_a_gpu_use_the_host(self):
        _, on_gpu = self.play(1, 4, gpus=1)
        self.assertEqual(on_gpu, 0)

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
            text, when = job.record(rank)["error"]
            self.assertRegex(text, pattern)
            self.assertLess(when - since, seconds)

    def test_a_rank_is_killed(self):
        for nodes in (1, 2):
            for nccl in ("seed=5", "seed=5,peer_death=error"):
                with several([1000, 5, "kill", 3, 4], nodes, nccl=nccl) as job:
                    job.await_file("killed")
                    killed = time.time()
                    job.wait(30)
                    self.check_survivors(job, [0, 1, 2], killed, r"rank 3\b")
                    self.assertEqual(job.free_bytes(), job.total_bytes())

    def test_an_executor_is_killed(self):
        with several([1000, 6, "wait_at", 4], 2, nccl="seed=6") as job:
            for rank in range(RANKS):
                job.await_file("rank.%d.waits" % rank)
            job.touch("go")
            for rank in range(RANKS):
                job.await_file("rank.%d.goes_on" % rank)
            harness.kill(job.executors()[0], signal.SIGKILL)
            killed = time.time()
            job.wait(30)
            self.check_survivors(job, [0, 1], killed, "executor|agent")
            self.check_survivors(job, [2, 3], killed, "executor of node node0", fake_gpu.EXECUTOR_SECONDS)
            self.assertEqual(job.free_bytes(), job.total_bytes())

    def test_an_abort_that_hangs_leaves_the_error_and_a_line(self):
        with several([1000, 8, "kill", 3, 4], 1, nccl="seed=8,abort=hang") as job:
            job.await_file("killed")
            killed = time.time()
            job.wait(30)
            self.check_survivors(job, [0, 1, 2], killed, r"rank 3\b")
            self.assertIn("this process cannot use NCCL any more", job.stderr())

    def test_without_nccl_a_line_says_why(self):
        with several([2, 1], 1, env={"MAYPOLE_NCCL_LIBRARY": "none"}) as job:
            job.check_ok()
            self.assertEqual(sum(record["on_gpu"] for record in job.records()), 0)
            self.assertRegex(job.stderr(), "does not call NCCL on GPU-.*MAYPOLE_NCCL_LIBRARY=none")


if __name__ == "__main__":
    unittest.main()
