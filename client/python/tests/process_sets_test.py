"""Process sets over three thread ranks: making, using and removing them."""

import unittest

import torch

import fake_library
from maypole import _native
from maypole.common import process_sets

_native.use(fake_library.FakeLibrary(3))
import maypole.torch as hvd  # pylint: disable=wrong-import-position


class ProcessSetTest(unittest.TestCase):
    """A ProcessSet that has not been added."""

    def setUp(self):
        process_sets.forget_all()
        _native.use(fake_library.FakeLibrary(1))

    def test_before_it_is_made(self):
        made = hvd.ProcessSet([3, 1])
        self.assertEqual(made.ranks, [1, 3])
        self.assertIsNone(made.process_set_id)
        self.assertEqual((made.size(), made.rank(), made.included()),
                         (None, None, None))
        self.assertEqual(hvd.ProcessSet(range(2)).ranks, [0, 1])
        with self.assertRaisesRegex(ValueError, r"\[1\].*not been added"):
            hvd.allreduce(torch.ones(1), process_set=hvd.ProcessSet([1]))

    def test_what_is_no_list_of_ranks(self):
        for wrong in (3, "01", [0.5], None):
            with self.assertRaisesRegex(ValueError, "list of ranks"):
                hvd.ProcessSet(wrong)

    def test_the_global_one(self):
        everybody = hvd.global_process_set
        self.assertEqual(everybody.process_set_id, 0)
        self.assertEqual((everybody.ranks, everybody.size(), everybody.rank(),
                          everybody.included()), ([0], 1, 0, True))
        self.assertFalse(hvd.remove_process_set(everybody))
        hvd.shutdown()
        self.assertEqual((everybody.ranks, everybody.size(), everybody.rank(),
                          everybody.included()), (None,) * 4)

    def test_outside_a_job(self):
        hvd.shutdown()
        for call in (lambda: hvd.add_process_set([0]),
                     lambda: hvd.allgather(
                         torch.ones(1), process_set=hvd.ProcessSet([0])),
                     hvd.join):
            with self.assertRaisesRegex(ValueError, "not been initialized"):
                call()


