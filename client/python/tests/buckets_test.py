"""DistributedOptimizer(gradient_as_bucket_view=True), with a fake library."""

import copy
import gc
import os
import unittest
import warnings
from unittest import mock

import torch

import fake_library
from maypole import _native

_native.use(fake_library.FakeLibrary(2))
import maypole.torch as hvd  # pylint: disable=wrong-import-position
from maypole.torch import arena  # pylint: disable=wrong-import-position
from maypole.torch._gradients import buckets as _buckets  # pylint: disable=wrong-import-position


def make_model():
    """Two layers with the same weights on every rank."""
    return fill(torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(),
                                    torch.nn.Linear(4, 1)))


def fill(model):
    # torch's generator would be shared by the ranks, which are threads.
    with torch.no_grad():
        for parameter in model.parameters():
            values = torch.arange(parameter.numel(), dtype=torch.float32)
            parameter.copy_((values.sin() / 2).view_as(parameter))
    return model


def loss_of(model, step, rank, ranks=2):
    x = (torch.arange(24.0).reshape(8, 3) + step).cos()
    y = x.sum(1, keepdim=True)
    share = slice(rank * 8 // ranks, (rank + 1) * 8 // ranks)
    return ((model(x[share]) - y[share])**2).mean()


def wrap(model, optimizer=None, **options):
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1,
                                             momentum=0.9)
    options.setdefault("gradient_as_bucket_view", True)
    return hvd.DistributedOptimizer(optimizer, model.named_parameters(),
                                    **options)


def train(rank, steps=4, model=None, zero=None, **options):
    model = model or make_model()
    optimizer = wrap(model, **options)
    for step in range(steps):
        (zero or (lambda m, o: o.zero_grad()))(model, optimizer)
        loss_of(model, step, rank).backward()
        optimizer.step()
    return [p.detach().clone() for p in model.parameters()]


def in_buckets(rank):
    """A model with its gradients in buckets, reduced once there, not stepped."""
    model = make_model()
    optimizer = wrap(model)
    for _ in range(2):
        optimizer.zero_grad()
        loss_of(model, 0, rank).backward()
        optimizer.synchronize()
    return model, optimizer


def replaced():
    return hvd.arena_statistics()["fallbacks"].get("gradient_replaced", 0)


