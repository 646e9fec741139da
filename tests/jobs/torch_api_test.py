"""Horovod's PyTorch interface on real ranks: its smaller parts, all optimizers,
Adasum, SyncBatchNorm, compression. The programs compare with references."""

import unittest

import harness


class TorchApiTest(unittest.TestCase):
    def run_on(self, np, nodes, program, seconds=120):
        with harness.Job(np=np, nodes=nodes, program=program) as job:
            job.check_ok(seconds)
            return job.records()

    def checks(self, np, nodes, program, least):
        records = self.run_on(np, nodes, program)
        for record in records:
            self.assertGreaterEqual(record["checks"], least)

    def test_names_scales_gradients_and_going_on_after_errors(self):
        self.checks(2, 1, "torch_api.py", 57)

    def test_the_same_over_uneven_nodes(self):
        self.checks(3, 2, "torch_api.py", 51)

    def test_the_same_over_even_nodes(self):
        self.checks(4, 2, "torch_api.py", 59)

    def test_every_form(self):
        self.checks(2, 1, "forms.py", 120)

    def test_every_form_over_nodes(self):
        self.checks(3, 2, "forms.py", 120)
        self.checks(4, 2, "forms.py", 120)

    def test_every_optimizer_equals_one_process(self):
        for record in self.run_on(2, 1, "optimizers.py"):
            self.assertGreaterEqual(len(record["apart"]), 13)
            self.assertLess(max(record["apart"].values()), 1e-6)

    def test_adasum_of_two_ranks(self):
        self.checks(2, 1, "adasum.py", 70)

    def test_adasum_of_three_ranks(self):
        self.checks(3, 1, "adasum.py", 70)

    def test_adasum_of_four_ranks_on_two_nodes(self):
        self.checks(4, 2, "adasum.py", 70)

    def test_sync_batch_norm(self):
        self.checks(2, 1, "batch_norm.py", 100)

    def test_sync_batch_norm_on_uneven_nodes(self):
        self.checks(3, 2, "batch_norm.py", 100)

    def test_compression(self):
        for record in self.run_on(2, 1, "compression.py"):
            sent, losses = record["sent"], record["losses"]
            self.assertEqual((sent["none"], sent["fp16"], sent["bf16"]), (8000, 4000, 4000))
            self.assertLess(sent["powersgd"], 600)
            self.assertLess(losses["none"], 0.03)
            for name in ("fp16", "bf16"):
                self.assertLess(abs(losses[name] - losses["none"]), 0.005, name)
            self.assertLess(losses["powersgd"], 0.1)  # untrained: 2.6
            powersgd = record["powersgd"]
            self.assertTrue(powersgd["same"] and powersgd["equal"])
            # What one step leaves out of a random matrix comes later.
            self.assertGreater(powersgd["off_once"], 0.9)
            self.assertLess(powersgd["off"], 0.35)


if __name__ == "__main__":
    unittest.main()
