"""Programs that read or change .grad between backward() and step(), as they may with one process."""

import copy
import pickle
import unittest
import warnings

import torch

import fake_library
from maypole import _native

_native.use(fake_library.FakeLibrary(2))
import maypole.torch as hvd  # pylint: disable=wrong-import-position

STEPS = 4


def make_model():
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(),
                                torch.nn.Linear(4, 1))
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.arange(p.numel()).sin().view_as(p) / 2)
    return model


def loss_of(model, step, rank, ranks):
    """Of this rank's share of 8 rows."""
    rows = torch.arange(24, dtype=torch.float32).reshape(8, 3)
    share = slice(rank * 8 // ranks, (rank + 1) * 8 // ranks)
    x = (rows + step).cos() * (rows % 5)
    return ((model(x) - x.sum(1, keepdim=True))[share]**2).mean()


def clip_norm(model, _):
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)


def clip_value(model, _):
    torch.nn.utils.clip_grad_value_(model.parameters(), 0.01)


def clip_data(model, _):
    for p in model.parameters():
        p.grad.data.clamp_(-0.01, 0.01)


def replace(model, _):
    for p in model.parameters():
        p.grad = p.grad.sign()


def skip_large(model, optimizer):
    if sum(p.grad.norm() for p in model.parameters()) > 3.0:
        optimizer.zero_grad()


def by_a_list(model, optimizer):
    gradients = [p.grad for group in optimizer.param_groups
                 for p in group["params"]]
    norm = sum(g.norm().item() for g in gradients)
    torch._foreach_mul_(gradients, 1 / (1 + norm))


class TwoSteps(torch.optim.SGD):
    """Reads the gradients before it calls the closure, as SAM does."""

    def step(self, closure=None):
        with torch.no_grad():
            moves = [p.grad * 0.5 for p in self.param_groups[0]["params"]]
            for p, move in zip(self.param_groups[0]["params"], moves):
                p.add_(move)
        self.zero_grad()
        with torch.enable_grad():
            closure()
        with torch.no_grad():
            for p, move in zip(self.param_groups[0]["params"], moves):
                p.sub_(move)
        super().step()


