"""What refers to an optimizer that becomes a DistributedOptimizer: schedulers, groups, copies, pickles."""

import copy
import io
import pickle
import unittest
import warnings

import torch

import fake_library
from maypole import _native

_native.use(fake_library.FakeLibrary(2))
import maypole.torch as hvd  # pylint: disable=wrong-import-position


def wrapped(model, lr=1.0, **options):
    return hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9),
        model.named_parameters(), **options)


def make_model(value=0.5):
    model = torch.nn.Linear(3, 1)
    with torch.no_grad():
        for p in model.parameters():
            p.fill_(value)
    return model


def step(model, optimizer, rank):
    optimizer.zero_grad()
    model(torch.ones(2, 3) * (rank + 1)).sum().backward()
    optimizer.step()


def values(model):
    return [p.tolist() for p in model.parameters()]


class IdentityTest(fake_library.TwoRanks):

    def test_a_scheduler_made_before_steers_all_ranks(self):

        def rank(r, how):
            model = make_model(r)
            plain = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.9)
            group = plain.param_groups[0]
            scheduler = torch.optim.lr_scheduler.StepLR(plain, 1, 0.5)
            optimizer = hvd.DistributedOptimizer(plain, model.named_parameters())
            hvd.broadcast_parameters(model.state_dict(), root_rank=0)
            if how == "broadcast":
                hvd.broadcast_optimizer_state(optimizer, root_rank=0)
            elif how == "load":
                optimizer.load_state_dict(optimizer.state_dict())
            elif how == "load-plain":
                plain.load_state_dict(plain.state_dict())
            elif how == "elastic":
                state = hvd.elastic.TorchState(model, optimizer)
                state.sync()
                state.restore()
            with warnings.catch_warnings():
                warnings.simplefilter("error")  # about the order of steps
                for _ in range(3):
                    step(model, optimizer, r)
                    scheduler.step()
            if how in ("broadcast", "elastic"):
                self.assertEqual(group["lr"], 0.125)
            return optimizer.param_groups[0]["lr"], values(model)

        for how in ("broadcast", "load", "load-plain", "elastic"):
            with self.subTest(how):
                one, two = self.both(lambda r: rank(r, how))
                self.assertEqual(one[0], 0.125)
                self.assertEqual(one, two)

    def test_a_tensor_as_learning_rate_stays_the_same_tensor(self):

        def rank(r):
            model = make_model()
            lr = torch.tensor(0.5 + r)
            optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
            optimizer.param_groups[0]["lr"] = lr
            hvd.broadcast_optimizer_state(
                hvd.DistributedOptimizer(optimizer, model.named_parameters()), 0)
            return lr.item(), optimizer.param_groups[0]["lr"] is lr

        self.assertEqual(self.both(rank), [(0.5, True)] * 2)

    def test_the_state_is_broadcast_into_the_tensors_that_are_there(self):

        def rank(r):
            model = make_model()
            optimizer = wrapped(model)
            step(model, optimizer, r)
            state = optimizer.state[model.weight]
            momentum = state["momentum_buffer"]
            momentum.mul_(r + 1)
            hvd.broadcast_optimizer_state(optimizer, 0)
            self.assertIs(optimizer.state[model.weight], state)
            self.assertIs(state["momentum_buffer"], momentum)
            return momentum.tolist()

        one, two = self.both(rank)
        self.assertEqual(one, two)
        self.assertEqual(one, [[3.0, 3.0, 3.0]])  # 2 rows of ones and of twos

    def test_parameters_added_through_the_name_of_the_original(self):

        def rank(r):
            a, b, c = (torch.nn.Parameter(torch.zeros(1)) for _ in range(3))
            plain = torch.optim.SGD([a], lr=1.0)
            optimizer = hvd.DistributedOptimizer(plain, [("a", a)])
            plain.add_param_group({"params": [b]})
            optimizer.param_groups[0]["params"].append(c)
            for _ in range(2):
                optimizer.zero_grad()
                ((a + b + c) * (r + 1)).backward()
                optimizer.step()
            # A parameter that another one replaces, as some programs do.
            new = torch.nn.Parameter(torch.zeros(2))
            optimizer.param_groups[0]["params"][0] = new
            optimizer.zero_grad()
            ((new.sum() + b + c) * (r + 1)).backward()
            optimizer.step()
            return a.item(), b.item(), c.item(), new.tolist()

        self.assertEqual(self.both(rank), [(-3.0, -4.5, -4.5, [-1.5, -1.5])] * 2)

    def test_a_group_that_is_removed(self):

        def rank(r, early, view):
            a, b = (torch.nn.Parameter(torch.zeros(1)) for _ in range(2))
            optimizer = hvd.DistributedOptimizer(
                torch.optim.SGD([{"params": [a]}, {"params": [b]}], lr=1.0),
                [("a", a), ("b", b)], op=hvd.Sum, gradient_as_bucket_view=view)
            gradients = []
            for i in range(5):
                if i == 2 and early:
                    del optimizer.param_groups[1]
                optimizer.zero_grad()
                ((a + b) * (r + 1)).backward()
                if i == 2 and not early:
                    del optimizer.param_groups[1]
                optimizer.step()
                gradients.append(a.grad.item())
            return gradients + [a.item()]

        for early in (True, False):
            for view in (True, False):
                with self.subTest(early=early, view=view):
                    self.assertEqual(self.both(lambda r: rank(r, early, view)),
                                     [[3.0] * 5 + [-15.0]] * 2)

    def test_a_group_that_is_removed_while_its_gradients_are_reduced(self):

        def rank(r):
            p, q, s = (torch.nn.Parameter(torch.zeros(2)) for _ in range(3))
            optimizer = hvd.DistributedOptimizer(
                torch.optim.SGD([{"params": [p]}, {"params": [q]}], lr=1.0),
                [("p", p), ("q", q)])
            (p.sum() * (r + 1)).backward()
            del optimizer.param_groups[0]
            optimizer.add_param_group({"params": [s]})
            with self.assertRaisesRegex(AssertionError,
                                        "'a parameter that the optimizer had'"):
                optimizer.zero_grad()
            ((q + s).sum() * (r + 1)).backward()
            with self.assertRaisesRegex(AssertionError,
                                        "'DistributedOptimizer.q'"):
                optimizer.zero_grad()
            optimizer.step()
            return p.tolist(), q.tolist(), s.tolist()

        fake = fake_library.FakeLibrary(2)
        _native.use(fake)
        self.assertEqual(fake_library.run_ranks(fake, rank),
                         [([0.0] * 2, [-1.5] * 2, [-1.5] * 2)] * 2)

    def test_an_optimizer_is_wrapped_once(self):
        _native.use(fake_library.FakeLibrary(2))
        model = make_model()
        optimizer = wrapped(model)
        with self.assertRaisesRegex(ValueError, "is one already"):
            hvd.DistributedOptimizer(optimizer)
        plain = torch.optim.SGD(model.parameters(), lr=1.0)
        plain.step = lambda: None
        with self.assertRaisesRegex(ValueError, "step.. of this optimizer was"):
            hvd.DistributedOptimizer(plain)
        self.assertIs(type(plain), torch.optim.SGD)

    def test_a_second_optimizer_of_the_same_parameters_takes_over(self):

        def rank(r):
            model = make_model()
            first = wrapped(model)
            step(model, first, r)
            second = wrapped(model)  # the first one is not garbage
            step(model, second, r)
            with self.assertRaisesRegex(ValueError, "belong to another one"):
                step(model, first, r)
            second.step()
            return values(model)

        one, two = self.both(rank)
        self.assertEqual(one, two)

    def test_copies_and_pickles_reduce_gradients(self):

        def by_pickle(things):
            return pickle.loads(pickle.dumps(things))

        def by_torch(things):
            file = io.BytesIO()
            torch.save(things, file)
            file.seek(0)
            if "weights_only" in torch.load.__code__.co_varnames:
                return torch.load(file, weights_only=False)
            return torch.load(file)

        def rank(r, copied, options):
            model = make_model()
            optimizer = wrapped(model, **options)
            scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1.0,
                                                            total_steps=9)
            step(model, optimizer, r)
            scheduler.step()
            pickle.loads(pickle.dumps(scheduler.state_dict()))
            if r == 0:  # one rank makes a copy that is not used
                copied([model, optimizer])
            twin, other = copied([model, optimizer])
            self.assertIs(type(other).__bases__[1], torch.optim.SGD)
            for _ in range(2):
                step(twin, other, r)
                step(model, optimizer, r)
            self.assertEqual(values(twin), values(model))
            return values(model)

        for copied in (copy.deepcopy, by_pickle, by_torch):
            for options in ({}, {"gradient_as_bucket_view": True},
                            {"op": hvd.Adasum}):
                with self.subTest((copied.__name__, options)):
                    one, two = self.both(lambda r: rank(r, copied, options))
                    self.assertEqual(one, two)

    def test_gradients_of_a_copy_that_are_clipped_before_its_first_use(self):

        def by_hand(model, _):
            for p in model.parameters():
                if p.grad is not None:
                    p.grad.zero_()

        def rank(r, copied, options, clear):
            model = make_model()
            parts = model, wrapped(model, **options)
            step(*parts, r)
            if r == 0:  # one rank computes with a copy that it does not use
                copied(parts)[0](torch.ones(1, 3)).sum().backward()
            model, optimizer = copied(parts)
            for _ in range(3):
                clear(model, optimizer)
                (model(torch.ones(1, 3)).sum() * (10 * r + 1)).backward()
                torch.nn.utils.clip_grad_value_(model.parameters(), 2.0)
                optimizer.step()
            return values(model)

        for copied in (copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))):
            for options in ({}, {"gradient_as_bucket_view": True}):
                with self.subTest(options):
                    one, two = self.both(
                        lambda r: rank(r, copied, options, by_hand))
                    self.assertEqual(one, two)
                    used_at_once = self.both(lambda r: rank(
                        r, copied, options, lambda _, o: o.zero_grad()))
                    self.assertEqual([one, two], used_at_once)

    def test_a_copy_that_one_rank_only_loads(self):

        def rank(r):
            model = make_model()
            parts = model, wrapped(model)
            step(*parts, r)
            twin, other = copy.deepcopy(parts)
            if r == 0:  # the other one has no batch
                step(twin, other, r)
            hvd.join()
            hvd.broadcast_optimizer_state(other, 0)
            model = make_model()
            optimizer = wrapped(model)
            step(model, optimizer, r)
            return values(model)

        one, two = self.both(rank)
        self.assertEqual(one, two)

    def test_a_pickle_outside_of_a_job(self):
        _native.use(fake_library.FakeLibrary(2))
        model = make_model()
        data = pickle.dumps([model, wrapped(model)])
        hvd.shutdown()
        twin, other = pickle.loads(data)
        step(twin, other, 0)
        self.assertEqual(values(twin), [[[-1.5, -1.5, -1.5]], [-1.5]])

    def test_a_process_set_is_found_again(self):

        def rank(r):
            ours = hvd.add_process_set([1])
            if r == 0:
                return True
            model = make_model()
            optimizer = wrapped(model, process_set=ours)
            twin = copy.deepcopy(optimizer)
            again = pickle.loads(pickle.dumps(optimizer))
            found = again._maypole_options.process_set
            return (twin._maypole_options.process_set is ours
                    and found.process_set_id == ours.process_set_id)

        self.assertEqual(self.both(rank), [True, True])


if __name__ == "__main__":
    unittest.main()
