"""Arrays of other libraries in maypole.torch: DLPack and NumPy."""

import unittest

import numpy
import torch

import fake_library
from maypole import _native

_native.use(fake_library.FakeLibrary(2))
import maypole.torch as hvd  # pylint: disable=wrong-import-position
from maypole.torch import _tensors  # pylint: disable=wrong-import-position


class Array:
    """An array of a library that torch does not know."""

    def __init__(self, tensor):
        self.tensor = tensor

    def __dlpack__(self, stream=None):
        return self.tensor.__dlpack__(stream=stream)

    def __dlpack_device__(self):
        return self.tensor.__dlpack_device__()


class ArraysTest(unittest.TestCase):

    def setUp(self):
        self.fake = fake_library.FakeLibrary(2)
        _native.use(self.fake)

    def both(self, function):
        results = fake_library.run_ranks(self.fake, function)
        self.assertEqual(self.fake.pending(), 0)
        return results

    def assert_tensor(self, tensor, values):
        self.assertIsInstance(tensor, torch.Tensor)
        self.assertEqual(tensor.tolist(), values)

    def test_in_place_operations_write_into_the_array(self):

        def rank(r):
            x = numpy.array([1.0 + r, 5.0])
            result = hvd.allreduce_(x, name="a")
            self.assertEqual(x.tolist(), [1.5, 5.0])
            self.assertEqual(result.data_ptr(), x.ctypes.data)
            hvd.synchronize(hvd.allreduce_async_(x, name="a", op=hvd.Sum))
            self.assertEqual(x.tolist(), [3.0, 10.0])
            hvd.grouped_allreduce_([x, x[:1]], name="g")
            hvd.synchronize(hvd.grouped_allreduce_async_([x], name="g"))
            self.assertEqual(x.tolist(), [3.0, 10.0])
            y = numpy.full((2, 3), r)
            self.assert_tensor(hvd.broadcast_(y.T, 1, "b"), [[1, 1]] * 3)
            self.assertEqual(y.tolist(), [[1] * 3] * 2)
            y.fill(r)
            hvd.synchronize(hvd.broadcast_async_(y, 1, "b"))
            self.assertEqual(y.tolist(), [[1] * 3] * 2)
            foreign = torch.tensor([float(r)])
            hvd.allreduce_(Array(foreign), name="f")
            self.assertEqual(foreign.tolist(), [0.5])

        self.both(rank)

    def check_out_of_place(self, rank, array):
        x = array([[1.0 + rank, 5.0]])
        mean, rows = [[1.5, 5.0]], [[1.0, 5.0], [2.0, 5.0]]
        for result in (
                hvd.allreduce(x, name="a"),
                hvd.allreduce(x, name="b", compression=hvd.Compression.fp16),
                hvd.synchronize(hvd.allreduce_async(x, name="c")),
                hvd.grouped_allreduce([x], name="d")[0],
                hvd.synchronize(hvd.grouped_allreduce_async([x], name="e"))[0]):
            self.assert_tensor(result, mean)
        for result in (
                hvd.allgather(x, "a"), hvd.synchronize(
                    hvd.allgather_async(x, "b")),
                hvd.grouped_allgather([x], "c")[0],
                hvd.synchronize(hvd.grouped_allgather_async([x], "d"))[0]):
            self.assert_tensor(result, rows)
        for result in (hvd.broadcast(x, 1, "a"), hvd.synchronize(
                hvd.broadcast_async(x, 1, "b"))):
            self.assert_tensor(result, [[2.0, 5.0]])
        own = mean if rank == 0 else []
        for result in (
                hvd.reducescatter(x, "a"), hvd.synchronize(
                    hvd.reducescatter_async(x, "b")),
                hvd.grouped_reducescatter([x], "c")[0],
                hvd.synchronize(hvd.grouped_reducescatter_async([x], "d"))[0]):
            self.assert_tensor(result, own)
        splits = array([1, 0])
        for result in (hvd.alltoall(x, splits, "a"), hvd.synchronize(
                hvd.alltoall_async(x, splits, "b"))):
            self.assert_tensor(result[0], rows if rank == 0 else [])
            self.assert_tensor(result[1], [1, 1] if rank == 0 else [0, 0])
            self.assertEqual(result[1].dtype, torch.int64)
        self.assert_tensor(hvd.allgather(array(3.0 + rank), "s"), [3.0, 4.0])

    def test_every_operation_takes_numpy_arrays(self):
        self.both(lambda r: self.check_out_of_place(r, numpy.array))

    def test_every_operation_takes_what_has_dlpack(self):
        self.both(lambda r: self.check_out_of_place(
            r, lambda values: Array(torch.tensor(values))))

    def test_fp16_compresses_arrays(self):
        x = numpy.ones(2)
        seen = []

        class Spy(hvd.Compression.fp16):

            @staticmethod
            def compress(tensor):
                small, ctx = hvd.Compression.fp16.compress(tensor)
                seen.append(small.dtype)
                return small, ctx

        def rank(_):
            hvd.allreduce(x, name="a", compression=Spy)
            hvd.reducescatter(x, "a", compression=Spy)
            hvd.grouped_allreduce([x], name="g", compression=Spy)
            hvd.grouped_reducescatter([x], "g", compression=Spy)

        self.both(rank)
        self.assertEqual(seen, [torch.float16] * 8)

    def test_broadcast_parameters(self):

        def rank(r):
            arrays = {"x": numpy.array([r]), "t": torch.tensor([r])}
            hvd.broadcast_parameters(arrays, 1)
            self.assertEqual(arrays["x"].tolist(), [1])
            self.assertEqual(arrays["t"].tolist(), [1])

        self.both(rank)
        with self.assertRaisesRegex(ValueError, "ndarray"):
            hvd.broadcast_parameters(numpy.ones((2, 2)), 0)

    def test_numpy_dtypes_and_strides(self):
        for dtype in ("bool", "uint8", "int8", "int16", "int32", "int64",
                      "float16", "float32", "float64"):
            x = numpy.zeros(4, dtype)
            tensor = _tensors.as_tensor(x[::2], "allreduce", "x")
            tensor.fill_(1)
            self.assertEqual(x.tolist(), [1, 0, 1, 0], dtype)

    def test_a_tensor_is_passed_through(self):
        x = torch.nn.Parameter(torch.ones(1))
        self.assertIs(_tensors.as_tensor(x, "allreduce", "x"), x)

    def test_what_cannot_be_shared(self):
        read_only = numpy.ones(2)
        read_only.flags.writeable = False

        class Broken:

            def __dlpack__(self, stream=None):
                raise BufferError("it has been donated")

            def __dlpack_device__(self):
                return 1, 0

        reversed_array = Array(torch.ones(2))
        reversed_array.strides = (-8,)
        for array, text in ((read_only, "'x'.*ndarray: it is read-only"),
                            (numpy.ones(2)[::-1], "'x'.*negative strides"),
                            (reversed_array, "'x'.*negative strides"),
                            (numpy.array(["a"]), "'x'.*ndarray"),
                            (Broken(), "'x'.*Broken: it has been donated")):
            for call in (hvd.allreduce_, hvd.allreduce):
                with self.assertRaisesRegex(ValueError, text):
                    call(array, name="x")
        for call in (hvd.allreduce, hvd.allreduce_, hvd.allgather,
                     hvd.reducescatter, hvd.alltoall):
            for value in ([1.0], 3, None, numpy.float64(1.0)):
                with self.assertRaisesRegex(TypeError, "'x'.*__dlpack__"):
                    call(value, name="x")
        for call in (hvd.grouped_allreduce, hvd.grouped_reducescatter,
                     hvd.grouped_allgather, hvd.grouped_allreduce_):
            with self.assertRaisesRegex(TypeError, "'g.1of2'.*list"):
                call([numpy.ones(1), [1.0]], name="g")
        self.assertEqual(self.fake.submitted, [])


if __name__ == "__main__":
    unittest.main()
