"""DistributedOptimizer over ranks that are threads, with a fake library."""

import gc
import os
import threading
import unittest
import warnings
from unittest import mock

import torch

import fake_library
from maypole import _native

_native.use(fake_library.FakeLibrary(2))
import maypole.torch as hvd  # pylint: disable=wrong-import-position


def make_model():
    """Two layers with the same weights on every rank."""
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(),
                                torch.nn.Linear(4, 1))
    with torch.no_grad():
        for parameter in model.parameters():
            values = torch.arange(parameter.numel(), dtype=torch.float32)
            parameter.copy_((values.sin() / 2).view_as(parameter))
    return model


def batch(step, rank, ranks):
    """This rank's share of the global batch of a step: 8 rows."""
    rows = torch.arange(24, dtype=torch.float32).reshape(8, 3)
    x = (rows + step).cos()
    y = x.sum(1, keepdim=True)
    share = slice(rank * 8 // ranks, (rank + 1) * 8 // ranks)
    return x[share], y[share]


def loss_of(model, x, y):
    return ((model(x) - y)**2).mean()


def weights(model):
    return [p.detach().clone() for p in model.parameters()]


class OptimizerTest(unittest.TestCase):

    def setUp(self):
        self.use(2)

    def use(self, size):
        self.fake = fake_library.FakeLibrary(size)
        _native.use(self.fake)

    def both(self, function):
        return fake_library.run_ranks(self.fake, function)

    def train(self, rank, ranks, steps=5, **options):
        model = make_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        optimizer = hvd.DistributedOptimizer(
            optimizer, named_parameters=model.named_parameters(), **options)
        for step in range(steps):
            optimizer.zero_grad()
            loss_of(model, *batch(step, rank, ranks)).backward()
            optimizer.step()
        return weights(model)

    def reference(self, steps=5):
        model = make_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        for step in range(steps):
            optimizer.zero_grad()
            loss_of(model, *batch(step, 0, 1)).backward()
            optimizer.step()
        return weights(model)

    def test_two_ranks_train_as_one_process_on_the_whole_batch(self):
        results = self.both(lambda rank: self.train(rank, 2))
        for a, b, want in zip(*results, self.reference()):
            self.assertTrue(torch.equal(a, b))
            torch.testing.assert_close(a, want, rtol=1e-5, atol=1e-6)
        self.assertEqual(self.fake.pending(), 0)

    def test_options_that_do_not_change_the_result(self):
        want = self.reference()
        for options in ({"gradient_predivide_factor": 2.0}, {"groups": 2},
                        {"groups": []}):
            self.use(2)
            results = self.both(lambda rank: self.train(rank, 2, **options))
            for a, b in zip(results[0], want):
                torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)

    def test_fp16_compression_is_close(self):
        results = self.both(lambda rank: self.train(
            rank, 2, compression=hvd.Compression.fp16))
        for a, b, want in zip(*results, self.reference()):
            self.assertTrue(torch.equal(a, b))
            torch.testing.assert_close(a, want, rtol=0.02, atol=0.005)

    def test_one_rank_trains_as_without_maypole(self):
        self.use(1)
        result = self.train(0, 1)
        for a, b in zip(result, self.reference()):
            self.assertTrue(torch.equal(a, b))
        self.assertEqual(self.fake.submitted, [])

    def test_an_allreduce_is_complete_before_backward_ends(self):
        last = "DistributedOptimizer.2.weight"
        first = "DistributedOptimizer.0.weight"
        seen = [None, None]
        fake = self.fake

        class Gate(torch.autograd.Function):
            """backward() waits here until the last layer is reduced."""

            @staticmethod
            def forward(ctx, x):
                return x.clone()

            @staticmethod
            def backward(ctx, grad):
                complete = fake.wait_completed(last)
                seen[fake.rank()] = (complete, first in fake.completed)
                return grad

        def rank(r):
            model = make_model()
            optimizer = hvd.DistributedOptimizer(
                torch.optim.SGD(model.parameters(), lr=0.1),
                named_parameters=model.named_parameters())
            x, y = batch(0, r, 2)
            hidden = Gate.apply(model[1](model[0](x)))
            ((model[2](hidden) - y)**2).mean().backward()
            # The first layer's allreduce starts within backward, too.
            self.assertIn((r, first), fake.submitted)
            optimizer.step()

        self.both(rank)
        self.assertEqual(seen, [(True, False), (True, False)])
        self.assertIn(first, fake.completed)

    def test_backward_passes_per_step(self):
        def rank(r):
            model = make_model()
            optimizer = hvd.DistributedOptimizer(
                torch.optim.SGD(model.parameters(), lr=0.1),
                named_parameters=model.named_parameters(),
                backward_passes_per_step=2)
            for step in range(2):
                x, y = batch(step, r, 2)
                loss_of(model, x[:2], y[:2]).div(2).backward()
                sent = [n for who, n in self.fake.submitted if who == r]
                self.assertEqual(len(sent), 4 * step)
                loss_of(model, x[2:], y[2:]).div(2).backward()
                optimizer.step()
                optimizer.zero_grad()
            loss_of(model, x, y).backward()
            loss_of(model, x, y).backward()
            with self.assertRaisesRegex(AssertionError,
                                        "backward_passes_per_step=2"):
                loss_of(model, x, y).backward()
            # The third one was added to a gradient that is being reduced.
            with self.assertRaisesRegex(AssertionError, "2.bias' was changed"):
                optimizer.synchronize()
            optimizer.zero_grad()
            return weights(model)

        model = make_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(2):
            optimizer.zero_grad()
            loss_of(model, *batch(step, 0, 1)).backward()
            optimizer.step()
        for result in self.both(rank):
            for a, b in zip(result, weights(model)):
                torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)

    def test_a_parameter_used_by_one_rank_only(self):
        def rank(r):
            a = torch.nn.Parameter(torch.ones(2))
            b = torch.nn.Parameter(torch.ones(2))
            optimizer = hvd.DistributedOptimizer(
                torch.optim.SGD([a, b], lr=1.0), [("a", a), ("b", b)])
            (a.sum() if r == 0 else b.sum() * 4).backward()
            optimizer.step()
            return a.tolist(), b.tolist()

        for result in self.both(rank):
            self.assertEqual(result, ([0.5, 0.5], [-1.0, -1.0]))

    def test_sparse_gradients(self):
        for sparse_as_dense in (False, True):
            self.use(2)

            def rank(r):
                table = torch.nn.Embedding(4, 2, sparse=True)
                with torch.no_grad():
                    table.weight.zero_()
                optimizer = hvd.DistributedOptimizer(
                    torch.optim.SGD(table.parameters(), lr=1.0),
                    table.named_parameters(),
                    sparse_as_dense=sparse_as_dense)
                table(torch.tensor([r, 3, 3])).sum().backward()
                optimizer.step()
                return table.weight[:, 0].tolist()

            for result in self.both(rank):
                self.assertEqual(result, [-0.5, -0.5, 0.0, -2.0])

    def test_zero_grad_while_gradients_are_reduced(self):
        def rank(r):
            model = make_model()
            optimizer = hvd.DistributedOptimizer(
                torch.optim.SGD(model.parameters(), lr=0.1),
                model.named_parameters())
            loss_of(model, *batch(0, r, 2)).backward()
            with self.assertRaisesRegex(AssertionError, "zero_grad"):
                optimizer.zero_grad()
            optimizer.synchronize()
            optimizer.zero_grad()

        self.both(rank)

    def train_gan(self, rank, ranks, wrap, freeze):
        """Trains two models against each other, as in a GAN; returns their
        weights."""
        generator, judge = torch.nn.Linear(3, 3), torch.nn.Linear(3, 1)
        optimizers = []
        for name, model in (("generator", generator), ("judge", judge)):
            with torch.no_grad():
                for p in model.parameters():
                    p.copy_(torch.arange(p.numel()).sin().view_as(p))
            sgd = torch.optim.SGD(model.parameters(), lr=0.1)
            optimizers.append(wrap(sgd, [(f"{name}.{n}", p) for n, p in
                                         model.named_parameters()]))
        for step in range(3):
            x, _ = batch(step, rank, ranks)
            optimizers[1].zero_grad()
            (judge(generator(x).detach()) - judge(x)).mean().backward()
            optimizers[1].step()
            optimizers[0].zero_grad()
            if freeze:
                judge.requires_grad_(False)
            judge(generator(x)).pow(2).mean().backward()
            judge.requires_grad_(True)
            optimizers[0].step()
        return weights(generator) + weights(judge)

    def test_two_optimizers_with_the_other_ones_parameters_frozen(self):
        results = self.both(
            lambda r: self.train_gan(r, 2, hvd.DistributedOptimizer, True))
        want = self.train_gan(0, 1, lambda optimizer, _: optimizer, True)
        for a, b, c in zip(*results, want):
            self.assertTrue(torch.equal(a, b))
            torch.testing.assert_close(a, c, rtol=1e-5, atol=1e-6)
        self.assertEqual(self.fake.pending(), 0)

    def test_the_other_optimizers_zero_grad_names_the_way_out(self):
        def rank(r):
            with self.assertRaisesRegex(
                    AssertionError, r"'DistributedOptimizer\.judge\..*"
                    r"requires_grad_\(False\).*requires_grad_\(True\)"):
                self.train_gan(r, 2, hvd.DistributedOptimizer, False)

        self.both(rank)

    def test_a_backward_too_many_names_the_way_out(self):
        def rank(r):
            p = torch.nn.Parameter(torch.ones(2))
            optimizer = hvd.DistributedOptimizer(torch.optim.SGD([p], lr=1.0),
                                                 [("p", p)])
            p.sum().backward()
            with self.assertRaisesRegex(AssertionError,
                                        r"requires_grad_\(False\)"):
                p.sum().backward()
            with self.assertRaisesRegex(AssertionError, "p' was changed"):
                optimizer.step()
            optimizer.zero_grad()
            p.sum().backward()
            optimizer.step()

        self.both(rank)

    def test_clipping_between_synchronize_and_step(self):
        def rank(r):
            model = make_model()
            optimizer = hvd.DistributedOptimizer(
                torch.optim.SGD(model.parameters(), lr=0.1),
                model.named_parameters())
            loss_of(model, *batch(0, r, 2)).backward()
            optimizer.synchronize()
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.01)
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                with optimizer.skip_synchronize():
                    optimizer.step()
            sent = len(self.fake.submitted)
            loss_of(model, *batch(0, r, 2)).backward()
            optimizer.synchronize()
            with self.assertWarnsRegex(
                    UserWarning, r"^optimizer\.step\(\) called without "
                    r"optimizer\.skip_synchronize\(\)"):
                optimizer.step()
            return norm.item(), sent

        a, b = self.both(rank)
        self.assertEqual(a[0], b[0])

    def test_skip_synchronize_needs_complete_passes(self):

        def rank(r):
            model = make_model()
            optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(),
                                                 backward_passes_per_step=2)
            errors = []
            for passes in (2, 1):  # complete passes are reduced at the first access
                optimizer.zero_grad()
                for i in range(passes):
                    loss_of(model, *batch(i, r, 2)).backward()
                try:
                    with optimizer.skip_synchronize():
                        optimizer.step()
                except ValueError as error:
                    errors.append(str(error))
            return errors, [w.tolist() for w in weights(model)]

        one, two = self.both(rank)
        self.assertEqual(one, two)
        self.assertEqual(len(one[0]), 1)
        self.assertRegex(one[0][0], "skip_synchronize.*fewer backward passes than backward_passes_per_step=2; call synchronize")

    def test_a_state_that_is_broadcast_or_loaded_before_step(self):

        def rank(r, op, load):
            model = make_model()
            optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
                                                 model.named_parameters(), op=op)
            for step in range(4):
                optimizer.zero_grad()
                loss_of(model, *batch(step, r, 2)).backward()
                if step == 2 and load:
                    optimizer.load_state_dict(optimizer.state_dict())
                elif step == 2:
                    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
                optimizer.step()
            return [w.tolist() for w in weights(model)]

        for op in (hvd.Average, hvd.Sum):
            for load in (False, True):
                with self.subTest(op=op, load=load):
                    one, two = self.both(lambda r: rank(r, op, load))
                    self.assertEqual(one, two)
                    self.assertEqual(one, self.both(lambda r: [w.tolist() for w in self.train(r, 2, steps=4, op=op)])[0])

    def test_gradients_that_were_pending_at_shutdown_are_dropped(self):

        def rank(r, barrier, zero):
            model = make_model()
            optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
            loss_of(model, *batch(0, r, 2)).backward()
            barrier.wait()
            if r == 0:  # the ranks are threads of one process
                hvd.shutdown()
                hvd.init()
            barrier.wait()
            for step in range(2):
                (optimizer if zero else model).zero_grad()
                loss_of(model, *batch(step, r, 2)).backward()
                optimizer.step()
            return [w.tolist() for w in weights(model)]

        for zero in (True, False):
            with self.subTest(zero=zero):
                barrier = threading.Barrier(2, timeout=20)
                one, two = self.both(lambda r: rank(r, barrier, zero))
                self.assertEqual(one, two)

    def test_powersgd_after_an_infinity(self):

        def rank(r):
            model = torch.nn.Linear(16, 16)
            compression = hvd.Compression.powersgd(2)
            optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.01), model.named_parameters(),
                                                 compression=compression)
            hvd.broadcast_parameters(model.state_dict(), root_rank=0)
            finite = []
            for step in range(8):
                optimizer.zero_grad()
                x = torch.ones(2, 16) + r
                if step in (2, 5) and r == 1:
                    x[0, 0] = float("inf")
                model(x).pow(2).mean().backward()
                optimizer.synchronize()
                finite.append(all(bool(p.grad.isfinite().all()) for p in model.parameters()))
                if finite[-1]:
                    with optimizer.skip_synchronize():
                        optimizer.step()
            return finite, [w.tolist() for w in weights(model)]

        one, two = self.both(rank)
        self.assertEqual(one, two)
        self.assertEqual(one[0], [step not in (2, 5) for step in range(8)])

    def test_closure(self):
        def rank(r):
            model = make_model()
            optimizer = hvd.DistributedOptimizer(
                torch.optim.SGD(model.parameters(), lr=0.1),
                model.named_parameters())

            def closure():
                optimizer.zero_grad()
                loss = loss_of(model, *batch(0, r, 2))
                loss.backward()
                return loss

            self.assertGreater(optimizer.step(closure).item(), 0)
            return weights(model)

        a, b = self.both(rank)
        for x, y in zip(a, b):
            self.assertTrue(torch.equal(x, y))

    @mock.patch.dict(os.environ, MAYPOLE_CHECK_START="0")  # of q
    def test_an_error_is_raised_once_and_the_optimizer_goes_on(self):
        def rank(r):
            p = torch.nn.Parameter(torch.ones(2))
            q = torch.nn.Parameter(torch.ones(2 + r))
            optimizer = hvd.DistributedOptimizer(
                torch.optim.SGD([p, q], lr=1.0), [("p", p), ("q", q)])
            (p.sum() + q.sum()).backward()
            with self.assertRaisesRegex(hvd.HorovodInternalError,
                                        "DistributedOptimizer.q: rank 0"):
                optimizer.step()
            optimizer.zero_grad()
            q.requires_grad_(False)
            p.sum().backward()
            optimizer.step()
            return p.tolist()

        self.assertEqual(self.both(rank), [[0.0, 0.0]] * 2)
        self.assertEqual(self.fake.pending(), 0)

    def test_schedulers_and_state(self):
        def rank(r):
            model = make_model()
            plain = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.9)
            early = torch.optim.lr_scheduler.StepLR(plain, 1, 0.5)
            optimizer = hvd.DistributedOptimizer(plain,
                                                 model.named_parameters())
            self.assertIsInstance(optimizer, torch.optim.SGD)
            self.assertEqual(type(optimizer).__name__, "SGD")
            late = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.1)
            loss_of(model, *batch(0, r, 2)).backward()
            optimizer.step()
            self.assertEqual(len(self.fake.completed), 4)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # plain.step() is not used
                early.step()
                late.step()
            self.assertAlmostEqual(optimizer.param_groups[0]["lr"], 0.05)
            state = optimizer.state_dict()
            optimizer.load_state_dict(state)
            loss_of(model, *batch(1, r, 2)).backward()
            optimizer.step()
            self.assertEqual(len(optimizer.state_dict()["state"]), 4)

        self.both(rank)
        self.assertEqual(len(self.fake.completed), 8)

    def test_parameters_added_and_unfrozen_later(self):
        def rank(r):
            a = torch.nn.Parameter(torch.zeros(1))
            b = torch.nn.Parameter(torch.zeros(1), requires_grad=False)
            c = torch.nn.Parameter(torch.zeros(1))
            optimizer = hvd.DistributedOptimizer(
                torch.optim.SGD([a, b], lr=1.0), [("a", a), ("b", b)])
            optimizer.add_param_group({"params": [c]})
            b.requires_grad_(True)
            for _ in range(2):
                optimizer.zero_grad()
                ((a + b + c) * (r + 1)).backward()
                optimizer.step()
            return a.item(), b.item(), c.item()

        self.assertEqual(self.both(rank), [(-3.0, -3.0, -3.0)] * 2)

    def test_a_replaced_optimizer_no_longer_reduces(self):
        def rank(r):
            model = make_model()
            for _ in range(2):
                optimizer = hvd.DistributedOptimizer(
                    torch.optim.SGD(model.parameters(), lr=0.1),
                    model.named_parameters())
                gc.collect()
            loss_of(model, *batch(0, r, 2)).backward()
            optimizer.step()

        self.both(rank)
        self.assertEqual(len(self.fake.completed), 4)

    def test_a_gradient_that_is_part_of_a_graph(self):
        def rank(_):
            p = torch.nn.Parameter(torch.ones(1))
            optimizer = hvd.DistributedOptimizer(
                torch.optim.SGD([p], lr=0.1), [("p", p)])
            with self.assertRaisesRegex(AssertionError, "create_graph"):
                (p * p).sum().backward(create_graph=True)
            self.assertIsInstance(optimizer, torch.optim.SGD)
            p.grad = None

        self.both(rank)

    def test_adasum_of_a_rank_that_is_alone_for_now(self):
        def made_by(size):
            self.use(size)
            return hvd.DistributedOptimizer(
                torch.optim.SGD(make_model().parameters(), lr=0.1),
                op=hvd.Adasum)

        with mock.patch.dict(os.environ, {"MAYPOLE_ELASTIC": "1"}):
            alone, of_two = made_by(1), made_by(2)
            self.assertEqual(type(alone).__mro__[1], type(of_two).__mro__[1])
            self.use(1)
            parameter = alone.param_groups[0]["params"][0]
            before = parameter.detach().clone()
            parameter.grad = torch.ones_like(parameter)
            alone.step()
            self.assertTrue(torch.allclose(parameter, before - 0.1))
            self.assertEqual(self.fake.completed, [])
        self.assertNotEqual(type(made_by(1)).__mro__[1], type(of_two).__mro__[1])

    def test_arguments(self):
        model = make_model()
        sgd = torch.optim.SGD(model.parameters(), lr=0.1)
        named = list(model.named_parameters())
        cases = (
            (ValueError, "op=Max", {"op": hvd.Max}),
            (ValueError, "powersgd", {
                "op": hvd.Adasum, "compression": hvd.Compression.powersgd(1)}),
            (ValueError, "powersgd", {
                "gradient_as_bucket_view": True,
                "compression": hvd.Compression.powersgd(1)}),
            (ValueError, "gradient_predivide_factor=2",
             {"op": hvd.Sum, "gradient_predivide_factor": 2.0}),
            (ValueError, "backward_passes_per_step=0",
             {"backward_passes_per_step": 0}),
            (ValueError, "groups", {"groups": "a"}),
            (ValueError, "twice", {"groups": [[named[0][1]], [named[0][1]]]}),
            (ValueError, "sequence of", {"named_parameters": [1, 2]}),
            (ValueError, "found twice: 0.bias",
             {"named_parameters": named + [named[1]]}),
            (ValueError, "group0.3", {"named_parameters": named[:3]}),
        )
        for error, text, options in cases:
            with self.assertRaisesRegex(error, text):
                hvd.DistributedOptimizer(sgd, **options)
        with self.assertWarns(DeprecationWarning):
            hvd.DistributedOptimizer(sgd, num_groups=1)


if __name__ == "__main__":
    unittest.main()