class BucketsTest(unittest.TestCase):

    def setUp(self):
        gc.collect()
        arena._fallbacks.clear()
        self.use(2)
        self.addCleanup(warnings.resetwarnings)

    def use(self, size):
        self.fake = fake_library.FakeLibrary(size)
        _native.use(self.fake)

    def both(self, function):
        return fake_library.run_ranks(self.fake, function)

    def same_as_without(self, **options):
        """Trains with and without buckets; returns how many operations ran in
        the arena."""
        self.use(2)
        want = self.both(
            lambda rank: train(rank, gradient_as_bucket_view=False, **options))
        self.use(2)
        got = self.both(lambda rank: train(rank, **options))
        for rank in range(2):
            for a, b in zip(got[rank], want[rank]):
                self.assertTrue(torch.equal(a, b))
        return len(self.fake.arena_operations)

    def test_results_are_those_without_buckets(self):
        # Step 1 without, then a bucket per step.
        self.assertEqual(self.same_as_without(), 3)
        self.assertEqual(self.fake.completed[4:],
                         ["DistributedOptimizer.2.bias.bucket"] * 3)
        self.assertEqual(replaced(), 0)
        gc.collect()
        self.assertEqual(self.fake.counter("arena_bytes"), 0)

    def test_several_buckets(self):
        # Each gradient takes 64 bytes, because it is aligned.
        self.assertEqual(self.same_as_without(bucket_cap_mb=128 / 2**20), 6)
        self.assertEqual(
            set(self.fake.completed[4:]), {
                "DistributedOptimizer.2.bias.bucket",
                "DistributedOptimizer.0.bias.bucket"
            })
        self.assertEqual(self.same_as_without(bucket_cap_mb=1 / 2**20), 12)

    def test_options(self):
        for options, in_arena in (({"groups": 2}, 3), ({"op": hvd.Sum}, 3),
                                  ({"gradient_predivide_factor": 2.0}, 0)):
            self.assertEqual(self.same_as_without(**options), in_arena)
        self.use(2)
        results = self.both(lambda rank: train(
            rank, compression=hvd.Compression.fp16))
        self.assertEqual(len(self.fake.arena_operations), 3)
        self.use(2)
        want = self.both(lambda rank: train(
            rank, compression=hvd.Compression.fp16,
            gradient_as_bucket_view=False))
        for a, b in zip(results[0], want[0]):
            torch.testing.assert_close(a, b, rtol=0, atol=0)
        self.use(2)
        want = self.both(train)
        for a, b in zip(results[0], want[0]):
            torch.testing.assert_close(a, b, rtol=0.02, atol=0.01)
        for cap in (0, -1, float("nan")):
            with self.assertRaisesRegex(ValueError, "bucket_cap_mb"):
                wrap(make_model(), bucket_cap_mb=cap)

    def test_one_rank_has_no_buckets(self):
        self.use(1)
        train(0)
        self.assertEqual(self.fake.submitted, [])
        self.assertEqual(self.fake.arena, {})

    def test_zero_grad_of_the_optimizer_keeps_the_views(self):
        def rank(r):
            model = make_model()
            optimizer = wrap(model)
            addresses = None
            for step in range(3):
                loss_of(model, step, r).backward()
                optimizer.step()
                views = [p.grad for p in model.parameters()]
                new = [v.data_ptr() for v in views]
                self.assertEqual(new, addresses or new)
                addresses = new
                self.assertTrue(all(a % 64 == 0 for a in new))
                optimizer.zero_grad(set_to_none=step % 2 == 0)
                for p, view in zip(model.parameters(), views):
                    self.assertIs(p.grad, view)
                    self.assertEqual(view.count_nonzero().item(), 0)

        self.both(rank)
        self.assertEqual(replaced(), 0)

    def test_zero_grad_of_the_model_is_a_counted_fallback(self):
        with self.assertWarnsRegex(UserWarning, "zero_grad"):
            got = self.both(lambda rank: train(
                rank, zero=lambda m, o: m.zero_grad(set_to_none=True)))
        # 4 gradients, 3 steps, 2 ranks.
        self.assertEqual(replaced(), 24)
        self.assertEqual(len(self.fake.arena_operations), 3)
        self.use(2)
        for a, b in zip(got[0], self.both(train)[0]):
            self.assertTrue(torch.equal(a, b))

    def test_a_gradient_replaced_by_hand(self):
        def rank(r):
            model, optimizer = in_buckets(r)
            with optimizer.skip_synchronize():
                optimizer.step()
            weight = model[0].weight
            view = weight.grad
            weight.grad = torch.full_like(view, float(r))
            model[2].bias.grad.data = torch.full((1,), 4.0 * r)
            optimizer.synchronize()
            self.assertEqual(weight.grad.data_ptr(), view.data_ptr())
            return weight.grad[0, 0].item(), model[2].bias.grad.item()

        warnings.simplefilter("ignore")
        self.assertEqual(self.both(rank), [(0.5, 2.0)] * 2)
        self.assertEqual(replaced(), 4)

    def test_a_parameter_that_one_rank_does_not_use(self):
        def rank(r, views):
            a = torch.nn.Parameter(torch.ones(2))
            b = torch.nn.Parameter(torch.ones(2))
            optimizer = hvd.DistributedOptimizer(
                torch.optim.SGD([a, b], lr=1.0), [("a", a), ("b", b)],
                gradient_as_bucket_view=views)
            out = []
            for step in range(3):
                for p in (a, b):
                    p.grad = None  # an earlier value must not come back
                (a.sum() if r == 0 else b.sum() * 4).backward()
                optimizer.step()
                out += a.tolist() + b.tolist()
            return out

        want = self.both(lambda r: rank(r, False))
        self.use(2)
        warnings.simplefilter("ignore")
        got = self.both(lambda r: rank(r, True))
        self.assertEqual(got, want)
        self.assertEqual(got[0][-4:], [-0.5, -0.5, -5.0, -5.0])

    def test_clipping_on_one_rank_stays_there(self):
        def rank(r):
            model, optimizer = in_buckets(r)
            before = [p.grad.clone() for p in model.parameters()]
            hvd.barrier()
            if r == 0:
                torch.nn.utils.clip_grad_norm_(model.parameters(), 0.01)
            hvd.barrier()
            for p, grad in zip(model.parameters(), before):
                self.assertEqual(torch.equal(p.grad, grad), r == 1)
            with optimizer.skip_synchronize():
                optimizer.step()

        self.both(rank)

    def test_backward_passes_per_step(self):
        def rank(r, views):
            model = make_model()
            optimizer = wrap(model, backward_passes_per_step=2,
                             gradient_as_bucket_view=views)
            for step in range(3):
                optimizer.zero_grad()
                loss_of(model, step, r).backward()
                if step > 0 and views:
                    self.assertEqual(len(self.of_rank(r)), 3 + step)
                loss_of(model, step + 7, r).backward()
                optimizer.step()
            return [p.detach().clone() for p in model.parameters()]

        want = self.both(lambda r: rank(r, False))
        self.use(2)
        for a, b in zip(self.both(lambda r: rank(r, True))[0], want[0]):
            self.assertTrue(torch.equal(a, b))
        self.assertEqual(len(self.fake.arena_operations), 2)

    def of_rank(self, rank):
        return [name for who, name in self.fake.submitted if who == rank]

    def test_a_bucket_starts_within_backward(self):
        seen = [[], []]

        def rank(r):
            model = make_model()
            optimizer = wrap(model, bucket_cap_mb=128 / 2**20)
            model[0].weight.register_hook(
                lambda grad: seen[r].append(self.of_rank(r)[-1]))
            for step in range(2):
                optimizer.zero_grad()
                loss_of(model, step, r).backward()
                optimizer.step()

        self.both(rank)
        for names in seen:
            self.assertEqual(names[1], "DistributedOptimizer.2.bias.bucket")

    def test_sparse_gradients(self):
        def rank(r, views, sparse_as_dense):
            table = torch.nn.Embedding(4, 2, sparse=True)
            bias = torch.nn.Parameter(torch.zeros(2))
            with torch.no_grad():
                table.weight.zero_()
            optimizer = hvd.DistributedOptimizer(
                torch.optim.SGD([table.weight, bias], lr=1.0),
                [("table", table.weight), ("bias", bias)],
                sparse_as_dense=sparse_as_dense,
                gradient_as_bucket_view=views)
            for step in range(3):
                optimizer.zero_grad(set_to_none=True)
                (table(torch.tensor([r, 3, 3])) + bias).sum().backward()
                self.assertEqual(table.weight.grad.is_sparse,
                                 not (sparse_as_dense and views))
                optimizer.step()
            return table.weight[:, 0].tolist() + bias.tolist()

        for sparse_as_dense in (False, True):
            self.use(2)
            want = self.both(lambda r: rank(r, False, sparse_as_dense))
            self.use(2)
            got = self.both(lambda r: rank(r, True, sparse_as_dense))
            self.assertEqual(got, want)
            self.assertEqual(len(self.fake.arena_operations), 2)
        self.assertEqual(replaced(), 0)

    def test_a_sparse_gradient_where_a_dense_one_was(self):
        def rank(r):
            weight = torch.nn.Parameter(torch.zeros(4, 1))
            optimizer = hvd.DistributedOptimizer(
                torch.optim.SGD([weight], lr=1.0), [("w", weight)],
                sparse_as_dense=True, gradient_as_bucket_view=True)
            for _ in range(2):
                weight.grad = None
                torch.nn.functional.embedding(torch.tensor([r, 3]), weight,
                                              sparse=True).sum().backward()
                optimizer.step()
            return weight.flatten().tolist()

        warnings.simplefilter("ignore")
        self.assertEqual(self.both(rank), [[-1.0, -1.0, 0.0, -2.0]] * 2)
        self.assertEqual(replaced(), 2)

    def test_parameters_frozen_unfrozen_and_added(self):
        def rank(r, views):
            a, b, c, d = (torch.nn.Parameter(torch.ones(1)) for _ in range(4))
            b.requires_grad_(False)
            optimizer = hvd.DistributedOptimizer(
                torch.optim.SGD([a, b, d], lr=1.0, weight_decay=0.5),
                [("a", a), ("b", b), ("d", d)], gradient_as_bucket_view=views)
            out = []
            for step in range(8):
                if step == 2:
                    optimizer.add_param_group({"params": [c]})
                if step == 4:
                    b.requires_grad_(True)
                d.requires_grad_(not 2 <= step < 6)
                optimizer.zero_grad(set_to_none=True)
                ((a + b + c + d) * (r + 1)).backward()
                optimizer.step()
                out.append([p.item() for p in (a, b, c, d)])
            return out

        want = self.both(lambda r: rank(r, False))
        self.use(2)
        self.assertEqual(self.both(lambda r: rank(r, True)), want)
        self.assertIn("DistributedOptimizer.group1.0.bucket",
                      self.fake.arena_operations)
        self.assertIn("DistributedOptimizer.b.bucket",
                      self.fake.arena_operations)

    def test_a_shared_layer_and_two_optimizers(self):
        def rank(r, views):
            layer = fill(torch.nn.Linear(3, 3))
            other = fill(torch.nn.Linear(3, 1))
            first = hvd.DistributedOptimizer(
                torch.optim.SGD(layer.parameters(), lr=0.1),
                [("l." + n, p) for n, p in layer.named_parameters()],
                gradient_as_bucket_view=views)
            second = hvd.DistributedOptimizer(
                torch.optim.Adam(other.parameters()),
                [("o." + n, p) for n, p in other.named_parameters()],
                gradient_as_bucket_view=views)
            for step in range(3):
                first.zero_grad()
                second.zero_grad()
                x = torch.full((2, 3), 0.1 * (r + step))
                other(layer(layer(x))).sum().backward()
                first.step()
                second.step()
            return layer.weight.tolist() + other.weight.tolist()

        want = self.both(lambda r: rank(r, False))
        self.use(2)
        self.assertEqual(self.both(lambda r: rank(r, True)), want)
        self.assertEqual(len(self.fake.arena_operations), 4)

    def test_a_full_arena(self):
        self.fake.arena_limit = 0
        with self.assertWarnsRegex(UserWarning, "arena is full"):
            got = self.both(train)
        self.assertEqual(self.fake.arena_operations, [])
        self.assertEqual(hvd.arena_statistics()["fallbacks"]["arena_full"], 2)
        self.use(2)
        for a, b in zip(got[0], self.both(train)[0]):
            self.assertTrue(torch.equal(a, b))

    @mock.patch.dict(os.environ, MAYPOLE_CHECK_START="0")  # of q
    def test_an_error_drops_the_buckets_on_all_ranks(self):
        def rank(r):
            p = torch.nn.Parameter(torch.ones(2))
            q = torch.nn.Parameter(torch.ones(2 + r))
            optimizer = hvd.DistributedOptimizer(
                torch.optim.SGD([p, q], lr=1.0), [("p", p), ("q", q)],
                gradient_as_bucket_view=True)
            q.requires_grad_(False)
            for _ in range(2):
                optimizer.zero_grad()
                p.sum().backward()
                optimizer.step()
            q.requires_grad_(True)
            optimizer.zero_grad()
            (p.sum() + q.sum()).backward()
            with self.assertRaisesRegex(hvd.HorovodInternalError,
                                        "DistributedOptimizer.q: rank 0"):
                optimizer.step()
            q.requires_grad_(False)
            for _ in range(2):
                optimizer.zero_grad()
                p.sum().backward()
                optimizer.step()
            return p.tolist()

        self.assertEqual(self.both(rank), [[-3.0, -3.0]] * 2)
        # After the error comes a step without buckets, then steps with them.
        self.assertEqual(
            [n for n in self.fake.completed if "q" not in n],
            ["DistributedOptimizer.p", "DistributedOptimizer.p.bucket"] +
            ["DistributedOptimizer.p.bucket", "DistributedOptimizer.p"] +
            ["DistributedOptimizer.p.bucket"])

    def test_a_bucket_does_not_wait_for_what_was_frozen_later(self):
        bucket = "DistributedOptimizer.q.bucket"

        def rank(r):
            p, q = (torch.nn.Parameter(torch.zeros(2)) for _ in range(2))
            optimizer = hvd.DistributedOptimizer(
                torch.optim.SGD([p, q], lr=1.0), [("p", p), ("q", q)],
                gradient_as_bucket_view=True)
            for step in range(6):
                # Frozen before zero_grad(), or after it; and both train again.
                p.requires_grad_(step not in (2, 4))
                optimizer.zero_grad()
                if step == 3:
                    q.requires_grad_(False)
                before = self.of_rank(r).count(bucket)
                ((p + q).sum() * (r + 1)).backward()
                if step > 0:
                    self.assertEqual(self.of_rank(r).count(bucket), before + 1)
                optimizer.step()
                q.requires_grad_(True)
            return p.tolist(), q.tolist()

        self.assertEqual(self.both(rank), [([-6.0] * 2, [-7.5] * 2)] * 2)

    def test_another_epoch_has_other_buckets(self):
        parameter = torch.nn.Parameter(torch.ones(2))
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD([parameter], lr=1.0), [("p", parameter)],
            gradient_as_bucket_view=True)

        def step(_):
            if fake.rank() == 0:
                optimizer.zero_grad()
                parameter.sum().backward()
                optimizer.step()
                return
            # What a rank without a gradient asks and answers.
            def answer(question, row):
                hvd.allreduce_(torch.tensor(row), op=hvd.Max, name="DistributedOptimizer(p):" + question)

            is_not_compared = [-2**62] * 6 + [0]
            answer("start", [is_not_compared] * 2)  # the second row is for frozen weights outside of the optimizer
            answer("layouts", [[0, -2**62, -2**62, 0], [0, 0, 0, 0]])
            for count, name in enumerate(names):
                hvd.allreduce_(torch.ones(16 if "bucket" in name else 2), None,
                               name)
                answer("step", [count + 1, -count - 1, 0, 0, 1, 0, 0, 1, 0, -2**62, -2**62])
            answer("start", [is_not_compared])  # the second step is compared again

        single, bucket = "DistributedOptimizer.p", "DistributedOptimizer.p.bucket"
        fake = self.fake
        names = [single, bucket]
        self.both(lambda r: [step(r) for _ in range(2 if r == 0 else 1)])
        hvd.shutdown()
        hvd.init()
        self.both(lambda r: [step(r) for _ in range(2 if r == 0 else 1)])
        self.assertEqual(fake.completed, [single, bucket] * 2)

    def test_create_graph_is_refused(self):
        def rank(r):
            p = torch.nn.Parameter(torch.ones(2))
            optimizer = hvd.DistributedOptimizer(
                torch.optim.SGD([p], lr=0.1), [("p", p)],
                gradient_as_bucket_view=True)
            (p * p).sum().backward()
            optimizer.step()
            with self.assertRaisesRegex(AssertionError, "create_graph"):
                (p * p).sum().backward(create_graph=True)
            p.grad = None

        self.both(rank)

    def test_state_and_copies(self):
        def rank(r):
            model = make_model()
            optimizer = wrap(model)
            for step in range(2):
                optimizer.zero_grad()
                loss_of(model, step, r).backward()
                optimizer.step()
            self.assertEqual(sorted(optimizer.state_dict()),
                             ["param_groups", "state"])
            twin = copy.deepcopy(model)
            twin.load_state_dict(model.state_dict())
            plain = torch.optim.SGD(twin.parameters(), lr=0.1, momentum=0.9)
            plain.load_state_dict(optimizer.state_dict())
            optimizer.load_state_dict(plain.state_dict())
            loss_of(model, 2, r).backward()
            optimizer.step()

        self.both(rank)
        self.assertEqual(replaced(), 0)


