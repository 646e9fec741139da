"""An error that one rank of a DistributedOptimizer finds alone reaches all, and they can go on."""

import re
import unittest
import warnings

import torch

import fake_library
from maypole import _native

_native.use(fake_library.FakeLibrary(2))
import maypole.torch as hvd  # pylint: disable=wrong-import-position


class Program:
    """One rank's: two parameters, of which steps reduce the gradients r + 1 and 2 (r + 1)."""

    def __init__(self, r, **options):
        self.r = r
        self.p, self.q = (torch.nn.Parameter(torch.zeros(2)) for _ in range(2))
        self.optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD([self.p, self.q], lr=1.0),
            [("p", self.p), ("q", self.q)], **options)

    def loss(self):
        return (self.p.sum() + 2 * self.q.sum()) * (self.r + 1)

    def usual(self):
        for _ in range(self.optimizer.backward_passes_per_step):
            self.loss().backward()
        self.optimizer.step()

    def clips(self):
        self.loss().backward()
        torch.nn.utils.clip_grad_value_([self.p, self.q], 100.0)
        self.optimizer.step()

    def synchronizes(self):
        self.loss().backward()
        self.optimizer.synchronize()
        with self.optimizer.skip_synchronize():
            self.optimizer.step()

    # --- Faults

    def changes_while_reduced(self, then="usual"):
        kept = self.p.grad  # of the step before
        self.loss().backward()
        kept.mul_(2.0)
        {"usual": self.optimizer.step, "synchronizes": self.optimizer.synchronize,
         "clips": lambda: self.p.grad}[then]()

    def changes_between_passes(self):
        self.loss().backward()
        self.p.grad.data.mul_(2.0)
        self.optimizer.step()

    def makes_a_graph(self):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's, about a cycle
            (self.q.sum() + (self.p * self.p).sum()).backward(create_graph=True)

    def sums_twice(self):
        self.loss().backward()
        self.optimizer.synchronize()
        self.loss().backward()

    def reduces_a_sum(self):
        self.q.sum().backward()
        self.optimizer.synchronize()
        self.p.sum().backward()
        self.optimizer.step()

    def steps_after_synchronize(self):
        self.loss().backward()
        self.optimizer.synchronize()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.optimizer.step()

    def has_a_pass_too_many(self):
        self.loss().backward()
        try:
            self.loss().backward()
        except AssertionError:
            pass
        self.optimizer.step()

    def reads_between_passes(self):
        self.p.sum().backward()
        self.p.grad.sum()
        self.q.sum().backward()
        self.optimizer.step()


class FailingRankTest(fake_library.TwoRanks):

    def check(self, fault, other, text, **options):
        """A step of rank 0 has the fault, while rank 1's goes on as `other` says."""

        def rank(r):
            program = Program(r, **options)
            ends = []
            for i in range(4):
                program.optimizer.zero_grad(set_to_none=False)
                try:
                    if i == 2 and r == 0:
                        fault(program)
                    else:
                        other(program)
                    ends.append(None)
                except (AssertionError, ValueError) as error:
                    ends.append(str(error))
                    if program.p.grad is not None and program.p.grad.requires_grad:
                        program.p.grad = None
            return ends, program.p.tolist(), program.q.tolist()

        for buckets in (False, True):
            with self.subTest((fault, other, buckets)):
                (ends, *values), (others, *same) = self.both(
                    lambda r: rank(r))
                self.assertEqual(values, same)
                self.assertEqual([end is None for end in ends],
                                 [True, True, False, True])
                self.assertEqual([end is None for end in others],
                                 [True, True, False, True])
                for end in (ends[2], others[2]):
                    self.assertRegex(end, re.compile(text, re.DOTALL))
                factor = {hvd.Average: 1.5, hvd.Sum: 3.0}[options.get("op", hvd.Average)]
                factor *= 3 * options.get("backward_passes_per_step", 1)
                self.assertEqual(values, [[-factor] * 2, [-2 * factor] * 2])
            options["gradient_as_bucket_view"] = True

    def test_a_gradient_that_is_changed_while_it_is_reduced(self):
        text = "'DistributedOptimizer.[pq].*was changed while it was reduced"
        for then in ("usual", "synchronizes", "clips"):
            for other in (Program.usual, Program.synchronizes, Program.clips):
                self.check(lambda p: p.changes_while_reduced(then), other, text)

    def test_a_gradient_that_is_changed_between_passes(self):
        self.check(Program.changes_between_passes, Program.usual,
                   "'DistributedOptimizer.p' was changed.*before it was reduced",
                   backward_passes_per_step=2)

    def test_a_gradient_with_a_graph(self):
        self.check(Program.makes_a_graph, Program.usual,
                   "'DistributedOptimizer.*create_graph")

    def test_sums(self):
        for fault in (Program.sums_twice, Program.reduces_a_sum):
            for other in (Program.usual, Program.synchronizes):
                self.check(fault, other,
                           "'DistributedOptimizer.[pq]' has been reduced.*summed again",
                           op=hvd.Sum)
        self.check(Program.steps_after_synchronize, Program.synchronizes,
                   "step\\(\\) after synchronize\\(\\)", op=hvd.Sum)

    def test_a_sum_that_all_ranks_would_reduce_again(self):

        def rank(r):
            program = Program(r, op=hvd.Sum)
            for _ in range(2):
                with self.assertRaisesRegex(AssertionError, "'DistributedOptimizer.q' has been reduced.*summed again"):
                    program.reduces_a_sum()
                program.optimizer.zero_grad()
            program.usual()
            return program.p.tolist(), program.q.tolist()

        self.assertEqual(self.both(rank), [([-3.0] * 2, [-6.0] * 2)] * 2)

    def test_a_pass_too_many(self):
        self.check(Program.has_a_pass_too_many, Program.usual,
                   "'DistributedOptimizer.[pq].*was changed while it was reduced")

    def test_one_rank_reads_a_gradient_between_passes(self):
        text = "'DistributedOptimizer.q' is reduced twice.*read gradients on all"
        for other in (Program.usual, Program.synchronizes, Program.clips):
            self.check(Program.reads_between_passes, other, text)


if __name__ == "__main__":
    unittest.main()
