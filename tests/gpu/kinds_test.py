"""Operations of all kinds on CUDA tensors: on one GPU, on several, and on two nodes.

The driver and NCCL are fakes (tests/gpu/fake, tests/gpu/fake_nccl); ranks,
executors and daemons are real.
"""

import unittest

import fake_gpu

ROUNDS = 3


class KindsTest(unittest.TestCase):

    def play(self, np, ranks_per_gpu, nodes=1, seed=1, fake="", env=None, **options):
        """Returns what each rank has recorded about each round."""
        gpus = max(1, np // ranks_per_gpu)
        fake = "devices=%d" % gpus + ("," + fake if fake else "")
        with fake_gpu.Job(np, "kinds.py", [ROUNDS, seed, ranks_per_gpu], nodes=nodes, fake=fake, env=env,
                          **options) as job:
            job.check_ok()
            records = job.records()
        for record in records:
            self.assertIsNone(record["error"])
            self.assertEqual(len(record["on_gpu"]), ROUNDS)
        return [record["on_gpu"] for record in records]

    def check_on_gpu(self, records, but=lambda name: False):
        for rounds in records:
            for number, ran in enumerate(rounds):
                for name, count in ran.items():
                    # A rank learns how large a result is.
                    learns = number == 0 and name.startswith("ragged")
                    self.assertEqual(count, 0 if learns or but(name) else 1, "%s in round %d" % (name, number))

    def test_one_gpu_without_nccl(self):
        self.check_on_gpu(self.play(3, 3))

    def test_several_gpus_of_one_node(self):
        self.check_on_gpu(self.play(4, 2, nccl=fake_gpu.FAKE_NCCL), lambda name: name == "reducescatter.int16")

    def test_two_nodes(self):
        for seed in (1, 2):
            records = self.play(8, 2, nodes=2, seed=seed, fake="seed=%d" % seed, nccl=fake_gpu.FAKE_NCCL,
                                env={"MAYPOLE_FAKE_NCCL": "seed=%d" % seed})
            self.check_on_gpu(records, lambda name: name == "reducescatter.int16")

    def test_nccl_in_the_ranks(self):
        for nodes in (1, 2):
            for seed in (0, 1, 2):
                records = self.play(4, 1, nodes=nodes, seed=seed, fake="seed=%d" % seed, nccl=fake_gpu.FAKE_NCCL,
                                    env={"MAYPOLE_FAKE_NCCL": "seed=%d" % seed, "MAYPOLE_GPU_SITE": "client"})
                self.check_on_gpu(records, lambda name: name == "reducescatter.int16")

    def test_results_are_the_same_where_memory_is_short(self):
        for site in ("agent", "client"):
            records = self.play(4, 1, nodes=2, nccl=fake_gpu.FAKE_NCCL,
                                env={"MAYPOLE_GPU_MEMORY_BYTES": "%d" % (2 << 20), "MAYPOLE_GPU_SITE": site})
            counts = [count for rounds in records for ran in rounds for count in ran.values()]
            self.assertEqual(set(counts), {0, 1})


if __name__ == "__main__":
    unittest.main()
