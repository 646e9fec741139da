"""DistributedOptimizer where the ranks do not do the same: other orders, missing batches, other layouts."""

import threading
import unittest
import warnings
from unittest import mock

import torch
import torch.utils.checkpoint

import fake_library
from maypole import _native

_native.use(fake_library.FakeLibrary(2))
import maypole.torch as hvd  # pylint: disable=wrong-import-position
from maypole.torch._gradients import layouts as _layouts  # pylint: disable=wrong-import-position
from maypole.torch._gradients.learned import Learned  # pylint: disable=wrong-import-position

BATCHES = {
    "empty-first": [[3, 0], [2, 2], [1, 3]],
    "uneven": [[3, 2], [2, 3], [4, 1]],
    "none-ever": [[2, 0], [2, 0], [2, 0]],
    "empty-last": [[2, 2], [2, 0], [2, 2]],
}


def values(*models):
    return [p.tolist() for model in models for p in model.parameters()]


def filled(model, value=0.5):
    with torch.no_grad():
        for p in model.parameters():
            p.fill_(value)
    return model


class RanksTest(fake_library.TwoRanks):

    def test_batches_of_one_rank_only(self):

        def rank(r, batches, sparse, options):
            options = {key: value() if callable(value) else value
                       for key, value in options.items()}
            table = torch.nn.Embedding(5, 4, sparse=sparse)
            head = torch.nn.Linear(4, 3)
            named = [("table", table.weight)] + list(head.named_parameters())
            with torch.no_grad():
                for i, (_, p) in enumerate(named):
                    p.copy_((torch.arange(p.numel()) + i).cos().view_as(p))
            optimizer = hvd.DistributedOptimizer(
                torch.optim.SGD([p for _, p in named], lr=0.1), named, **options)
            for counts in batches:
                for b in range(counts[r]):
                    optimizer.zero_grad()
                    head(table(torch.tensor([b % 5, (b + r) % 5]))).sum(
                    ).backward()
                    optimizer.step()
                last = hvd.join()
                hvd.broadcast_parameters(named, root_rank=last)
            return values(table, head)

        powersgd = {"compression": lambda: hvd.Compression.powersgd(1)}
        for name, batches in BATCHES.items():
            for sparse, options in ((False, {}), (True, {}), (False, powersgd), (
                    False, {"gradient_as_bucket_view": True}), (
                        True, {"gradient_as_bucket_view": True})):
                with self.subTest((name, sparse, options)):
                    one, two = self.both(
                        lambda r: rank(r, batches, sparse, options))
                    self.assertEqual(one, two)

    def test_a_sparse_gradient_that_was_cleared_before_a_join(self):

        def rank(r):
            table = torch.nn.Embedding(5, 4, sparse=True)
            with torch.no_grad():
                table.weight.fill_(1.0)
            optimizer = hvd.DistributedOptimizer(
                torch.optim.SGD(table.parameters(), lr=0.1),
                table.named_parameters())
            for epoch, batches in enumerate(((0, 2), (2, 2))):
                for b in range(batches[r]):
                    optimizer.zero_grad(set_to_none=False)
                    if r == 0 or (epoch, b) != (1, 0):
                        table(torch.tensor([r, 2])).sum().backward()
                    optimizer.step()
                last = hvd.join()
                hvd.broadcast_parameters(table.state_dict(), root_rank=last)
            return values(table)

        one, two = self.both(rank)
        self.assertEqual(one, two)

    def test_sparse_adam_and_a_rank_without_a_gradient(self):

        def rank(r, as_dense):
            table = torch.nn.Embedding(5, 4, sparse=True)
            with torch.no_grad():
                table.weight.fill_(1.0)
            optimizer = hvd.DistributedOptimizer(
                torch.optim.SparseAdam(list(table.parameters()), lr=0.1),
                table.named_parameters(), sparse_as_dense=as_dense)
            # Of rank 0 alone; of none in the first step of an epoch; of both.
            for steps in (("-", "0", "-"), ("-", "01", "1"), ("-", "0", "-")):
                if r == 0 or steps[1] == "01":
                    for who in steps:
                        optimizer.zero_grad()
                        if str(r) in who:
                            table(torch.tensor([r, 2])).sum().backward()
                        optimizer.step()
                last = hvd.join()
                hvd.broadcast_parameters(table.state_dict(), root_rank=last)
                hvd.broadcast_optimizer_state(optimizer, root_rank=last)
            return values(table), optimizer.state_dict()["state"][0]["step"]

        for as_dense in (False, True):
            with self.subTest(as_dense):
                one, two = self.both(lambda r: rank(r, as_dense))
                self.assertEqual(one, two)

    def test_adasum_of_a_parameter_that_is_frozen_later(self):

        def rank(r):
            p, q = (torch.nn.Parameter(torch.ones(2)) for _ in range(2))
            optimizer = hvd.DistributedOptimizer(
                torch.optim.SGD([p, q], lr=0.1, momentum=0.9),
                [("p", p), ("q", q)], op=hvd.Adasum)
            for step in range(3):
                p.requires_grad_(step == 0)
                optimizer.zero_grad(set_to_none=False)
                ((p + q) * torch.tensor([1.0, r])).sum().backward()
                optimizer.step()
            return p.tolist(), q.tolist()

        one, two = self.both(rank)
        self.assertEqual(one, two)

    def test_after_a_join_buckets_stay_if_all_ranks_have_them(self):

        def rank(_):
            p = torch.nn.Parameter(torch.ones(4))
            optimizer = hvd.DistributedOptimizer(
                torch.optim.SGD([p], lr=0.1), [("p", p)],
                gradient_as_bucket_view=True)
            for epoch in range(3):
                for _ in range(2):
                    optimizer.zero_grad()
                    p.sum().backward()
                    optimizer.step()
                hvd.join()

        self.both(rank)
        names = [n for n in self.fake.completed if "known" not in n]
        self.assertEqual(names, ["DistributedOptimizer.p"] +
                         ["DistributedOptimizer.p.bucket"] * 5)

    def test_hooks_of_several_devices_after_a_join(self):
        """backward() has a thread for each device; here two threads call it."""
        original = Learned._all_know_the_same
        others = []

        def ask(learned, operation):
            if self.fake.rank() == 0:
                (q,) = (parameter for parameter, name in learned._optimizers_names.items() if name == "q")
                others.append(threading.Thread(
                    target=backward, args=(0, dict(self.fake.counts), q), daemon=True))
                others[0].start()
                others[0].join(0.5)
                # It waits until the ranks know whether they know the same.
                self.assertEqual(self.fake.submitted.count((0, "DistributedOptimizer.q")), 1)
            return original(learned, operation)

        def backward(r, counts, *parameters):
            self.fake.set_rank(r)
            self.fake.counts.update(counts)
            sum(p.sum() for p in parameters).backward()

        def rank(r):
            p, q = (torch.nn.Parameter(torch.zeros(2)) for _ in range(2))
            optimizer = hvd.DistributedOptimizer(
                torch.optim.SGD([p, q], lr=1.0), [("p", p), ("q", q)])
            for step in range(2):
                backward(r, {}, *([p, q] if r == 1 or step == 0 else [p]))
                for other in others if r == 0 else ():
                    other.join()
                optimizer.step()
                optimizer.zero_grad()
                hvd.join()
            return p.tolist(), q.tolist()

        with mock.patch.object(Learned, "_all_know_the_same", ask):
            self.assertEqual(self.both(rank), [([-2.0] * 2, [-2.0] * 2)] * 2)

    def test_parameters_in_another_order(self):

        def rank(r, view):
            named = {name: torch.nn.Parameter(torch.zeros(4)) for name in "abc"}
            optimizer = hvd.DistributedOptimizer(
                torch.optim.SGD([named[name] for name in ("abc", "bac")[r]], lr=1.0),
                named.items(), gradient_as_bucket_view=view)
            for _ in range(3):
                optimizer.zero_grad()
                (named["a"] + 10 * named["b"] + 100 * named["c"]).sum().backward()
                optimizer.step()
            return [p[0].item() for p in named.values()]

        for view in (False, True):
            with self.subTest(view=view):
                self.assertEqual(self.both(lambda r: rank(r, view)),
                                 [[-3.0, -30.0, -300.0]] * 2)

    def test_models_with_equal_names_in_another_order(self):

        def rank(r):
            models = [torch.nn.Linear(2, 1) for _ in range(2)]
            for i, model in enumerate(models):
                with torch.no_grad():
                    for p in model.parameters():
                        p.fill_(i)
            optimizers = [
                hvd.DistributedOptimizer(torch.optim.SGD(m.parameters(), lr=1.0),
                                         m.named_parameters()) for m in models
            ]
            for _ in range(2):
                for i in ((0, 1) if r == 0 else (1, 0)):
                    optimizers[i].zero_grad()
                    models[i](torch.ones(1, 2) * (10 * i + r)).sum().backward()
                for optimizer in optimizers:
                    optimizer.step()
            return values(*models)

        one, two = self.both(rank)
        self.assertEqual(one, two)
        self.assertEqual(one, [[[-1.0, -1.0]], [-2.0], [[-20.0, -20.0]], [-1.0]])

    def test_a_pass_left_over_before_a_join_is_dropped(self):
        """The other rank has completed its step, and would not take part in another one."""

        def rank(r):
            p = torch.nn.Parameter(torch.zeros(1))
            optimizer = hvd.DistributedOptimizer(torch.optim.SGD([p], lr=1.0, momentum=0.9), [("p", p)],
                                                 backward_passes_per_step=2)
            for i in range(3 if r == 0 else 4):
                (p * (i + r)).sum().backward()
                if i % 2:
                    optimizer.step()
                    optimizer.zero_grad()
            last = hvd.join()
            hvd.broadcast_parameters([("p", p)], last)
            hvd.broadcast_optimizer_state(optimizer, last)
            optimizer.zero_grad()
            for _ in range(2):
                (p * 1.0).sum().backward()
            optimizer.step()
            return p.item()

        one, two = self.both(rank)
        self.assertEqual(one, two)

    def test_optimizers_with_other_names_do_not_meet(self):
        """Their operations besides the gradients', which threads or ranks may start in another order, have other names."""

        def rank(r):
            made = []
            for name in "ab" if r == 0 else "ba":
                weights = [torch.nn.Parameter(torch.zeros(1)) for _ in range(2)]
                names = [(f"{name}.v", weights[0]), (f"{name}.w", weights[1])][::1 if r == 0 else -1]
                made.append(hvd.DistributedOptimizer(torch.optim.SGD([p for _, p in names], lr=1.0), names))
            return sorted(optimizer._maypole._operation("step") for optimizer in made)

        expected = ["DistributedOptimizer(a.v):step", "DistributedOptimizer(b.v):step"]
        self.assertEqual(list(self.both(rank)), [expected] * 2)

    def test_an_optimizer_that_replaces_another_has_its_name(self):

        def rank(r):
            model = filled(torch.nn.Linear(2, 1))
            kept = []
            for _ in range(r + 1):  # one rank makes one more
                kept.append(hvd.DistributedOptimizer(
                    torch.optim.SGD(model.parameters(), lr=1.0),
                    model.named_parameters()))
            model(torch.ones(1, 2)).sum().backward()
            kept[-1].step()

        self.both(rank)
        self.assertEqual(sorted(self.fake.completed),
                         ["DistributedOptimizer.bias",
                          "DistributedOptimizer.weight"])

    def train_convolution(self, rank, ranks, formats, options):
        model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 2),
                                    torch.nn.Conv2d(4, 2, 2, bias=False))
        with torch.no_grad():
            for p in model.parameters():
                p.copy_(torch.arange(p.numel()).sin().view_as(p) / 3)
        model = model.to(memory_format=formats[rank % len(formats)])
        fused = {"fused": True} if options.pop("fused", False) else {}
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9,
                                    **fused)
        if ranks > 1:
            optimizer = hvd.DistributedOptimizer(
                optimizer, model.named_parameters(), **options)
        x = torch.arange(4 * 3 * 5 * 5, dtype=torch.float32).sin().reshape(
            4, 3, 5, 5)
        x = x[rank * 4 // ranks:(rank + 1) * 4 // ranks].contiguous(
            memory_format=formats[rank % len(formats)])
        for _ in range(4):
            optimizer.zero_grad()
            model(x).pow(2).mean().backward()
            optimizer.step()
            if formats[0] is torch.channels_last and len(formats) == 1:
                self.assertEqual(model[0].weight.grad.stride(),
                                 model[0].weight.stride())
        return [p.detach() for p in model.parameters()]

    def test_channels_last(self):
        last, plain = torch.channels_last, torch.contiguous_format
        fused = "fused" in torch.optim.SGD.__init__.__code__.co_varnames
        for formats in ((last,), (plain,), (last, plain)):
            for options in ({}, {"gradient_as_bucket_view": True},
                            {"compression": hvd.Compression.bf16},
                            {"gradient_as_bucket_view": True, "fused": True}):
                if options.get("fused") and not fused:
                    continue
                with self.subTest((formats, options)):
                    results = self.both(lambda r: self.train_convolution(
                        r, 2, formats, dict(options)))
                    tolerance = (2e-2 if "compression" in options else 1e-5)
                    for a, b, want in zip(*results, self.train_convolution(
                            0, 1, (plain,), {})):
                        self.assertTrue(torch.equal(a, b))
                        torch.testing.assert_close(
                            a.contiguous(), want, rtol=tolerance, atol=tolerance)

    def test_channels_last_where_a_rank_has_no_gradient(self):

        def rank(r, idle, options):
            model = torch.nn.Conv2d(2, 3, 3).to(
                memory_format=torch.channels_last)
            with torch.no_grad():
                for p in model.parameters():
                    p.copy_(torch.arange(p.numel()).sin().view_as(p))
            optimizer = hvd.DistributedOptimizer(
                torch.optim.SGD(model.parameters(), lr=0.1),
                model.named_parameters(), **options)
            x = torch.arange(50, dtype=torch.float32).sin().reshape(
                1, 2, 5, 5).contiguous(memory_format=torch.channels_last)
            for step in range(3):
                optimizer.zero_grad()
                if r == 0 or step != idle:
                    model(x + r).pow(2).mean().backward()
                optimizer.step()
            return values(model)

        for idle in range(3):
            for options in ({}, {"gradient_as_bucket_view": True}):
                with self.subTest((idle, options)):
                    one, two = self.both(lambda r: rank(r, idle, options))
                    self.assertEqual(one, two)

    def test_gradients_of_another_dtype(self):
        if not hasattr(torch.Tensor, "grad_dtype"):
            self.skipTest("this torch has no grad_dtype")

        def rank(r, buckets):
            p = torch.nn.Parameter(torch.zeros(3, dtype=torch.bfloat16))
            q = torch.nn.Parameter(torch.zeros(3, dtype=torch.bfloat16))
            p.grad_dtype = torch.float32
            q.grad_dtype = torch.float32
            optimizer = hvd.DistributedOptimizer(
                torch.optim.SGD([p, q], lr=1.0), [("p", p), ("q", q)],
                gradient_as_bucket_view=buckets)
            for _ in range(3):
                optimizer.zero_grad()
                (p if r == 0 else p + q).sum().backward()
                optimizer.synchronize()
                self.assertEqual((p.grad.dtype, q.grad.dtype),
                                 (torch.float32,) * 2)
            return p.grad.tolist() + q.grad.tolist()

        for buckets in (False, True):
            self.assertEqual(self.both(lambda r: rank(r, buckets)),
                             [[1.0] * 3 + [0.5] * 3] * 2)

    def test_the_order_of_dimensions_as_a_number(self):
        for shape, order in (((2, 3, 4, 5), (0, 2, 3, 1)), ((7, 1, 2), (2, 0, 1)),
                             ((), ()), ((3,), (0,)), ((2, 2), (1, 0))):
            memory = torch.empty([shape[d] for d in order])
            tensor = memory.permute(sorted(range(len(shape)),
                                           key=order.__getitem__))
            found = _layouts.order_in_memory(tensor)
            self.assertEqual(tuple(tensor.shape), shape)
            self.assertTrue(tensor.permute(found).is_contiguous())
            number = _layouts._number_of(found)
            self.assertEqual(_layouts._order_of(number, len(shape)), found)
        self.assertIsNone(_layouts.order_in_memory(torch.ones(1, 2).expand(3, 2)))
        self.assertIsNone(_layouts.order_in_memory(torch.ones(4, 4)[:, :2]))


