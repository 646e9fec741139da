"""Collectives of maypole.torch over two ranks (threads, a fake library)."""

import gc
import threading
import unittest
from unittest import mock

import torch

import fake_library
from maypole import _native

_native.use(fake_library.FakeLibrary(2))
# pylint: disable=wrong-import-position
import maypole.torch as hvd
from maypole.common import operations
from maypole.torch import sparse


class TorchOpsTest(unittest.TestCase):

    def setUp(self):
        self.fake = fake_library.FakeLibrary(2)
        _native.use(self.fake)

    def both(self, function):
        return fake_library.run_ranks(self.fake, function)

    def assert_tensor(self, tensor, values):
        self.assertEqual(tensor.tolist(), values)

    def test_allreduce(self):
        def rank(r):
            x = torch.tensor([1.0, 2.0]) * (r + 1)
            mean = hvd.allreduce(x, name="mean")
            total = hvd.allreduce(x, op=hvd.Sum)
            old_style = hvd.allreduce(x, average=False, name="old")
            scaled = hvd.allreduce(x, op=hvd.Sum, name="s", prescale_factor=2.0,
                                   postscale_factor=10.0)
            self.assert_tensor(x, [1.0 + r, 2.0 + 2 * r])
            return [t.tolist() for t in (mean, total, old_style, scaled)]

        for result in self.both(rank):
            self.assertEqual(result, [[1.5, 3.0], [3.0, 6.0], [3.0, 6.0],
                                      [60.0, 120.0]])
        self.assertEqual(self.fake.pending(), 0)

    def test_only_what_is_waited_for_at_once_says_so(self):
        def rank(_):
            x = torch.ones(2)
            hvd.allreduce(x, name="a")
            hvd.allreduce_(x, name="b")
            hvd.broadcast(x, 0, "c")
            hvd.broadcast_(x, 0, "d")
            hvd.allgather(x, "e")
            hvd.barrier()
            for handle in (hvd.allreduce_async(x, name="u"),
                           hvd.broadcast_async(x, 0, "v"),
                           hvd.allgather_async(x, "w")):
                hvd.synchronize(handle)

        self.both(rank)
        expected = dict.fromkeys(["a", "b", "c", "d", "e", None], True)
        expected.update(dict.fromkeys("uvw", False))
        self.assertEqual(self.fake.awaited, expected)

    def test_dtypes(self):
        def rank(r):
            for dtype in (torch.uint8, torch.int32, torch.int64, torch.float16,
                          torch.bfloat16, torch.float32, torch.float64):
                x = torch.tensor([r, 4], dtype=dtype)
                result = hvd.allreduce(x, op=hvd.Sum, name=f"sum.{dtype}")
                self.assertEqual(result.dtype, dtype)
                self.assert_tensor(result, [1, 8])
            for dtype in (torch.int8, torch.int16, torch.bool):
                x = torch.tensor([r], dtype=dtype)
                self.assert_tensor(hvd.allgather(x, f"all.{dtype}"), [0, 1])
                self.assert_tensor(hvd.broadcast(x, 1, f"root.{dtype}"), [1])
                self.assert_tensor(
                    hvd.allreduce(x, name=f"sum.{dtype}", op=hvd.Sum), [1])

        self.both(rank)

    def test_in_place(self):
        def rank(r):
            x = torch.full((2, 3), float(r))
            self.assertIs(hvd.allreduce_(x, name="x"), x)
            self.assertEqual(x.tolist(), [[0.5] * 3] * 2)
            transposed = torch.arange(6.0).reshape(2, 3).t() * (r + 1)
            want = (torch.arange(6.0).reshape(2, 3).t() * 1.5).tolist()
            self.assertFalse(transposed.is_contiguous())
            self.assertEqual(hvd.allreduce(transposed, name="t").tolist(), want)
            handle = hvd.allreduce_async_(transposed, name="t")
            self.assertIs(hvd.synchronize(handle), transposed)
            self.assertEqual(transposed.tolist(), want)
            leaf = torch.nn.Parameter(torch.full((3, 2), float(r)).t())
            hvd.broadcast_(leaf, 1)
            self.assertEqual(leaf.tolist(), [[1.0] * 3] * 2)

        self.both(rank)

    def test_handles_keep_their_tensors(self):
        def rank(r):
            handles = [
                hvd.allreduce_async(torch.full((1000,), float(r + i)),
                                    name=f"t{i}") for i in range(20)
            ]
            gc.collect()
            junk = [torch.full((1000,), 7.7) for _ in range(40)]
            del junk
            return [hvd.synchronize(h)[999].item() for h in handles]

        for result in self.both(rank):
            self.assertEqual(result, [i + 0.5 for i in range(20)])

    def test_allgather(self):
        def rank(r):
            x = torch.full((r + 1, 2), r, dtype=torch.int64)
            gathered = hvd.allgather(x, "x")
            self.assert_tensor(gathered, [[0, 0], [1, 1], [1, 1]])
            self.assert_tensor(hvd.allgather(torch.tensor(float(r)), "scalar"),
                               [0.0, 1.0])
            empty = hvd.allgather(torch.empty(0, 3), "empty")
            self.assertEqual(tuple(empty.shape), (0, 3))
            one_sided = hvd.allgather(torch.ones(2 * r, 1), "one_sided")
            self.assert_tensor(one_sided, [[1.0], [1.0]])

        self.both(rank)

    def test_gathered_memory_lives_as_long_as_its_tensors(self):
        fake = fake_library.FakeLibrary(1)
        _native.use(fake)
        part = hvd.allgather(torch.arange(8.0), "x")[6:]
        gc.collect()
        self.assertEqual(fake.released, [])
        self.assert_tensor(part, [6.0, 7.0])
        del part
        gc.collect()
        self.assertEqual(len(fake.released), 1)

    def test_broadcast(self):
        def rank(r):
            x = torch.tensor([float(r), 5.0 * r])
            self.assert_tensor(hvd.broadcast(x, 1, "b"), [1.0, 5.0])
            self.assert_tensor(x, [float(r), 5.0 * r])
            self.assert_tensor(hvd.broadcast_(x, 0, "b"), [0.0, 0.0])
            hvd.barrier()

        self.both(rank)

    def test_grouped(self):
        def rank(r):
            xs = [torch.tensor([float(r)]), torch.tensor([r, r])]
            results = hvd.grouped_allreduce(xs, name="g", op=hvd.Sum)
            self.assertEqual([x.tolist() for x in results], [[1.0], [1, 1]])
            self.assertIs(hvd.grouped_allreduce_(xs, op=hvd.Sum)[1], xs[1])
            self.assert_tensor(xs[1], [1, 1])

        self.both(rank)
        self.assertIn(["g.0of2", "g.1of2"], self.fake.groups)

    def test_fp16_compression(self):
        def rank(r):
            x = torch.tensor([1.0 + r, 0.1])
            mean = hvd.allreduce(x, name="x", compression=hvd.Compression.fp16)
            self.assertEqual(mean.dtype, torch.float32)
            self.assertEqual(mean[0].item(), 1.5)
            self.assertEqual(mean[1].item(),
                             torch.tensor(0.1).half().float().item())

        self.both(rank)

    def test_gradients(self):
        def rank(r):
            x = torch.tensor([1.0, 2.0], requires_grad=True)
            weight = torch.tensor([1.0, 10.0]) * (r + 1)
            (hvd.allreduce(x, name="x", op=hvd.Sum) * weight).sum().backward()
            self.assert_tensor(x.grad, [3.0, 30.0])

            x.grad = None
            (hvd.allreduce(x) * weight).sum().backward()
            self.assert_tensor(x.grad, [1.5, 15.0])

            x.grad = None
            outputs = hvd.grouped_allreduce([x, 2 * x], name="g", op=hvd.Sum)
            ((outputs[0] + outputs[1]) * weight).sum().backward()
            self.assert_tensor(x.grad, [9.0, 90.0])

            rows = torch.ones(r + 1, 1, requires_grad=True)
            gathered = hvd.allgather(rows, "rows")
            (gathered * torch.tensor([[1.0], [2.0], [4.0]]) *
             (r + 1)).sum().backward()
            self.assert_tensor(rows.grad, [[1.5]] if r == 0 else
                               [[3.0], [6.0]])

            x.grad = None
            (hvd.broadcast(x, 1, "b") * weight).sum().backward()
            self.assert_tensor(x.grad, [1.5, 15.0] if r == 1 else [0.0, 0.0])

        self.both(rank)
        self.assertEqual(self.fake.pending(), 0)

    def test_sparse(self):
        def rank(r):
            x = torch.sparse_coo_tensor([[r, 2]], [1.0, 10.0 + r], (4,))
            for op, want in ((hvd.Sum, [1.0, 1.0, 21.0, 0.0]),
                             (hvd.Average, [0.5, 0.5, 10.5, 0.0])):
                wait = hvd.sparse_allreduce_async(x, "s", op)
                self.assert_tensor(wait().to_dense(), want)

        self.both(rank)

    def test_mismatch_is_an_error_on_both(self):
        def rank(r):
            with self.assertRaisesRegex(hvd.HorovodInternalError,
                                        "bad: rank 0"):
                hvd.allreduce(torch.ones(2 + r), name="bad")
            self.assert_tensor(hvd.allreduce(torch.ones(1), name="bad"), [1.0])

        self.both(rank)

    def test_adasum_of_different_shapes_is_an_error_on_both(self):
        def rank(r):
            for mine in ([torch.ones(10 + 2 * r)],
                         [torch.ones(4 + 2 * r), torch.ones(6 - 2 * r)],
                         [torch.ones((2, 3) if r == 0 else (3, 2))]):
                with self.assertRaisesRegex(
                        hvd.HorovodInternalError,
                        "bad.0of[12]: rank 0 has") as raised:
                    hvd.grouped_allreduce(mine, op=hvd.Adasum, name="bad")
                self.assertEqual(raised.exception.status,
                                 _native.FAILED_PRECONDITION)
            self.assert_tensor(
                hvd.allreduce(torch.ones(3), op=hvd.Adasum, name="bad"),
                [1.0] * 3)

        self.both(rank)

    def test_sparse_ends_both_operations_after_an_error(self):
        thread = threading.local()
        before = set(operations._handles)

        def fail(handle):  # for each rank's indices
            result = operations.synchronize(handle)
            if hasattr(thread, "called"):
                return result
            thread.called = True
            raise hvd.HorovodInternalError("lost")

        def rank(r):
            x = torch.sparse_coo_tensor([[r]], [1.0], (4,))
            with self.assertRaisesRegex(hvd.HorovodInternalError, "lost"):
                hvd.sparse_allreduce_async(x, "s", hvd.Sum)()

        with mock.patch.object(sparse, "synchronize", fail):
            self.both(rank)
        self.assertEqual(self.fake.pending(), 0)
        self.assertEqual(set(operations._handles), before)

    def test_refusals(self):
        cases = (
            (ValueError, "both average and op",
             lambda: hvd.allreduce(torch.ones(1), average=True, op=hvd.Sum)),
            (ValueError, "op=17",
             lambda: hvd.allreduce(torch.ones(1), op=17)),
            (ValueError, "'c'.*quint8",
             lambda: hvd.allreduce(torch.quantize_per_tensor(
                 torch.ones(1), 1.0, 0, torch.quint8), name="c")),
            (ValueError, "unnamed.*to_dense",
             lambda: hvd.allreduce_(torch.eye(2).to_sparse())),
            (ValueError, "9 dimensions",
             lambda: hvd.allgather(torch.ones([1] * 9))),
            (NotImplementedError, "'m'.*meta.*CPU",
             lambda: hvd.broadcast(torch.ones(1, device="meta"), 0, "m")),
            (TypeError, "'l'.*list", lambda: hvd.allreduce_([1.0], name="l")),
            (TypeError, "process_set=5.*ProcessSet",
             lambda: hvd.allreduce(torch.ones(1), process_set=5)),
            (ValueError, r"'s'.*scalar.*\[1\]",
             lambda: hvd.reducescatter(torch.tensor(1.0), "s")),
            (ValueError, "'s'.*splits=.*integers",
             lambda: hvd.alltoall(torch.ones(2), [0.5, 1.5], "s")),
            (ValueError, "'s'.*float32 tensor of shape",
             lambda: hvd.alltoall(torch.ones(2), torch.ones(2), "s")),
            (ValueError, "'s'.*splits",
             lambda: hvd.alltoall(torch.ones(2), [1, 2], "s")),
            (TypeError, "'g.1of2'.*int",
             lambda: hvd.grouped_allgather([torch.ones(1), 3], "g")),
        )
        for error, text, call in cases:
            with self.assertRaisesRegex(error, text):
                call()
        self.assertEqual(self.fake.submitted, [])

    def test_duplicate_name(self):
        first = hvd.allreduce_async(torch.ones(1), name="dup")
        with self.assertRaisesRegex(ValueError, "'dup' is pending"):
            hvd.allreduce_async(torch.ones(1), name="dup")
        hvd.allreduce_async(torch.ones(1), name="g.1of2")
        with self.assertRaisesRegex(ValueError, "'g.1of2' is pending"):
            hvd.grouped_allreduce_async([torch.ones(1)] * 2, name="g")
        self.assertFalse(hvd.poll(first))
        self.assertEqual([name for _, name in self.fake.submitted],
                         ["dup", "g.1of2"])


if __name__ == "__main__":
    unittest.main()
