"""Ranks that begin, or go on, with different weights, settings or states: an error on each, before a wrong step."""

import copy
import os
import threading
import unittest
from unittest import mock

import numpy
import torch

import fake_library
from maypole import _native

_native.use(fake_library.FakeLibrary(2))
import maypole.torch as hvd  # pylint: disable=wrong-import-position
from maypole.torch._gradients import equal_start as _equal_start  # pylint: disable=wrong-import-position


def make(kind=torch.optim.SGD, value=0.5, lr=0.1, **options):
    """(model, its optimizer)"""
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Linear(2, 1))
    with torch.no_grad():
        for p in model.parameters():
            p.fill_(value)
    return model, kind(model.parameters(), lr=lr, **options)


def wrapped(model, optimizer, **options):
    return hvd.DistributedOptimizer(optimizer, model.named_parameters(), **options)


def step(model, optimizer):
    optimizer.zero_grad()
    model(torch.ones(2, 3)).sum().backward()
    optimizer.step()


class EqualStartTest(fake_library.TwoRanks):

    def errors(self, change, *more, **options):
        """The texts of both ranks after change(rank, model, optimizer)."""

        def rank(r):
            model, optimizer = make(*more)
            optimizer = wrapped(model, optimizer, **options)
            change(r, model, optimizer)
            before = [p.tolist() for p in model.parameters()]
            try:
                step(model, optimizer)
            except ValueError as error:
                self.assertEqual([p.tolist() for p in model.parameters()], before)
                hvd.broadcast_parameters(model.state_dict(), root_rank=0)
                hvd.broadcast_optimizer_state(optimizer, root_rank=0)
                step(model, optimizer)
                return str(error)
            return None

        one, two = self.both(rank)
        self.assertEqual(one, two)
        return one

    def test_weights(self):

        def change(r, model, _):
            if r == 1:
                with torch.no_grad():
                    model[1].weight[0, 1] += 1e-7

        for options in ({}, {"op": hvd.Adasum}, {"gradient_as_bucket_view": True}):
            with self.subTest(options):
                self.assertRegex(self.errors(change, **options), r"different weights of parameter '(\w+\.)?1.weight'.*"
                                 r"rank 0 and .* on rank 1.*broadcast_parameters")

    def test_frozen_weights_that_the_optimizer_does_not_have(self):

        def rank(r, frozen, **options):
            model, _ = make()
            model[0].requires_grad_(not frozen)
            with torch.no_grad():
                model[0].weight += r
            optimizer = torch.optim.SGD([p for p in model[1].parameters() if p.requires_grad], lr=0.1)
            optimizer = wrapped(model, optimizer, **options)
            try:
                step(model, optimizer)
            except ValueError as error:
                hvd.broadcast_parameters(model.state_dict(), root_rank=0)
                step(model, optimizer)
                return str(error)
            return None

        for options in ({}, {"op": hvd.Adasum}, {"gradient_as_bucket_view": True}):
            with self.subTest(options):
                one, two = self.both(lambda r: rank(r, True, **options))  # pylint: disable=cell-var-from-loop
                self.assertEqual(one, two)
                self.assertRegex(one, r"begin with different weights: the frozen '0.weight' is \w+ on rank 0 and \w+ on rank 1.*"
                                      "broadcast_parameters")
                # What a program trains itself may differ.
                self.assertEqual(self.both(lambda r: rank(r, False, **options)), [None, None])  # pylint: disable=cell-var-from-loop
        self.assertEqual(self.both(lambda r: rank(r, r == 1)), [None, None])

    def test_a_copy_does_not_take_the_frozen_model_along(self):
        model, _ = make()
        model[0].requires_grad_(False)
        optimizer = wrapped(model, torch.optim.SGD(model[1].parameters(), lr=0.1))
        self.assertEqual(len(optimizer._maypole_options.others), 2)
        self.assertEqual(copy.deepcopy(optimizer)._maypole_options.others, {})

    def test_settings(self):

        def change(r, _, optimizer):
            optimizer.param_groups[0]["lr"] = 0.1 * (r + 1)

        adam = torch.optim.Adam
        self.assertRegex(self.errors(change, adam), r"different settings .*'.*0.bias': lr is 0.1 on rank 0 and 0.2 on rank 1.*"
                         "broadcast_optimizer_state.*MAYPOLE_CHECK_START=0")
        with mock.patch.dict(os.environ, MAYPOLE_CHECK_START="0"):
            self.assertIsNone(self.errors(change, adam))

    def test_settings_that_are_numbers_of_numpy(self):

        def change(r, _, optimizer):
            optimizer.param_groups[0]["lr"] = numbers[r]

        for numbers in (numpy.float32([0.5, 0.25]), [numpy.array(0.5), numpy.array(0.25)], [0.5, numpy.float32(0.25)]):
            self.assertRegex(self.errors(change), r"different settings .*lr is .+ on rank 0 and .+ on rank 1")
        for numbers in ([0.5, numpy.float32(0.5)], [numpy.array(0.5, dtype=numpy.float32), 0.5]):
            self.assertIsNone(self.errors(change))

    def test_weights_that_forward_changes(self):

        def rank(r, equally):
            model = torch.nn.Sequential(torch.nn.Embedding(8, 4, max_norm=1.0), torch.nn.Linear(4, 1))
            with torch.no_grad():
                for p in model.parameters():
                    p.fill_(0.25)
            optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0), model.named_parameters())
            rows = torch.arange(8) if equally else torch.arange(4) + 4 * r
            for i in range(9):
                optimizer.zero_grad()
                (-model(rows)).sum().backward()
                try:
                    optimizer.step()
                except ValueError as error:
                    return i, str(error)
            return None

        one, two = self.both(lambda r: rank(r, equally=False))
        self.assertEqual(one, two)
        self.assertLess(one[0], 9)
        self.assertRegex(one[1], "ranks have different weights of parameter '.*0.weight'.*max_norm")
        self.assertEqual(self.both(lambda r: rank(r, equally=True)), [None, None])

    def test_weights_that_forward_changes_on_ranks_with_another_past(self):
        barrier = threading.Barrier(2, timeout=20)

        def rank(r):
            model = torch.nn.Sequential(torch.nn.Embedding(8, 4, max_norm=1.0), torch.nn.Linear(4, 1))
            with torch.no_grad():
                for p in model.parameters():
                    p.fill_(0.25)
            optimizer = wrapped(model, torch.optim.SGD(model.parameters(), lr=0.1))
            for steps in (3, 6):
                for _ in range(steps):
                    optimizer.zero_grad()
                    (-model(torch.arange(8))).sum().backward()
                    optimizer.step()
                barrier.wait()
                if r == 0 and steps == 3:  # the next membership epoch, in which rank 1 is new
                    hvd.shutdown()
                    hvd.init()
                barrier.wait()
                if r == 1:
                    optimizer = wrapped(model, torch.optim.SGD(model.parameters(), lr=0.1))
            return [p.tolist() for p in model.parameters()]

        one, two = self.both(rank)
        self.assertEqual(one, two)

    def later(self, change, steps=20, kind=torch.optim.SGD, make_options=None, **options):
        """(the step, from 1, in which both ranks raise an error after change(rank, model, optimizer, step), its text)"""

        def rank(r):
            model, optimizer = make(kind, **make_options or {"momentum": 0.9})
            optimizer = wrapped(model, optimizer, **options)
            for i in range(1, steps + 1):
                change(r, model, optimizer, i)
                before = [p.tolist() for p in model.parameters()]
                try:
                    step(model, optimizer)
                except ValueError as error:
                    self.assertTrue(r == 1 or before == [p.tolist() for p in model.parameters()])
                    return i, str(error)
            return None

        one, two = self.both(rank)
        self.assertEqual(one, two)
        return one

    def test_settings_that_become_different(self):
        """As by ReduceLROnPlateau with each rank's own loss, or a scheduler that only one rank has loaded."""

        def change(r, _, optimizer, i):
            optimizer.param_groups[0]["lr"] = 0.1 / i  # a schedule
            if r == 1 and i >= 7:
                optimizer.param_groups[0][key] = value

        values = (("lr", 0.5), ("momentum", 0.5), ("nesterov", True), ("lr", numpy.float32(0.5)), ("lr", torch.tensor(0.5)),
                  ("note", [1]))
        for options in ({}, {"gradient_as_bucket_view": True}):
            for key, value in values:
                with self.subTest((key, value, options)):
                    found = self.later(change, **options)
                    self.assertEqual(found[0], 7)
                    self.assertRegex(found[1], f"the ranks have different settings of parameter '.*0.bias': {key} is .* on rank 0 "
                                     "and .* on rank 1, and were equal in an earlier step: a learning rate scheduler differs")
                    self.assertNotIn("changed weights", found[1])
        key, value = "lr", 0.5
        self.assertEqual(self.later(change, op=hvd.Adasum)[0], 8)
        with mock.patch.dict(os.environ, MAYPOLE_CHECK_START="0"):
            self.assertIsNone(self.later(change))

    def test_settings_of_groups_in_another_order(self):

        def rank(r):
            model, _ = make()
            groups = [{"params": list(model[i].parameters()), "lr": 0.1 * (i + 1)} for i in (0, 1)]
            optimizer = wrapped(model, torch.optim.SGD(groups[::-1 if r else 1], lr=1.0))
            compared = []
            with mock.patch.object(optimizer._maypole._start_check, "check_step",
                                   lambda *arguments: compared.append(arguments[-1])):
                for i in range(3):
                    for group in optimizer.param_groups:
                        group["lr"] *= 0.5
                    step(model, optimizer)
            return compared

        self.assertEqual(self.both(rank), [[False] * 3] * 2)

    def test_the_number_of_an_optimizers_settings(self):
        a, b = torch.nn.Parameter(torch.ones(1)), torch.nn.Parameter(torch.ones(1))
        optimizer = torch.optim.Adam([{"params": [a]}, {"params": [b], "lr": 0.5}])
        names = {a: "a", b: "b"}

        def digest():
            new = _equal_start._Settings().digest(optimizer, names)
            self.assertEqual(known.digest(optimizer, names), new)
            return new

        known = _equal_start._Settings()
        first, found = digest(), set()
        one, two = optimizer.param_groups
        for group, key, value in ((one, "lr", 0.5), (two, "lr", 1), (two, "lr", 1.0), (two, "lr", torch.tensor(1.0)), (one, "betas", (0.9, 0.99)),
                                  (one, "betas", [0.9, 0.99]), (one, "amsgrad", True), (two, "name", "b")):
            before = group.get(key)
            group[key] = value
            found.add(digest())
            group[key] = before
            self.assertEqual(digest(), first)
        self.assertEqual(len(found - {first}), 7)  # lists and tuples are the same
        one["lr"], two["lr"] = two["lr"], one["lr"]
        self.assertNotEqual(digest(), first)

    def test_a_state_that_one_rank_loads(self):

        def change(r, _, optimizer, i):
            if i == 5:
                states[r] = copy.deepcopy(optimizer.state_dict())
            if r == 1 and i == 11:
                optimizer.load_state_dict(states[r])

        states = {}
        found = self.later(change)
        self.assertEqual(found[0], 11)
        self.assertRegex(found[1], "different state of parameter '.*0.bias': momentum_buffer is .*broadcast_optimizer_state")

    def test_weights_that_torch_does_not_see_change(self):
        """Through .data, or by an optimizer that draws random numbers."""

        def change(r, model, _, i):
            if r == 1 and i == 6:
                model[1].weight.data.mul_(1.5)

        for options in ({}, {"op": hvd.Adasum}, {"gradient_as_bucket_view": True}):
            found = self.later(change, **options)
            self.assertEqual(found[0], 8)
            self.assertRegex(found[1], "the ranks have different weights of parameter '(.*\\.)?1.weight'.*GradScaler")

    def test_when_equal_ranks_are_compared(self):
        compare, compared = _equal_start.EqualStart._compared, []

        def count(*arguments, **options):
            compared.append(steps[0])
            return compare(*arguments, **options)

        def change(r, _, optimizer, i):
            if r == 0:
                steps[0] = i

        steps = [0]
        with mock.patch.object(_equal_start.EqualStart, "_compared", count):
            self.assertIsNone(self.later(change))
        self.assertEqual(sorted(set(compared)), [1, 2, 4, 8, 16])
        self.assertEqual(len(compared), 10)

    def test_equal_values_in_another_order(self):

        def change(r, model, _):
            with torch.no_grad():
                weight = model[0].weight
                weight.copy_(torch.arange(6.0).reshape(2, 3))
                if r == 1:
                    weight.copy_(moved(weight))

        for moved in (lambda w: w.flip(0), lambda w: w.roll(1), torch.neg):
            self.assertRegex(self.errors(change), r"different weights of parameter '.*0.weight'")

    def test_state(self):

        def change(r, model, optimizer):
            if r == 0:
                state = optimizer.state_dict()
                shape = model[0].weight.shape
                state["state"] = {0: {"step": torch.tensor(3.0), "exp_avg": torch.ones(shape),
                                      "exp_avg_sq": torch.ones(shape)}}
                optimizer.load_state_dict(state)

        self.assertRegex(self.errors(change, torch.optim.Adam),
                         r"different state of parameter '.*0.weight': exp_avg is \w+ on rank 0 and missing on rank 1")

    def test_ranks_that_go_on_after_the_error(self):

        def rank(r):
            model, optimizer = make(value=float(r))
            optimizer = wrapped(model, optimizer)
            found = []
            for i in range(2):
                optimizer.zero_grad()
                if r == 0 or i > 0:  # rank 1 first learns of the error in step(), rank 0 while it clips
                    model(torch.ones(1, 3)).sum().backward()
                try:
                    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                    optimizer.step()
                    found.append(None)
                except ValueError as error:
                    found.append("different weights" in str(error))
                    with torch.no_grad():
                        for p in model.parameters():
                            p.fill_(0.5)
            return found

        self.assertEqual(self.both(rank), [[True, None]] * 2)

    def test_groups_that_change(self):

        def rank(r, added, removed, options):
            model, optimizer = make()
            extra = torch.nn.Parameter(torch.full((2,), added * r))
            optimizer = wrapped(model, optimizer, **options)
            step(model, optimizer)
            if removed:
                del optimizer.param_groups[0]["params"][-1]
            optimizer.add_param_group({"params": [extra], "lr": 0.1})
            optimizer.zero_grad()
            (model(torch.ones(2, 3)).sum() + (extra * (r + 1)).sum()).backward()
            try:
                optimizer.step()
            except ValueError as error:
                return str(error), extra.tolist()
            return extra.tolist()

        for options in ({}, {"op": hvd.Adasum}, {"gradient_as_bucket_view": True}):
            for removed in (False, True):
                with self.subTest((options, removed)):
                    one, two = self.both(lambda r: rank(r, 0.0, removed, options))
                    self.assertEqual(one, two)
                    one, two = self.both(lambda r: rank(r, 1.0, removed, options))
                    self.assertRegex(one[0], r"different weights of parameter '(\w+\.)?group1.0'")
                    self.assertEqual((one[0], [1.0, 1.0]), two)

    def test_a_join_without_a_broadcast(self):

        def rank(r, kind, broadcasts):
            model, optimizer = make(kind)
            optimizer = wrapped(model, optimizer)
            for _ in range(3 - r):
                step(model, optimizer)
            last = hvd.join()
            if broadcasts > 0:
                hvd.broadcast_parameters(model.state_dict(), root_rank=last)
            if broadcasts > 1:
                hvd.broadcast_optimizer_state(optimizer, root_rank=last)
            try:
                step(model, optimizer)
            except ValueError as error:
                return str(error)
            return [p.tolist() for p in model.parameters()]

        for kind, broadcasts, what in ((torch.optim.SGD, 0, "weights"), (torch.optim.SGD, 1, None),
                                       (torch.optim.Adam, 1, "state"), (torch.optim.Adam, 2, None)):
            with self.subTest((kind, broadcasts)):
                one, two = self.both(lambda r: rank(r, kind, broadcasts))
                self.assertEqual(one, two)
                if what is None:
                    self.assertIsInstance(one, list)
                else:
                    self.assertIn(f"different {what} of", one)

    def test_a_float_of_numpy_is_equal_to_that_of_python(self):

        def rank(r):
            model, optimizer = make(lr=(0.1, numpy.float64(0.1))[r])
            step(model, wrapped(model, optimizer))

        self.both(rank)

    def test_what_is_equal(self):
        """A broadcast after wrapping, other values in the state, unequal buffers."""

        def rank(r):
            model, optimizer = make(torch.optim.SGD, r, 0.1 + r, momentum=0.9)
            model.register_buffer("mean", torch.tensor(float(r)))
            optimizer = wrapped(model, optimizer)
            optimizer.param_groups[0]["note"] = object()
            hvd.broadcast_parameters(dict(model.named_parameters()), root_rank=1)
            hvd.broadcast_optimizer_state(optimizer, root_rank=1)
            for _ in range(2):
                step(model, optimizer)
            return [p.tolist() for p in model.parameters()]

        one, two = self.both(rank)
        self.assertEqual(one, two)

    def test_a_setting_that_only_a_group_that_was_loaded_has(self):
        """As Adadelta's `differentiable` in torch 1.13, after broadcast_optimizer_state()."""

        def change(r, _, optimizer):
            if r == 1:
                optimizer.param_groups[0]["new_in_this_version"] = False

        self.assertIsNone(self.errors(change))

        def differ(r, _, optimizer):
            if r == 1:
                optimizer.param_groups[0]["maximize"] = True

        self.assertRegex(self.errors(differ), "maximize is False on rank 0 and True on rank 1")

    def test_a_gradient_of_zeros_of_a_frozen_parameter(self):
        # Momentum moves it on where it has one; a rank that has missed those steps has none.

        def rank(r, buckets):
            model, optimizer = make(momentum=0.9)
            optimizer = wrapped(model, optimizer, gradient_as_bucket_view=buckets)
            for epoch in range(2):
                model[0].requires_grad_(epoch == 0)
                for _ in range(2 if r == 0 or epoch == 1 else 0):
                    optimizer.zero_grad(set_to_none=False)
                    model(torch.ones(2, 3)).sum().backward()
                    optimizer.step()
                last = hvd.join()
                hvd.broadcast_parameters(model.state_dict(), root_rank=last)
                hvd.broadcast_optimizer_state(optimizer, root_rank=last)
            return [p.tolist() for p in model.parameters()]

        for buckets in (False, True):
            with self.subTest(buckets):
                one, two = self.both(lambda r: rank(r, buckets))
                self.assertEqual(one, two)

    def test_digests(self):
        kinds = [torch.float64, torch.float32, torch.bfloat16, torch.bool, torch.uint8, torch.complex64, torch.complex128]
        for dtype in kinds:
            x = torch.arange(6).reshape(2, 3).to(dtype)
            same, other = x.t().contiguous().t(), x.clone()
            other[1, 2] = 0
            a, b, c = _equal_start._digests([x, {"x": same}["x"], other])
            self.assertEqual(a, b, dtype)
            self.assertNotEqual(a, c, dtype)
        # Of each size of elements: in another order, with other signs, in parts.
        with mock.patch.object(_equal_start, "_CHUNK", 64):
            for dtype in (torch.float64, torch.float32, torch.float16, torch.int8, torch.complex64):
                x = (torch.arange(300) % 100 + 1).to(dtype)
                others = [x.flip(0), x.roll(64), torch.cat([x[128:256], x[:128], x[256:]]), -x, torch.cat([-x[:2], x[2:]])]
                digests = _equal_start._digests([x, x.clone(), x.reshape(3, 100).t().contiguous().t(), *others])
                self.assertEqual(digests[0], digests[1], dtype)
                self.assertEqual(len(set(digests[1:2] + digests[3:])), 1 + len(others), dtype)
        a, b, c, d = _equal_start._digests([{"a": None, "b": [1, 2.0]}, {"b": [1, 2.0]}, {"b": [1, 2.5]}, {"b": [object(), 2.0]}])
        self.assertEqual(a, b)
        self.assertEqual(len({b, c, d}), 3)


if __name__ == "__main__":
    unittest.main()