class ErrorsTest(unittest.TestCase):
    """One clear error each, after which the optimizer can be used."""

    def both(self, function):
        fake = fake_library.FakeLibrary(2)
        _native.use(fake)
        return fake_library.run_ranks(fake, function)

    def test_create_graph(self):

        def rank(r, buckets):
            p = torch.nn.Parameter(torch.ones(2))
            optimizer = hvd.DistributedOptimizer(
                torch.optim.SGD([p], lr=1.0), [("p", p)],
                gradient_as_bucket_view=buckets)
            for _ in range(2):
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # torch's, about a cycle
                    with self.assertRaisesRegex(AssertionError, "create_graph"):
                        (p * p).sum().backward(create_graph=True)
                p.grad = None
                optimizer.zero_grad()
                (p.sum() * (r + 1)).backward()
                optimizer.step()
            return p.tolist()

        for buckets in (False, True):
            self.assertEqual(self.both(lambda r: rank(r, buckets)),
                             [[-2.0, -2.0]] * 2)

    def test_reentrant_checkpoints_that_share_a_parameter(self):

        def rank(_):
            layer = torch.nn.Linear(2, 2)
            optimizer = hvd.DistributedOptimizer(
                torch.optim.SGD(layer.parameters(), lr=1.0),
                layer.named_parameters())
            x = torch.ones(1, 2, requires_grad=True)
            for _ in range(2):
                x = torch.utils.checkpoint.checkpoint(layer, x,
                                                      use_reentrant=True)
            with self.assertRaisesRegex(AssertionError, "use_reentrant=False"):
                x.sum().backward()
            optimizer.abandon()

        self.both(rank)

    def test_a_model_that_is_cast_later(self):

        def rank(r, buckets):
            model = filled(torch.nn.Linear(2, 1))
            optimizer = hvd.DistributedOptimizer(
                torch.optim.SGD(model.parameters(), lr=1.0),
                model.named_parameters(), gradient_as_bucket_view=buckets)

            def step():
                optimizer.zero_grad()
                model(torch.ones(1, 2, dtype=model.weight.dtype) * (r + 1)
                      ).sum().backward()
                optimizer.step()

            step()
            model.double()
            if buckets:
                with self.assertRaisesRegex(ValueError, "cast and move a model"):
                    step()
            else:
                step()
                hvd.broadcast_parameters(model.state_dict(), 0)
                step()
                return values(model)
            return None

        one, two = self.both(lambda r: rank(r, False))
        self.assertEqual(one, two)
        self.both(lambda r: rank(r, True))

    def test_a_parameter_that_is_not_an_ordinary_tensor(self):

        class Wrapper(torch.Tensor):
            """As DTensor and its like: it has no memory of its own."""

            @staticmethod
            def __new__(cls, inner):
                return torch.Tensor._make_wrapper_subclass(
                    cls, inner.shape, dtype=inner.dtype, requires_grad=True)

            def __init__(self, inner):
                self.inner = inner

            @classmethod
            def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
                raise NotImplementedError(str(func))

        _native.use(fake_library.FakeLibrary(2))
        wrapper = Wrapper(torch.ones(2))
        sgd = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
        sgd.param_groups[0]["params"].append(wrapper)
        with self.assertRaisesRegex(ValueError, "'group0.1' is a Wrapper"):
            hvd.DistributedOptimizer(sgd)
        self.assertIs(type(sgd), torch.optim.SGD)
        for collective in (hvd.allreduce, hvd.allgather, hvd.allreduce_):
            with self.assertRaisesRegex(ValueError, "'w'.*is a Wrapper"):
                collective(wrapper, name="w")


if __name__ == "__main__":
    unittest.main()