class ThreeRanksTest(unittest.TestCase):

    def setUp(self):
        process_sets.forget_all()
        self.fake = fake_library.FakeLibrary(3)
        _native.use(self.fake)

    def all_three(self, function):
        results = fake_library.run_ranks(self.fake, function)
        self.assertEqual(self.fake.pending(), 0)
        return results

    def assert_tensor(self, tensor, values):
        self.assertEqual(tensor.tolist(), values)

    def test_making_and_removing(self):
        def rank(r):
            ends = hvd.add_process_set([2, 0])
            self.assertEqual((ends.process_set_id, ends.ranks), (1, [0, 2]))
            self.assertEqual((ends.size(), ends.included()), (2, r != 1))
            if r == 1:
                with self.assertRaisesRegex(ValueError, "rank 1 is not in"):
                    ends.rank()
            else:
                self.assertEqual(ends.rank(), r // 2)
            mine = hvd.ProcessSet([1])
            self.assertIs(hvd.add_process_set(mine), mine)
            self.assertEqual(mine.process_set_id, 2)
            self.assertTrue(hvd.remove_process_set(ends))
            self.assertEqual((ends.process_set_id, ends.ranks), (None, None))
            for call in (lambda: hvd.remove_process_set(ends),
                         lambda: hvd.add_process_set(ends),
                         lambda: hvd.add_process_set(mine),
                         lambda: hvd.barrier(process_set=ends)):
                with self.assertRaises(ValueError):
                    call()
            again = hvd.add_process_set([0, 2])
            self.assertEqual(again.process_set_id, 3)

        self.all_three(rank)

    def test_duplicates(self):
        def rank(_):
            hvd.add_process_set([0, 1])
            for ranks in ([1, 0], [0, 1, 2]):
                with self.assertRaises(ValueError):
                    hvd.add_process_set(ranks)
            with self.assertRaises(ValueError):
                hvd.add_process_set([0, 7])

        self.all_three(rank)

    def test_different_requests(self):
        def rank(r):
            with self.assertRaisesRegex(hvd.HorovodInternalError, "differ"):
                hvd.add_process_set([0, r])

        self.all_three(rank)

    def test_every_collective(self):
        def rank(r):
            ends = hvd.add_process_set([0, 2])
            if not ends.included():
                for call in (hvd.allreduce, hvd.allgather, hvd.alltoall,
                             hvd.reducescatter):
                    with self.assertRaisesRegex(ValueError, "rank 1"):
                        call(torch.ones(2), name="x", process_set=ends)
                return
            x = torch.tensor([float(r), 4.0])
            use = {"process_set": ends}
            self.assert_tensor(hvd.allreduce(x, **use), [1.0, 4.0])
            self.assert_tensor(hvd.allreduce_(x.clone(), op=hvd.Sum, **use),
                               [2.0, 8.0])
            self.assert_tensor(hvd.grouped_allreduce([x], **use)[0],
                               [1.0, 4.0])
            self.assert_tensor(hvd.grouped_allreduce_([x.clone()], **use)[0],
                               [1.0, 4.0])
            self.assert_tensor(hvd.allgather(x, **use), [0.0, 4.0, 2.0, 4.0])
            self.assert_tensor(hvd.grouped_allgather([x], **use)[0],
                               [0.0, 4.0, 2.0, 4.0])
            self.assert_tensor(hvd.broadcast(x, 2, **use), [2.0, 4.0])
            self.assert_tensor(hvd.broadcast_(x.clone(), 0, **use), [0.0, 4.0])
            self.assert_tensor(hvd.alltoall(x, **use),
                               [0.0, 2.0] if r == 0 else [4.0, 4.0])
            self.assert_tensor(hvd.reducescatter(x, **use),
                               [1.0] if r == 0 else [4.0])
            self.assert_tensor(hvd.grouped_reducescatter([x], **use)[0],
                               [1.0] if r == 0 else [4.0])
            wait = hvd.sparse_allreduce_async(
                torch.sparse_coo_tensor([[r]], [1.0], (3,)), "s", hvd.Average,
                **use)
            self.assert_tensor(wait().to_dense(), [0.5, 0.0, 0.5])
            self.assertEqual(hvd.broadcast_object(r, 2, **use), 2)
            self.assertEqual(hvd.allgather_object(r, **use), [0, 2])
            hvd.barrier(process_set=ends)

        self.all_three(rank)

    def test_gradients(self):
        def rank(r):
            ends = hvd.add_process_set([0, 2])
            if not ends.included():
                return
            x = torch.ones(2, requires_grad=True)
            scale = 1.0 + r  # 1 and 3
            for call, want in (
                (lambda: hvd.allreduce(x, process_set=ends), [2.0] * 2),
                (lambda: hvd.allgather(x, process_set=ends), [2.0] * 2),
                (lambda: hvd.broadcast(x, 2, process_set=ends),
                 [0.0] * 2 if r == 0 else [2.0] * 2),
                (lambda: hvd.alltoall(x, process_set=ends), [1.0, 3.0]),
                (lambda: hvd.reducescatter(x, op=hvd.Sum, process_set=ends),
                 [2.0, 6.0]),
            ):
                x.grad = None
                (call() * scale).sum().backward()
                self.assert_tensor(x.grad, want)

        self.all_three(rank)

    def test_the_same_name_in_two_sets(self):
        def rank(r):
            low, high = hvd.add_process_set([0, 1]), hvd.add_process_set([1, 2])
            handles = [
                hvd.allreduce_async(torch.tensor([float(r)]), name="x",
                                    op=hvd.Sum, process_set=s)
                for s in (low, high, hvd.global_process_set)
                if s.included()
            ]
            return [hvd.synchronize(h).item() for h in handles]

        self.assertEqual(self.all_three(rank),
                         [[1.0, 3.0], [1.0, 3.0, 3.0], [3.0, 3.0]])

    def test_an_optimizer_of_a_set(self):
        def rank(r):
            ends = hvd.add_process_set([0, 2])
            weight = torch.nn.Parameter(torch.zeros(2))
            optimizer = hvd.DistributedOptimizer(
                torch.optim.SGD([weight], lr=1.0), process_set=ends)
            for _ in range(2):
                optimizer.zero_grad()
                (weight * (1.0 + r)).sum().backward()
                optimizer.step()
            # Ranks 0 and 2 average 1 and 3; rank 1 steps alone.
            self.assert_tensor(weight, [-4.0, -4.0])
            return sorted({name for who, name in self.fake.submitted
                           if who == r and name})

        names = self.all_three(rank)
        self.assertEqual(names[1], [])
        self.assertEqual(names[0], ["DistributedOptimizer.group0.0"])


class InitTest(unittest.TestCase):

    def setUp(self):
        process_sets.forget_all()
        self.fake = fake_library.FakeLibrary(2)
        self.fake.shutdown()
        _native.use(self.fake)

    def test_dynamic_changes_nothing(self):
        hvd.init(process_sets="dynamic")
        self.assertTrue(hvd.is_initialized())

    def test_what_is_no_list_of_sets(self):
        for wrong in ("static", [[0, 1]]):
            with self.assertRaisesRegex(ValueError, "list of ProcessSet"):
                hvd.init(process_sets=wrong)
        self.assertFalse(hvd.is_initialized())

    def test_duplicates_leave_the_job_joined(self):
        zero, one = hvd.ProcessSet([0]), hvd.ProcessSet([0])
        for sets in ([zero, one], [hvd.ProcessSet([1, 0])]):
            with self.assertRaisesRegex(ValueError, "same ranks"):
                hvd.init(process_sets=sets)
            self.assertTrue(hvd.is_initialized())
        self.assertIsNone(zero.process_set_id)

    def test_sets_of_init(self):
        self.fake.init()

        def rank(r):
            sets = [hvd.ProcessSet([1]), hvd.ProcessSet([0])]
            hvd.init(process_sets=sets)
            self.assertEqual([s.process_set_id for s in sets], [1, 2])
            self.assertEqual(hvd.allreduce(torch.tensor(float(r)), op=hvd.Sum,
                                           process_set=sets[1 - r]).item(), r)
            # A second call adds the new sets; equal sets are the same.
            twin = hvd.ProcessSet([0])
            hvd.init(process_sets=[*sets[:1], twin])
            self.assertEqual(twin.process_set_id, 2)
            self.assertEqual(sets[0].process_set_id, 1)
            return sets

        sets, _ = fake_library.run_ranks(self.fake, rank)
        hvd.shutdown()
        self.assertEqual([(s.process_set_id, s.ranks) for s in sets],
                         [(None, [1]), (None, [0])])
        self.assertIsNone(sets[0].included())


if __name__ == "__main__":
    unittest.main()