class LayoutTest(unittest.TestCase):

    def test_buckets_by_dtype_from_the_last_aligned(self):
        shapes = ((3,), (16,), (17,), (5, 5), (1,))
        dtypes = (torch.float32, torch.float32, torch.float64, torch.float32,
                  torch.float64)
        parameters = [torch.empty(s, dtype=d) for s, d in zip(shapes, dtypes)]
        place = {p: i for i, p in enumerate(parameters)}
        got = [([place[p] for p in members], offsets, count)
               for members, offsets, count in _buckets._layout(parameters, 200)]
        # In elements; 16 float32 or 8 float64 are 64 bytes.
        self.assertEqual(got, [([4], [0], 8), ([3, 1], [0, 32], 48),
                               ([2], [0], 24), ([0], [0], 16)])

    def test_a_bucket_is_on_one_device(self):
        devices = ("cpu", "meta", "cpu", "meta")
        parameters = [torch.empty(16, device=device) for device in devices]
        got = [[p.device.type for p in members]
               for members, _, _ in _buckets._layout(parameters, 2**20)]
        self.assertEqual(got, [["meta"] * 2, ["cpu"] * 2])

    def test_a_bucket_of_another_device_is_there_and_not_in_the_arena(self):
        gc.collect()
        fake = fake_library.FakeLibrary(1)
        _native.use(fake)
        arena._fallbacks.clear()
        parameter = torch.nn.Parameter(torch.empty(10, device="meta"))
        parameter.grad = torch.empty(10, device="meta")
        buckets = _buckets.Buckets(2**20)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            buckets.add([parameter], {parameter: "p"})
            buckets.of(parameter).gather()
        self.assertEqual(buckets.of(parameter).buffer.device.type, "meta")
        self.assertEqual(parameter.grad.device.type, "meta")
        statistics = hvd.arena_statistics()
        self.assertEqual(statistics["fallbacks"], {"no_gpu_arena": 1})
        self.assertEqual((statistics["bytes"], fake.arena), (0, {}))


if __name__ == "__main__":
    unittest.main()
