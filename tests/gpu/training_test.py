"""Trainings whose tensors are on a (fake) GPU, on real ranks, and their deaths."""

import os
import re
import signal
import time
import unittest
import urllib.request

import fake_gpu
import harness

STEPS = 16


class TrainingTest(unittest.TestCase):

    def train(self, np, nodes=1, fake="", memory="auto", args=(), on_gpu=None):
        """on_gpu: whether the executor has reduced on the GPU; None: not asked."""
        args = [STEPS] + (["on_gpu"] if on_gpu else []) + list(args)
        with fake_gpu.Job(np, "train.py", args, nodes=nodes, fake=fake,
                          env={"MAYPOLE_GPU_MEMORY": memory}) as job:
            job.check_ok()
            records = job.records()
            self.stderr = job.stderr()
            self.assertEqual(job.free_bytes(), job.total_bytes())
        for record in records:
            if on_gpu is not None:
                self.assertEqual(record["on_gpu"], STEPS if on_gpu else 0)  # the larger gradient
            self.assertFalse(record["opened_by_init"])  # the script may choose its GPU after init()
            self.assertIsNone(record["error"])
            self.assertEqual(record["compared"], 2 * STEPS)
            self.assertEqual(record["digest"], records[0]["digest"])
            self.assertLess(record["losses"][-1], 0.3 * record["losses"][0])
        return records[0]["digest"]

    def test_four_ranks_on_one_gpu(self):
        self.train(4, on_gpu=True)

    def test_each_way_of_sharing_memory_gives_the_same_bits(self):
        digest = self.train(2, memory="host", on_gpu=False)
        self.assertEqual(self.train(2, memory="descriptor", on_gpu=True), digest)
        self.assertEqual(self.train(2, memory="ipc", on_gpu=True), digest)
        # One rank has its tensors in host memory: the other brings its own there.
        self.assertEqual(self.train(2, args=["host", "1"], on_gpu=False), digest)

    def test_ranks_take_the_next_way_if_one_fails(self):
        digest = self.train(2, fake="vmm=lies", on_gpu=True)
        self.assertNotIn("maypole: no memory of GPU-", self.stderr)
        self.assertEqual(self.train(2, fake="vmm=0,ipc=0", on_gpu=False), digest)
        self.assertEqual(self.stderr.count("maypole: no memory of GPU-"), 2, self.stderr)  # of each rank

    def test_late_work_and_no_stream_writes_change_nothing(self):
        digest = self.train(2)
        self.assertEqual(self.train(2, fake="seed=3"), digest)
        self.assertEqual(self.train(2, fake="seed=4,writes=0"), digest)

    def test_two_nodes(self):
        self.train(4, nodes=2, fake="seed=5", on_gpu=False)

    def gpus(self, env, launcher_args=(), on_gpu=False):
        with fake_gpu.Job(4, "train.py", [10] + (["on_gpu"] if on_gpu else []), fake="devices=2", env=env, launcher_args=launcher_args) as job:
            job.check_ok()
            lines = [line for line in job.stderr().splitlines() if "uses the same GPU as rank" in line]
            return [record["visible"] for record in job.records()], lines, sum(r["on_gpu"] for r in job.records())

    def test_ranks_are_bound_to_gpus(self):
        visible, lines, on_gpu = self.gpus({"CUDA_VISIBLE_DEVICES": "1,0"}, ["--bind-gpus"])
        self.assertEqual(on_gpu, 0)  # nor is memory copied there in vain
        self.assertEqual(visible, ["1", "0", "1", "0"])
        self.assertEqual(lines, [])

    def test_the_option_for_the_site_reaches_the_ranks(self):
        self.assertEqual(self.gpus({}, ["--gpu-site=host"])[2], 0)

    def test_ranks_that_share_a_gpu_while_others_idle_are_told(self):
        visible, lines, on_gpu = self.gpus({}, on_gpu=True)
        self.assertEqual(on_gpu, 4 * 10)
        self.assertEqual(visible, [None] * 4)
        self.assertGreaterEqual(len(lines), 3)  # all but the first
        self.assertRegex(lines[0], r"maypole: this rank uses the same GPU as rank \d, GPU-.* \(Fake GPU.*\), but sees 2 "
                         r"GPUs: choose one by local_rank\(\).*--bind-gpus$")

    def check_survivors(self, job, ranks, since, pattern):
        for rank in ranks:
            record = job.record(rank)
            self.assertIsNotNone(record["error"], "rank %d saw no error" % rank)
            text, when = record["error"]
            self.assertRegex(text, pattern)
            self.assertLess(when - since, 1.0)
            self.assertGreater(record["on_gpu"], 0)  # the executor was reducing there

    def test_a_rank_is_killed(self):
        with fake_gpu.Job(4, "train.py", [1000, "on_gpu", "kill", 2, 9], fake="seed=6") as job:
            job.await_file("killed")
            killed = time.time()
            job.wait(30)
            self.check_survivors(job, [0, 1, 3], killed, "rank 2")
            self.assertEqual(job.free_bytes(), job.total_bytes())

    def gpu_metrics(self, job):
        """{(metric without its prefix, UUID): value} of the agent's endpoint."""
        with urllib.request.urlopen("http://%s/metrics" % job.endpoints()["node0"], timeout=10) as reply:
            found = re.findall(r'^maypole_gpu_(\w+){.*gpu="(GPU-[0-9a-f-]+)"} (\S+)$', reply.read().decode(), re.M)
        return {(name, gpu): float(value) for name, gpu, value in found}

    def test_the_agents_metrics_tell_of_the_gpu(self):
        with fake_gpu.Job(2, "train.py", [12, "on_gpu", "wait_at", 9]) as job:
            for rank in range(2):
                job.await_file("rank.%d.waits" % rank)
            seen = harness.wait_until(lambda: self.gpu_metrics(job), 10, "metrics of the GPU")
            (gpu,) = {uuid for _, uuid in seen}
            self.assertGreaterEqual(seen["memory_bytes", gpu], 2 * 64 * 300 * 4)
            self.assertEqual(seen["operations_total", gpu], 1 + 9)  # the first, and the larger gradient
            self.assertEqual(seen["operation_bytes_total", gpu], 2 * 4 * (30000 + 9 * 64 * 300))
            self.assertGreater(seen["operation_seconds_total", gpu], 0)
            self.assertGreater(seen["wait_seconds_total", gpu], 0)
            self.assertEqual(seen["nccl_seconds_total", gpu], 0)  # there is one GPU
            self.assertEqual(len(seen), 6)
            job.touch("go")
            job.check_ok()

    def test_the_executor_is_killed(self):
        with fake_gpu.Job(4, "train.py", [1000, "on_gpu", "wait_at", 9], fake="seed=7") as job:
            for rank in range(4):
                job.await_file("rank.%d.waits" % rank)
            pids = [job.rank_pid(rank) for rank in range(4)]
            job.touch("go")
            time.sleep(0.05)
            self.assertTrue(all(harness.alive(pid) for pid in pids))
            for pid in job.executors():
                harness.kill(pid, signal.SIGKILL)
            killed = time.time()
            job.wait(30)
            self.check_survivors(job, range(4), killed, "executor|agent")
            self.assertEqual(job.free_bytes(), job.total_bytes())


if __name__ == "__main__":
    unittest.main()
