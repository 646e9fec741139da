"""Collectives on tensors of rarer dtypes and layouts: complex, float8, uint32, quantized, lazily negated, expanded."""

import unittest

import torch

import fake_library
from maypole import _native

_native.use(fake_library.FakeLibrary(2))
import maypole.torch as hvd  # pylint: disable=wrong-import-position


def of_rank(dtype, rank, shape=(3, 2)):
    count = torch.Size(shape).numel()
    values = torch.arange(count).reshape(shape) + 10 * rank
    if dtype.is_complex:
        return torch.complex(values.float(), -values.float() - 0.5).to(dtype)
    return values.to(torch.float32).to(dtype)


def bits(tensor):
    """Comparable, of every dtype."""
    if tensor.is_quantized:
        return [tensor.q_scale(), tensor.q_zero_point(),
                tensor.int_repr().tolist()]
    if tensor.dtype.is_complex:
        return torch.view_as_real(tensor.resolve_conj()).tolist()
    return tensor.to(torch.float64).tolist()


MOVED = [getattr(torch, name) for name in (
    "complex64", "complex128", "float8_e4m3fn", "float8_e5m2", "uint32",
    "uint64") if hasattr(torch, name)]


class OtherTensorsTest(fake_library.TwoRanks):

    def test_what_is_moved(self):

        def rank(r, dtype):
            x = of_rank(dtype, r)
            sent = hvd.broadcast(x, 1, "out")
            into, strided = x.clone(), of_rank(dtype, r, (2, 3)).t()
            self.assertIs(hvd.broadcast_(into, 1, "in"), into)
            hvd.broadcast_(strided, 1, "strided")
            rows = hvd.allgather(x[:r + 1], "rows")
            scalars = hvd.allgather(x[0, 0], "scalars")
            swapped = hvd.alltoall(x[:2], name="swapped")
            parts, counts = hvd.alltoall(x, [1, 2], "parts")
            for result in (sent, rows, scalars, swapped, parts):
                self.assertEqual(result.dtype, dtype)
            return [bits(t) for t in (sent, into, strided, rows, scalars,
                                      swapped, parts)] + [counts.tolist()]

        for dtype in MOVED:
            with self.subTest(dtype):
                x, y = of_rank(dtype, 0), of_rank(dtype, 1)
                for r, got in enumerate(self.both(lambda r: rank(r, dtype))):
                    self.assertEqual(got, [
                        bits(y), bits(y), bits(of_rank(dtype, 1, (2, 3)).t()),
                        bits(x[:1]) + bits(y[:2]), [bits(x)[0][0], bits(y)[0][0]],
                        [bits(x)[r], bits(y)[r]],
                        (bits(x)[:1] + bits(y)[:1] if r == 0 else
                         bits(x)[1:] + bits(y)[1:]), [r + 1, r + 1]])

    def test_ranks_with_different_dtypes_get_an_error(self):

        def rank(r, dtypes):
            with self.assertRaises(hvd.HorovodInternalError):
                hvd.broadcast(of_rank(dtypes[r], r), 0, "x")

        pairs = [(torch.complex64, torch.float32)]
        if hasattr(torch, "float8_e5m2"):
            pairs += [(torch.float8_e5m2, torch.float8_e4m3fn),
                      (torch.float8_e5m2, torch.uint8),
                      (torch.uint32, torch.int32)]
        for dtypes in pairs:
            self.both(lambda r: rank(r, dtypes))

    def test_sums_of_complex_numbers(self):

        def rank(r, dtype):
            x = of_rank(dtype, r)
            into = x.clone().conj()
            hvd.allreduce_(into, op=hvd.Sum, name="in")
            out = hvd.allreduce(x, name="out")
            scaled = hvd.allreduce(x, op=hvd.Sum, name="scaled",
                                   prescale_factor=0.5)
            rows = hvd.reducescatter(x, name="rows", op=hvd.Sum)
            with self.assertRaisesRegex(ValueError, "'m'.*Average and Sum"):
                hvd.allreduce(x, op=hvd.Max, name="m")
            p = x.clone().requires_grad_()
            (hvd.allreduce(p, name="grad").abs()**2).sum().backward()
            return [bits(t) for t in (into, out, scaled, rows, p.grad)]

        for dtype in (torch.complex64, torch.complex128):
            total = of_rank(dtype, 0) + of_rank(dtype, 1)
            for r, got in enumerate(self.both(lambda r: rank(r, dtype))):
                self.assertEqual(got[:4], [
                    bits(total.conj()), bits(total / 2), bits(total / 2),
                    bits(total[:2] if r == 0 else total[2:])])
                torch.testing.assert_close(  # 2 * the average
                    torch.tensor(got[4]), torch.tensor(bits(total)))

    def test_a_complex_model(self):

        def train(rank, ranks):
            p = torch.nn.Parameter(of_rank(torch.complex64, 0))
            optimizer = torch.optim.SGD([p], lr=0.125)
            if ranks > 1:
                optimizer = hvd.DistributedOptimizer(optimizer, [("p", p)])
            for _ in range(2):
                optimizer.zero_grad()
                rows = torch.tensor([1.0, 3.0])[rank:2 if ranks == 1 else rank + 1]
                (rows.mean() * p.abs().pow(2).sum()).backward()
                optimizer.step()
            return bits(p.detach())

        one, two = self.both(lambda r: train(r, 2))
        self.assertEqual(one, two)
        torch.testing.assert_close(torch.tensor(one), torch.tensor(train(0, 1)))

    def test_quantized(self):

        def quantized(r, shape=(2, 3)):
            return torch.quantize_per_tensor(
                torch.arange(6.0).reshape(shape) * (r + 1), 0.25 * (r + 1), r,
                torch.quint8)

        def rank(r):
            into = quantized(r)
            hvd.broadcast_(into, 1, "in")
            sent = hvd.broadcast(quantized(r), 1, "out")
            rows = hvd.allgather(quantized(0)[:r + 1], "rows")
            with self.assertRaisesRegex(ValueError, "different scales"):
                hvd.allgather(quantized(r), "different")
            channels = torch.quantize_per_channel(
                torch.ones(2, 2), torch.ones(2), torch.zeros(2), 0, torch.qint8)
            with self.assertRaisesRegex(ValueError, "q_per_channel_scales"):
                hvd.broadcast(channels, 0, "channels")
            with self.assertRaisesRegex(ValueError, "is not supported"):
                hvd.allreduce(quantized(r), name="sum")
            return bits(into), bits(sent), bits(rows)

        one, zero = quantized(1), quantized(0)
        rows = bits(zero)
        rows[2] = rows[2][:1] + rows[2]
        for got in self.both(rank):
            self.assertEqual(got, (bits(one), bits(one), rows))

    def test_views_that_negate(self):

        def rank(r):
            z = torch.complex(torch.ones(3), torch.full((3,), 2.0 + r))
            negated = z.conj().imag  # a view: -(2 + r)
            self.assertTrue(negated.is_neg())
            out = hvd.allreduce(negated, op=hvd.Sum, name="out")
            sent = hvd.broadcast(negated, 1, "sent")
            rows = hvd.allgather(negated[:1], "rows")
            parts = hvd.reducescatter(negated[:2], "parts", op=hvd.Sum)
            swapped = hvd.alltoall(negated[:2], name="swapped")
            hvd.allreduce_(negated, op=hvd.Sum, name="in")
            return [t.tolist() for t in (out, sent, rows, parts, swapped, negated,
                                         z.imag)]

        for got in self.both(rank):
            self.assertEqual(got, [[-5.0] * 3, [-3.0] * 3, [-2.0, -3.0], [-5.0],
                                   [-2.0, -3.0], [-5.0] * 3, [5.0] * 3])

    def test_elements_that_are_one_in_memory(self):

        def rank(r):
            one = torch.full((1, 3), 1.0 + r)
            rows = one.expand(4, 3)
            hvd.allreduce_(rows, op=hvd.Sum, name="sum")
            self.assertEqual(one.tolist(), [[3.0] * 3])
            one.fill_(1.0 + r)
            hvd.broadcast_parameters([("mask", rows)], root_rank=1)
            self.assertEqual(rows.tolist(), [[2.0] * 3] * 4)
            different = rows if r == 0 else torch.arange(12.0).reshape(4, 3)
            if r == 1:
                return hvd.broadcast_(different, 1, "different")
            with self.assertRaisesRegex(ValueError, "different values"):
                hvd.broadcast_(different, 1, "different")
            return None

        self.both(rank)

    def test_autograd_notices_changes_in_place(self):

        def rank(r):
            for name, change in (
                    ("allreduce_", lambda x: hvd.allreduce_(x, name="a")),
                    ("allreduce_async_", lambda x: hvd.synchronize(
                        hvd.allreduce_async_(x, name="b"))),
                    ("grouped", lambda x: hvd.grouped_allreduce_([x], name="c")),
                    ("broadcast_", lambda x: hvd.broadcast_(x, 0, "d")),
                    ("broadcast_async_", lambda x: hvd.synchronize(
                        hvd.broadcast_async_(x, 0, "e"))),
                    ("view", lambda x: hvd.allreduce_(x[:1], name="f")),
                    ("adasum", lambda x: hvd.allreduce_(x, op=hvd.Adasum,
                                                        name="g")),
                    ("strided", lambda x: hvd.allreduce_(x.t(), name="h"))):
                w = torch.ones(2, 2, requires_grad=True)
                x = torch.full((2, 2), 1.0 + r)
                y = (x * w).sum()
                change(x)
                with self.assertRaisesRegex(RuntimeError, "inplace operation",
                                            msg=name):
                    y.backward()
            scalar = torch.tensor(1.0 + r)
            before = scalar._version
            hvd.allreduce_(scalar, name="i")
            self.assertGreater(scalar._version, before)
            with torch.inference_mode():
                made_there = torch.full((2, 2), float(r))
                self.assertEqual(hvd.allreduce_(torch.ones(2) * r, name="j").tolist(), [0.5, 0.5])
            # Torch stores in such tensors in that mode only.
            hvd.allreduce_(made_there, name="k")
            hvd.allreduce_(made_there.t(), op=hvd.Sum, name="l")
            hvd.allreduce_(made_there[:1].expand(3, 2), op=hvd.Sum, name="m")
            return made_there.tolist()

        self.assertEqual(self.both(rank), [[[2.0, 2.0], [1.0, 1.0]]] * 2)


if __name__ == "__main__":
    unittest.main()
