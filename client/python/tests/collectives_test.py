"""Alltoall, reducescatter, groups, join, reductions: values and gradients."""

import unittest

import torch

import fake_library
from maypole import _native

_native.use(fake_library.FakeLibrary(2))
import maypole.torch as hvd  # pylint: disable=wrong-import-position


class CollectivesTest(unittest.TestCase):

    def setUp(self):
        self.fake = fake_library.FakeLibrary(2)
        _native.use(self.fake)

    def both(self, function):
        results = fake_library.run_ranks(self.fake, function)
        self.assertEqual(self.fake.pending(), 0)
        return results

    def assert_tensor(self, tensor, values):
        self.assertEqual(tensor.tolist(), values)

    def test_reductions(self):
        def rank(r):
            x = torch.tensor([1.0 + r, 5.0 - r, -2.0])
            for op, want in ((hvd.Min, [1.0, 4.0, -2.0]),
                             (hvd.Max, [2.0, 5.0, -2.0]),
                             (hvd.Product, [2.0, 20.0, 4.0])):
                self.assert_tensor(hvd.allreduce(x, op=op, name="x"), want)
                in_place = x.clone()
                hvd.allreduce_(in_place, op=op, name="y")
                self.assert_tensor(in_place, want)
            flags = torch.tensor([r == 0, True, False])
            for op, want in ((hvd.Sum, [True, True, False]),
                             (hvd.Max, [True, True, False]),
                             (hvd.Min, [False, True, False]),
                             (hvd.Product, [False, True, False])):
                self.assert_tensor(hvd.allreduce(flags, op=op), want)

        self.both(rank)

    def test_alltoall(self):
        def rank(r):
            x = torch.arange(4.0) + 10 * r
            even = hvd.alltoall(x)
            self.assert_tensor(even, [2 * r, 2 * r + 1, 2 * r + 10, 2 * r + 11])
            # Rank 0 sends 1 row to itself and 3 to rank 1, rank 1 all to 0.
            splits = [1, 3] if r == 0 else [4, 0]
            want = [0, 10, 11, 12, 13] if r == 0 else [1, 2, 3]
            for given, dtype in ((splits, torch.int32),
                                 (torch.tensor(splits), torch.int64),
                                 (torch.tensor(splits, dtype=torch.int32),
                                  torch.int32)):
                rows, received = hvd.alltoall(x, given, "u")
                self.assert_tensor(rows, want)
                self.assert_tensor(received, [1, 4] if r == 0 else [3, 0])
                self.assertEqual(received.dtype, dtype)
            rows, received = hvd.synchronize(hvd.alltoall_async(x, None, "v"))
            self.assert_tensor(rows, even.tolist())
            self.assert_tensor(received, [2, 2])
            transposed = torch.arange(6.0).reshape(3, 2).t()  # 2 x 3
            self.assert_tensor(hvd.alltoall(transposed, name="t"),
                               [transposed[r].tolist()] * 2)

        self.both(rank)

    def test_alltoall_of_nothing(self):
        def rank(r):
            rows, received = hvd.alltoall(torch.ones(0, 3), [0, 0])
            self.assertEqual(tuple(rows.shape), (0, 3))
            self.assert_tensor(received, [0, 0])
            self.assertEqual(hvd.alltoall(torch.ones(0)).numel(), 0)
            del r

        self.both(rank)

    def test_alltoall_gradient(self):
        def rank(r):
            x = torch.arange(4.0, requires_grad=True)
            splits = [1, 3] if r == 0 else [4, 0]
            rows, received = hvd.alltoall(x, splits, "a")
            self.assertFalse(received.requires_grad)
            # Each row's weight depends on the rank that received it.
            (rows * (r + 1) * torch.arange(1.0, len(rows) + 1)).sum().backward()
            self.assert_tensor(x.grad, [1.0, 2.0, 4.0, 6.0] if r == 0 else
                               [2.0, 3.0, 4.0, 5.0])
            x.grad = None
            hvd.alltoall(x * 2).sum().backward()
            self.assert_tensor(x.grad, [2.0] * 4)

        self.both(rank)

    def test_reducescatter(self):
        def rank(r):
            x = torch.arange(6.0).reshape(3, 2) * (r + 1)
            mean = hvd.reducescatter(x, "m")
            self.assert_tensor(mean, [[0.0, 1.5], [3.0, 4.5]] if r == 0 else
                               [[6.0, 7.5]])
            total = hvd.reducescatter(x, op=hvd.Sum, prescale_factor=2.0,
                                      postscale_factor=10.0)
            self.assert_tensor(total, [[0.0, 60.0], [120.0, 180.0]]
                               if r == 0 else [[240.0, 300.0]])
            half = hvd.reducescatter(x, op=hvd.Sum,
                                     compression=hvd.Compression.fp16)
            self.assertEqual(half.dtype, torch.float32)
            self.assert_tensor(half[-1], [6.0, 9.0] if r == 0 else
                               [12.0, 15.0])
            one = hvd.synchronize(hvd.reducescatter_async(torch.ones(1)))
            self.assert_tensor(one, [1.0] if r == 0 else [])

        self.both(rank)

    def test_reducescatter_gradient(self):
        def rank(r):
            for op, factor in ((hvd.Sum, 2.0), (hvd.Average, 1.0)):
                x = torch.ones(3, requires_grad=True)
                rows = hvd.reducescatter(x, "x", op=op, postscale_factor=0.5)
                (rows * (r + 1)).sum().backward()
                want = [0.5 * factor * w for w in (1.0, 1.0, 2.0)]
                self.assert_tensor(x.grad, want)

        self.both(rank)

    def test_grouped_allgather(self):
        def rank(r):
            xs = [torch.full((r + 1,), float(r)), torch.tensor(10 + r)]
            rows, scalars = hvd.grouped_allgather(xs, "g")
            self.assert_tensor(rows, [0.0, 1.0, 1.0])
            self.assert_tensor(scalars, [10, 11])
            handle = hvd.grouped_allgather_async(xs)
            self.assert_tensor(hvd.synchronize(handle)[1], [10, 11])
            self.assertEqual(hvd.grouped_allgather([]), [])

        self.both(rank)
        self.assertIn(["g.0of2", "g.1of2"], self.fake.groups)

    def test_grouped_reducescatter(self):
        def rank(r):
            xs = [torch.arange(3) + r, torch.arange(4.0)]
            first, second = hvd.grouped_reducescatter(xs, "g", op=hvd.Sum)
            self.assert_tensor(first, [1, 3] if r == 0 else [5])
            self.assert_tensor(second, [0.0, 2.0] if r == 0 else [4.0, 6.0])
            handle = hvd.grouped_reducescatter_async(xs)
            self.assert_tensor(hvd.synchronize(handle)[1],
                               [0.0, 1.0] if r == 0 else [2.0, 3.0])
            self.assertEqual(hvd.grouped_reducescatter([]), [])

        self.both(rank)
        self.assertIn(["g.0of2", "g.1of2"], self.fake.groups)

    def test_gradients_of_groups(self):
        def rank(r):
            x = torch.ones(r + 1, requires_grad=True)
            y = torch.ones(1, requires_grad=True)
            first, second = hvd.grouped_allgather([x, y], "g")
            weights = torch.tensor([1.0, 2.0, 4.0]) * (r + 1)
            ((first * weights).sum() + (second * weights[:2]).sum()).backward()
            self.assert_tensor(x.grad, [1.5] if r == 0 else [3.0, 6.0])
            self.assert_tensor(y.grad, [1.5] if r == 0 else [3.0])

            x = torch.ones(3, requires_grad=True)
            y = torch.ones(2, 2, requires_grad=True)
            first, second = hvd.grouped_reducescatter([x, y], op=hvd.Sum)
            ((first.sum() + second.sum()) * (r + 1)).backward()
            self.assert_tensor(x.grad, [2.0, 2.0, 4.0])
            self.assert_tensor(y.grad, [[2.0, 2.0], [4.0, 4.0]])

        self.both(rank)

    def test_join(self):
        def rank(r):
            total = 0
            for i in range(2 + 2 * r):
                total += hvd.allreduce(torch.ones(1), name="x",
                                       op=hvd.Sum).item()
                # On the last two rank 1 is alone.
            return total, hvd.join(), hvd.join(device=0)

        (first, *last), (second, *other_last) = self.both(rank)
        self.assertEqual((first, second), (4.0, 6.0))
        self.assertEqual(last, other_last)
        self.assertEqual(last[0], 1)

    def test_what_is_waited_for_at_once_says_so(self):
        def rank(_):
            hvd.alltoall(torch.ones(2), name="a")
            hvd.reducescatter(torch.ones(2), "b")
            for handle in (hvd.alltoall_async(torch.ones(2), name="u"),
                           hvd.reducescatter_async(torch.ones(2), "v")):
                hvd.synchronize(handle)

        self.both(rank)
        self.assertEqual(self.fake.awaited,
                         {"a": True, "b": True, "u": False, "v": False})


if __name__ == "__main__":
    unittest.main()