class AccessTest(fake_library.TwoRanks):

    def train(self, rank, ranks, between, wrap, only_on=(0, 1), passes=1):
        model = make_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        if ranks > 1:
            optimizer = wrap(optimizer, model)
        for step in range(STEPS):
            optimizer.zero_grad()
            for _ in range(passes):
                loss_of(model, step, rank, ranks).backward()
            if rank in only_on:
                between(model, optimizer)
            optimizer.step()
        return [p.tolist() for p in model.parameters()]

    def check(self, between, **options):
        passes = options.get("backward_passes_per_step", 1)

        def wrap(optimizer, model):
            return hvd.DistributedOptimizer(
                optimizer, model.named_parameters(), **options)

        with warnings.catch_warnings():
            warnings.simplefilter("error")
            one, two = self.both(
                lambda r: self.train(r, 2, between, wrap, passes=passes))
        self.assertEqual(one, two)
        want = self.train(0, 1, between, None, passes=passes)
        for a, b in zip(one, want):
            torch.testing.assert_close(torch.tensor(a), torch.tensor(b))

    def test_a_plain_tensor_can_be_pickled_before_step(self):

        def rank(r):
            w = torch.arange(3.0, requires_grad=True)
            optimizer = hvd.DistributedOptimizer(torch.optim.SGD([w], lr=0.1))
            (w * (r + 1)).sum().backward()
            copied = pickle.loads(pickle.dumps(w))
            optimizer.step()
            return type(copied) is torch.Tensor, copied.tolist(), w.tolist()

        self.assertEqual(self.both(rank), [(True, [0.0, 1.0, 2.0], (torch.arange(3.0) - 0.15).tolist())] * 2)

    def test_changes_are_made_to_the_result(self):
        for between in (clip_norm, clip_value, clip_data, replace, skip_large,
                        by_a_list):
            for options in ({}, {"gradient_as_bucket_view": True},
                            {"gradient_as_bucket_view": True,
                             "bucket_cap_mb": 0.00004},
                            {"backward_passes_per_step": 2}):
                with self.subTest((between.__name__, options)):
                    self.check(between, **options)

    def test_one_rank_looks_at_gradients(self):

        def look(model, _):
            seen.append([p.grad.tolist() for p in model.parameters()])

        def wrap(optimizer, model):
            return hvd.DistributedOptimizer(optimizer, model.named_parameters(),
                                            op=hvd.Sum)

        seen = []
        one, two = self.both(
            lambda r: self.train(r, 2, look, wrap, only_on=(0,)))
        self.assertEqual(one, two)
        self.assertEqual(len(seen), STEPS)

    def test_ranks_with_different_graphs(self):

        def rank(r):
            a, b = (torch.nn.Parameter(torch.ones(2)) for _ in range(2))
            optimizer = hvd.DistributedOptimizer(
                torch.optim.SGD([a, b], lr=1.0), [("a", a), ("b", b)])
            for _ in range(2):
                optimizer.zero_grad()
                (a if r == 0 else b).sum().backward()
                torch.nn.utils.clip_grad_norm_([a, b], 0.5)
                optimizer.step()
            return a.tolist(), b.tolist()

        one, two = self.both(rank)
        self.assertEqual(one, two)
        for value in one[0] + one[1]:  # four equal parts of a norm of 0.5
            self.assertAlmostEqual(value, 1 - 2 * 0.25, places=5)

    def test_the_last_step_of_an_epoch_has_fewer_passes(self):

        def rank(r, change):
            p = torch.nn.Parameter(torch.ones(2))
            optimizer = hvd.DistributedOptimizer(
                torch.optim.SGD([p], lr=1.0), [("p", p)],
                backward_passes_per_step=2)
            (p.sum() * (r + 1)).backward()
            self.assertEqual(p.grad.tolist(), [r + 1.0] * 2)  # not reduced yet
            if change:
                p.grad.data.clamp_(max=0.5)
                with self.assertRaisesRegex(AssertionError,
                                            "'DistributedOptimizer.p' was "
                                            "changed.*synchronize"):
                    optimizer.step()
                optimizer.zero_grad()
                (p.sum() * (r + 1)).backward()
                optimizer.synchronize()
                p.grad.data.clamp_(max=0.5)
                with optimizer.skip_synchronize():
                    optimizer.step()
            else:
                optimizer.step()
            return p.tolist()

        self.assertEqual(self.both(lambda r: rank(r, False)), [[-0.5] * 2] * 2)
        self.assertEqual(self.both(lambda r: rank(r, True)), [[0.5] * 2] * 2)

    def test_changes_through_a_tensor_that_was_the_gradient(self):

        def rank(r):
            p = torch.nn.Parameter(torch.ones(2))
            optimizer = hvd.DistributedOptimizer(
                torch.optim.SGD([p], lr=1.0), [("p", p)])
            p.sum().backward()
            gradient = p.grad
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)
            (p.sum() * (r + 1)).backward()
            gradient.mul_(2.0)
            with self.assertRaisesRegex(AssertionError, "was changed while"):
                optimizer.step()
            optimizer.zero_grad()
            (p.sum() * (r + 1)).backward()
            optimizer.step()
            return p.tolist()

        self.assertEqual(self.both(rank), [[-1.5] * 2] * 2)

    def test_gradients_that_the_program_writes_after_backward(self):

        def rank(r, op, buckets, look):
            a, b = (torch.nn.Parameter(torch.zeros(2)) for _ in range(2))
            optimizer = hvd.DistributedOptimizer(
                torch.optim.SGD([a, b], lr=1.0), [("a", a), ("b", b)], op=op,
                gradient_as_bucket_view=buckets)
            for _ in range(3):
                optimizer.zero_grad()
                (a.sum() * (r + 1)).backward()
                b.grad = torch.full_like(b, 2.0 * r + 1)
                if look:
                    torch.nn.utils.clip_grad_value_([a, b], 100.0)
                optimizer.step()
            return a.tolist(), b.tolist()

        for buckets in (False, True):
            for look in (False, True):
                with self.subTest((buckets, look)):
                    self.assertEqual(
                        self.both(lambda r: rank(r, hvd.Average, buckets, look)),
                        [([-4.5] * 2, [-6.0] * 2)] * 2)
                    self.assertEqual(
                        self.both(lambda r: rank(r, hvd.Sum, buckets, look)),
                        [([-9.0] * 2, [-12.0] * 2)] * 2)

    def test_a_gradient_that_is_replaced_while_it_is_reduced(self):

        def rank(r):
            p = torch.nn.Parameter(torch.zeros(2))
            optimizer = hvd.DistributedOptimizer(
                torch.optim.SGD([p], lr=1.0), [("p", p)])
            p.sum().backward()
            with self.assertRaisesRegex(AssertionError,
                                        "'DistributedOptimizer.p' was replaced"
                                        ".*synchronize"):
                p.grad = torch.full_like(p, r + 1.0)
            optimizer.step()
            for clear in (None, torch.zeros(2)):
                optimizer.zero_grad()
                p.sum().backward()
                p.grad = clear
                optimizer.step()
            return p.tolist()

        self.assertEqual(self.both(rank), [[-1.0] * 2] * 2)

    def test_two_backward_passes_with_a_look_between_them(self):

        def rank(r, op):
            a, b = (torch.nn.Parameter(torch.zeros(1)) for _ in range(2))
            optimizer = hvd.DistributedOptimizer(
                torch.optim.SGD([a, b], lr=1.0), [("a", a), ("b", b)], op=op)
            for _ in range(2):
                optimizer.zero_grad()
                (a * (r + 1)).backward()
                torch.nn.utils.clip_grad_value_([a], 1.0)
                (b * (r + 3)).backward()
                torch.nn.utils.clip_grad_value_([b], 2.0)
                optimizer.step()
            return a.item(), b.item()

        self.assertEqual(self.both(lambda r: rank(r, hvd.Average)),
                         [(-2.0, -4.0)] * 2)

    def test_a_second_sum_is_an_error(self):

        def rank(r):
            p = torch.nn.Parameter(torch.zeros(1))
            optimizer = hvd.DistributedOptimizer(
                torch.optim.SGD([p], lr=1.0), [("p", p)], op=hvd.Sum)
            p.backward()
            optimizer.synchronize()
            with self.assertRaisesRegex(AssertionError, "summed again"):
                p.backward()
            optimizer.zero_grad()
            p.backward()
            optimizer.synchronize()
            with self.assertRaisesRegex(ValueError, "skip_synchronize"):
                optimizer.step()
            with optimizer.skip_synchronize():
                optimizer.step()
            optimizer.zero_grad()
            p.backward()
            optimizer.step()
            return p.item()

        # Ranks are threads here, and filters of warnings are the process's.
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            self.assertEqual(self.both(rank), [-4.0] * 2)
        self.assertEqual(
            sum("are reduced a second time" in str(w.message) for w in caught), 2)

    def test_a_rank_without_a_gradient(self):

        def rank(r, between, first, idle, buckets, error):
            model = make_model()
            optimizer = hvd.DistributedOptimizer(
                torch.optim.SGD(model.parameters(), lr=0.1),
                model.named_parameters(), gradient_as_bucket_view=buckets)
            for step in range(STEPS):
                optimizer.zero_grad()
                if r == 0 or step != idle:
                    loss_of(model, step, r, 2).backward()
                if step >= first:
                    between(model, optimizer)
                if error and step == idle:
                    with self.assertRaisesRegex(
                            AssertionError, "'DistributedOptimizer.0.weight' was "
                            "changed.*synchronize"):
                        optimizer.step()
                else:
                    optimizer.step()
            return [p.tolist() for p in model.parameters()]

        def clamp(model, _):
            for p in model.parameters():
                if p.grad is not None:
                    p.grad.clamp_(-0.01, 0.01)

        def look(model, _):
            return [p.grad is None or p.grad.sum() for p in model.parameters()]

        for first, idle in ((0, 0), (0, 2), (2, 2), (1, 3)):
            for buckets in (False, True):
                for between, error in ((clip_norm, True), (clamp, True),
                                       (look, False)):
                    with self.subTest((first, idle, buckets, between.__name__)):
                        one, two = self.both(lambda r: rank(
                            r, between, first, idle, buckets, error))
                        self.assertEqual(one, two)

    def test_a_batch_that_is_skipped_after_backward_beside_a_rank_without_one(self):
        """The rank that had a gradient drops it. The other one must not take that
        for its next."""

        def drop_model(model, _):
            model.zero_grad()

        def drop_none(model, _):
            for p in model.parameters():
                p.grad = None

        def rank(r, drop):
            model = make_model()
            optimizer = hvd.DistributedOptimizer(
                torch.optim.SGD(model.parameters(), lr=0.1),
                model.named_parameters())
            loss_of(model, 0, r, 2).backward()
            optimizer.step()
            before = [p.tolist() for p in model.parameters()]
            optimizer.zero_grad()
            if r == 0:
                loss_of(model, 1, r, 2).backward()
                drop(model, optimizer)  # waits for the other's next step
            else:
                loss_of(model, 2, r, 2).backward()
            with self.assertRaisesRegex(AssertionError, "a rank has cleared the "
                                        "gradients of its parameters"):
                optimizer.step()
            self.assertEqual([p.tolist() for p in model.parameters()], before)

        for drop in (drop_model, drop_none):
            with self.subTest(drop.__name__):
                self.both(lambda r: rank(r, drop))

    def test_clipping_in_the_step_of_unfreezing(self):

        def rank(r, before, buckets):
            a, b = (torch.nn.Parameter(torch.zeros(2)) for _ in range(2))
            a.requires_grad_(False)
            b.requires_grad_(before)
            optimizer = hvd.DistributedOptimizer(
                torch.optim.SGD([a, b], lr=1.0), [("a", a), ("b", b)],
                gradient_as_bucket_view=buckets)
            for step in range(4):
                if step == 2:
                    a.requires_grad_(True)
                optimizer.zero_grad()
                if before or step >= 2:
                    ((a + b).sum() * (4 * r + 1)).backward()
                for p in (a, b):
                    if p.grad is not None:
                        p.grad.clamp_(-2.0, 2.0)
                optimizer.step()
            return a.tolist(), b.tolist()

        for before in (True, False):
            for buckets in (False, True):
                with self.subTest((before, buckets)):
                    self.assertEqual(
                        self.both(lambda r: rank(r, before, buckets)),
                        [([-4.0] * 2, [-8.0 * before] * 2)] * 2)

    def test_sums_that_are_cleared_without_the_optimizer(self):

        def clear(p, q):
            p.grad.zero_()
            q.grad = None

        def scale(p, q):
            p.grad.zero_()
            q.grad.mul_(0.5)

        def rank(r, buckets, synchronize, change, expected):
            p, q = (torch.nn.Parameter(torch.zeros(1)) for _ in range(2))
            optimizer = hvd.DistributedOptimizer(
                torch.optim.SGD([p, q], lr=1.0), [("p", p), ("q", q)],
                op=hvd.Sum, gradient_as_bucket_view=buckets)
            for _ in range(2):
                optimizer.zero_grad()
                (p * (r + 1) + q).backward()
                if synchronize:
                    optimizer.synchronize()
                change(p, q)
                if expected:
                    with self.assertRaisesRegex(AssertionError,
                                                f"{expected}.*summed again"):
                        (p + q).backward()
                    optimizer.abandon()
                    return None
                (p * (r + 2) + q).backward()
                optimizer.step()
            return p.item(), q.item()

        for buckets in (False, True):
            for synchronize in (False, True):
                with self.subTest((buckets, synchronize)):
                    self.assertEqual(
                        self.both(lambda r: rank(r, buckets, synchronize, clear,
                                                 "")), [(-10.0, -4.0)] * 2)
                    self.both(lambda r: rank(r, buckets, synchronize, scale,
                                             "'DistributedOptimizer.q'"))

    def test_an_optimizer_that_reads_gradients_before_the_closure(self):

        def train(rank, ranks):
            model = make_model()
            optimizer = TwoSteps(model.parameters(), lr=0.1)
            if ranks > 1:
                optimizer = hvd.DistributedOptimizer(
                    optimizer, model.named_parameters())
            for step in range(STEPS):
                loss_of(model, step, rank, ranks).backward()
                optimizer.step(
                    lambda: loss_of(model, step, rank, ranks).backward())
                optimizer.zero_grad()
            return [p.detach() for p in model.parameters()]

        results = self.both(lambda r: train(r, 2))
        for a, b, want in zip(*results, train(0, 1)):
            self.assertTrue(torch.equal(a, b))
            torch.testing.assert_close(a, want)

    def test_grad_scaler(self):
        amp = getattr(torch, "amp", None)
        if not hasattr(amp, "GradScaler"):
            self.skipTest("this torch has no GradScaler for CPUs")
        fused = "fused" in torch.optim.SGD.__init__.__code__.co_varnames

        def train(rank, ranks, how, **options):
            model = make_model()
            optimizer = torch.optim.SGD(
                model.parameters(), lr=0.1,
                **({"fused": True} if how == "fused" else {}))
            if ranks > 1:
                optimizer = hvd.DistributedOptimizer(
                    optimizer, model.named_parameters(), **options)
            scaler = amp.GradScaler("cpu", init_scale=2.0**8)
            for step in range(STEPS):
                optimizer.zero_grad()
                loss = loss_of(model, step, rank, ranks)
                if step == 1 and rank == ranks - 1:
                    loss = loss * float("inf")
                scaler.scale(loss).backward()
                if how == "clip":
                    scaler.unscale_(optimizer)
                    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
                scaler.step(optimizer)
                scaler.update()
            return [p.detach() for p in model.parameters()
                   ] + [torch.tensor(scaler.get_scale())]

        for how in ("usual", "clip") + (("fused",) if fused else ()):
            for options in ({}, {"gradient_as_bucket_view": True}):
                with self.subTest((how, options)):
                    results = self.both(lambda r: train(r, 2, how, **options))
                    want = train(0, 1, how)
                    self.assertEqual(want[-1].item(), 2.0**7)
                    for a, b, c in zip(*results, want):
                        self.assertTrue(torch.equal(a, b))
                        torch.testing.assert_close(a, c)

    def test_adasum_refuses_a_grad_scaler(self):
        _native.use(fake_library.FakeLibrary(2))
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(make_model().parameters(), lr=0.1), op=hvd.Adasum)
        with self.assertRaisesRegex(ValueError, "GradScaler"):
            getattr(optimizer, "_step_supports_amp_scaling", False)

    def test_a_model_that_is_copied_while_gradients_are_reduced(self):

        def rank(r):
            model = make_model()
            optimizer = hvd.DistributedOptimizer(
                torch.optim.SGD(model.parameters(), lr=0.1),
                model.named_parameters())
            loss_of(model, 0, r, 2).backward()
            for twin in (copy.deepcopy(model),
                         pickle.loads(pickle.dumps(model))):
                for p in twin.parameters():
                    self.assertIs(type(p), torch.nn.Parameter)
            self.assertIs(type(model.state_dict()["0.weight"]), torch.Tensor)
            optimizer.step()
            for p in model.parameters():
                self.assertIs(type(p), torch.nn.Parameter)

        self.both(rank)

    def test_hooks_of_the_program_find_the_result(self):
        if not hasattr(torch.Tensor, "register_post_accumulate_grad_hook"):
            self.skipTest("this torch has no such hooks")

        def rank(r, buckets):
            p = torch.nn.Parameter(torch.zeros(2))
            q = torch.nn.Parameter(torch.zeros(2))

            def clamp(p):
                p.grad.clamp_(max=1.0)

            early = p.register_post_accumulate_grad_hook(clamp)
            optimizer = hvd.DistributedOptimizer(
                torch.optim.SGD([p, q], lr=1.0), [("p", p), ("q", q)],
                gradient_as_bucket_view=buckets)
            for _ in range(2):
                optimizer.zero_grad()
                ((p + q).sum() * (2 - r)).backward()
                optimizer.step()
            early.remove()
            return p.tolist() + q.tolist()

        self.assertEqual(self.both(lambda r: rank(r, False)),
                         [[-2.0, -2.0, -3.0, -3.0]] * 2)


if __name__ == "__main__":
    unittest.main()
