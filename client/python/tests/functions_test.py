"""Broadcast of models, optimizers and objects between two thread ranks."""

import unittest

import torch

import fake_library
from maypole import _native

_native.use(fake_library.FakeLibrary(2))
import maypole.torch as hvd  # pylint: disable=wrong-import-position
from maypole.common import objects  # pylint: disable=wrong-import-position


class FunctionsTest(unittest.TestCase):

    def setUp(self):
        self.fake = fake_library.FakeLibrary(2)
        _native.use(self.fake)

    def both(self, function):
        return fake_library.run_ranks(self.fake, function)

    def test_broadcast_parameters(self):
        def rank(r):
            model = torch.nn.Sequential(torch.nn.Linear(2, 2),
                                        torch.nn.BatchNorm1d(2))
            with torch.no_grad():
                for p in model.parameters():
                    p.fill_(float(r))
            model[1].num_batches_tracked.fill_(10 + r)
            hvd.broadcast_parameters(model.state_dict(), root_rank=1)
            self.assertEqual(model[0].weight.tolist(), [[1.0, 1.0]] * 2)
            self.assertEqual(model[1].num_batches_tracked.item(), 11)
            with torch.no_grad():
                model[0].weight.fill_(float(r))
            hvd.broadcast_parameters(model.named_parameters(), root_rank=0)
            self.assertEqual(model[0].weight.tolist(), [[0.0, 0.0]] * 2)
            tensors = [torch.tensor([r]), None]
            hvd.broadcast_parameters(tensors, root_rank=1)
            self.assertEqual(tensors[0].tolist(), [1])

        self.both(rank)
        self.assertEqual(self.fake.pending(), 0)

    def test_broadcast_parameters_refuses_what_is_no_tensor(self):
        for wrong in ({"x": 3}, [("a", "b")], 5, torch.ones(2)):
            with self.assertRaisesRegex(ValueError, "broadcast_parameters"):
                hvd.broadcast_parameters(wrong, 0)
        self.assertEqual(self.fake.submitted, [])

    def check_optimizer(self, make):
        """Rank 1 has trained; rank 0 takes its state over without a step."""

        def rank(r):
            weight = torch.nn.Parameter(torch.ones(3))
            optimizer = make([weight], 0.1 * (r + 1))
            if r == 1:
                for i in range(3):
                    weight.grad = torch.full((3,), i + 1.0)
                    optimizer.step()
            before = weight.detach().clone()
            hvd.broadcast_optimizer_state(optimizer, root_rank=1)
            self.assertTrue(torch.equal(weight, before))
            return optimizer.state_dict()

        mine, theirs = self.both(rank)
        self.assertEqual(mine["param_groups"], theirs["param_groups"])
        self.assertAlmostEqual(mine["param_groups"][0]["lr"], 0.2)
        self.assertEqual(mine["state"].keys(), theirs["state"].keys())
        for key, value in theirs["state"].get(0, {}).items():
            if isinstance(value, torch.Tensor):
                self.assertTrue(torch.equal(mine["state"][0][key], value), key)
                self.assertEqual(mine["state"][0][key].dtype, value.dtype)
            else:
                self.assertEqual(mine["state"][0][key], value, key)
        return mine

    def test_broadcast_optimizer_state(self):
        state = self.check_optimizer(lambda p, lr: torch.optim.Adam(p, lr))
        self.assertEqual(int(state["state"][0]["step"]), 3)
        for make in (
                lambda p, lr: torch.optim.SGD(p, lr, momentum=0.9),
                lambda p, lr: torch.optim.SGD(p, lr),
                lambda p, lr: torch.optim.Adagrad(p, lr),
                lambda p, lr: torch.optim.RMSprop(p, lr, centered=True),
                lambda p, lr: torch.optim.AdamW(p, lr, amsgrad=True),
                lambda p, lr: torch.optim.ASGD(p, lr),
                lambda p, lr: torch.optim.NAdam(p, lr),
        ):
            self.setUp()
            self.check_optimizer(make)

    def test_broadcast_state_of_a_distributed_optimizer(self):
        self.check_optimizer(lambda p, lr: hvd.DistributedOptimizer(
            torch.optim.SGD(p, lr, momentum=0.9))
            if self.fake.rank() == 0 else torch.optim.SGD(p, lr, momentum=0.9))

    def test_lbfgs_is_refused(self):
        optimizer = torch.optim.LBFGS([torch.nn.Parameter(torch.ones(1))])
        with self.assertRaisesRegex(ValueError, "LBFGS"):
            hvd.broadcast_optimizer_state(optimizer, 0)

    def test_more_than_2_gib(self):
        data = torch.empty(2**31 + 8, dtype=torch.uint8)  # never touched
        data[-1] = 7
        buffer = objects.bytes_at(data.data_ptr(), data.numel())
        self.assertEqual((len(buffer), buffer[-1]), (2**31 + 8, 7))

    def test_objects(self):
        def rank(r):
            mine = {"rank": r, "list": list(range(10 * r))}
            got = hvd.broadcast_object(mine, root_rank=1)
            self.assertEqual(got, {"rank": 1, "list": list(range(10))})
            self.assertEqual(hvd.broadcast_object(mine if r == 0 else None)
                             ["rank"], 0)
            all_of_them = hvd.allgather_object(("r" * r, r), name="all")
            self.assertEqual(all_of_them, [("", 0), ("r", 1)])

        self.both(rank)
        self.assertEqual(self.fake.pending(), 0)

    def test_dtypes_of_state_that_are_not_the_parameters(self):
        # torch's load_state_dict() would cast mu, eta and mu_product.

        def rank(r, kind):
            p = torch.nn.Parameter(torch.ones(2, dtype=torch.float64))
            optimizer = kind([p], lr=0.1)
            for step in range(2 + r):
                p.grad = torch.full_like(p, step + 0.1)
                optimizer.step()
            hvd.broadcast_optimizer_state(optimizer, root_rank=1)
            return {key: (str(getattr(value, "dtype", type(value))), float(value.sum() if torch.is_tensor(value) else value))
                    for key, value in optimizer.state[p].items()}

        for kind in (torch.optim.ASGD, torch.optim.NAdam, torch.optim.RAdam):
            with self.subTest(kind):
                one, two = self.both(lambda r: rank(r, kind))
                self.assertEqual(one, two)


if __name__ == "__main__":
    unittest.main()
