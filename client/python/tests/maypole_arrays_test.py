"""`import maypole` on arrays: results between two thread ranks, memory, DLPack, errors; nothing is loaded too early."""

import gc
import subprocess
import sys
import unittest

import numpy
import torch

import fake_library
from maypole import _native

_native.use(fake_library.FakeLibrary(2))
import maypole as hvd  # pylint: disable=wrong-import-position
from maypole.arrays import _dlpack  # pylint: disable=wrong-import-position


class Array:
    """An array of a library that NumPy does not know."""

    def __init__(self, tensor, device=(1, 0)):
        self.tensor = tensor
        self.device = device

    def __dlpack__(self, stream=None):
        return self.tensor.__dlpack__(stream=stream)

    def __dlpack_device__(self):
        return self.device


class MaypoleArraysTest(unittest.TestCase):

    def setUp(self):
        self.fake = fake_library.FakeLibrary(2)
        _native.use(self.fake)

    def both(self, function):
        results = fake_library.run_ranks(self.fake, function)
        gc.collect()
        self.assertEqual(self.fake.pending(), 0)
        return results

    def test_results_are_new_arrays_and_in_place_ones_the_given_object(self):

        def rank(r):
            x = numpy.array([[1.0 + r, 5.0]])
            mean = hvd.allreduce(x, name="a")
            self.assertEqual((mean.tolist(), x.tolist()), ([[1.5, 5.0]], [[1.0 + r, 5.0]]))
            rows = hvd.allgather(x)
            rows[0, 0] = 7.0  # the result is the caller's
            del rows
            self.assertEqual(hvd.alltoall(numpy.array([r, r]), [1, 1])[0].tolist(), [0, 1])
            foreign = torch.tensor([[1.0, 2.0], [3.0, 4.0]]) * (r + 1)
            array = Array(foreign.t())  # not contiguous
            self.assertIs(hvd.allreduce_(array, op=hvd.Sum), array)
            self.assertEqual(foreign.tolist(), [[3.0, 6.0], [9.0, 12.0]])
            self.assertIs(hvd.broadcast_(x, 1), x)
            self.assertEqual(x.tolist(), [[2.0, 5.0]])

        self.both(rank)

    def test_memory_lives_until_the_operation_has_ended(self):

        def rank(r):
            handle = hvd.allreduce_async(numpy.full(1000, float(r)), name="a")
            group = hvd.grouped_allreduce_async([Array(torch.full((1000,), float(r)))], name="g")
            gc.collect()
            self.assertEqual(set(hvd.synchronize(handle)), {0.5})
            self.assertEqual(set(hvd.synchronize(group)[0]), {0.5})

        self.both(rank)

    def test_dlpack_views(self):
        for dtype in (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.float32,
                      torch.float64):
            tensor = torch.arange(24).to(dtype).reshape(2, 3, 4)
            for part in (tensor, tensor.transpose(0, 2), tensor[:, 1:, ::2], tensor[1, 2, 3], tensor[:0]):
                array = _dlpack.view(Array(part))
                self.assertEqual((array.tolist(), array.dtype.name), (part.tolist(), str(part.dtype)[6:]))
                if part.numel():
                    self.assertEqual(array.__array_interface__["data"][0], part.data_ptr())

    def test_a_view_keeps_the_memory_alive(self):
        array = _dlpack.view(Array(torch.full((100000,), 3.0)))
        others = [torch.zeros(100000) for _ in range(10)]
        self.assertEqual((set(array), len(others)), ({3.0}, 10))

    def test_what_is_refused(self):
        read_only = numpy.ones(2)
        read_only.flags.writeable = False
        for array, text in ((read_only, "'x'.*ndarray is read-only.*new array"),):
            with self.assertRaisesRegex(ValueError, text):
                hvd.allreduce_(array, name="x")

        class OnGpu:
            __cuda_array_interface__ = {}

        for array, text in ((numpy.array(["a"]), "'x'.*dtype <U1 is not supported.*float32"),
                            (numpy.ones(1, "complex64"), "'x'.*complex64"),
                            (numpy.ones(1, ">f4"), "'x'.*>f4.*byte order"),
                            (numpy.ones((1,) * 9), "'x'.*9 dimensions.*at most 8"),
                            (Array(torch.ones(1), (2, 1)), "'x'.*Array.*device 2:1.*host memory.*maypole.torch"),
                            (OnGpu(), "'x'.*OnGpu.*GPU.*maypole.torch"),
                            (torch.ones(1, requires_grad=True), "'x'.*Tensor cannot be shared.*grad"),
                            (Array(torch.ones(1, dtype=torch.complex64)), r"'x'.*NumPy has no dtype.*code 5, 64 bits")):
            for call in (hvd.allreduce, hvd.allreduce_):
                with self.assertRaisesRegex(ValueError, text):
                    call(array, name="x")
        for call, value in ((hvd.allreduce, [1.0]), (hvd.allreduce, None), (hvd.allreduce_, 1.0),
                            (hvd.allreduce_, numpy.float64(1.0)), (hvd.allgather, "text")):
            with self.assertRaisesRegex(TypeError, "'x'.*expected a.*NumPy array.*got " + type(value).__name__):
                call(value, name="x")
        for call, text in ((lambda: hvd.reducescatter(1.0, "x"), "'x'.*scalar.*reshape"),
                           (lambda: hvd.allreduce(1, name="x", op=hvd.Adasum), "'x'.*Adasum.*floating.*int64"),
                           (lambda: hvd.allreduce_async(1, name="x", op=hvd.Adasum), "'x'.*Adasum.*floating.*int64"),
                           (lambda: hvd.reducescatter(numpy.ones(2), "x", op=hvd.Adasum), "'x'.*Adasum.*of allreduce"),
                           (lambda: hvd.allreduce(1.0, average=True, op=hvd.Sum), "both average and op"),
                           (lambda: hvd.alltoall(numpy.ones(2), numpy.ones(2), "x"), "'x'.*float64.*int32 or int64"),
                           (lambda: hvd.alltoall(numpy.ones(2), [1.5], "x"), "'x'.*integers")):
            with self.assertRaisesRegex(ValueError, text):
                call()
        self.assertEqual(self.fake.submitted, [])

    def test_integers_are_scaled_within_their_range(self):

        def rank(_):
            for dtype, value, factor, want in (("int8", 100, 2.0, 127), ("int8", -100, 2.0, -128), ("uint8", 7, 0.5, 3),
                                               ("int64", 2**62, 2.0, 2**63 - 1), ("int64", 5, float("nan"), 0)):
                x = numpy.array([value], dtype)
                self.assertEqual(hvd.allreduce(x, op=hvd.Max, prescale_factor=factor).tolist(), [want])

        self.both(rank)

    def test_an_elastic_state_of_arrays(self):
        self.fake = fake_library.FakeLibrary(1)
        _native.use(self.fake)
        calls = []

        @hvd.elastic.run
        def train(state):
            calls.append((state.step, state.weights.tolist()))
            state.weights += 1
            state.step += 1
            if len(calls) == 1:
                raise hvd.HostsUpdatedInterrupt()
            state.commit()
            state.weights += 1
            if len(calls) == 2:
                raise hvd.HorovodInternalError("lost")
            return state.weights.tolist()

        state = hvd.elastic.ObjectState(hvd.broadcast_object, hvd.rank, weights=numpy.zeros(2), step=0)
        self.assertEqual(train(state), [4.0, 4.0])
        self.assertEqual(calls, [(0, [0.0, 0.0]), (1, [1.0, 1.0]), (2, [2.0, 2.0])])

    def test_nothing_is_loaded_too_early(self):
        code = ("import sys, maypole; maypole.init; maypole.broadcast_object; maypole.elastic; from maypole import runner; "
                "dir(maypole); print({'numpy', 'torch', 'maypole.torch'} & set(sys.modules))")
        done = subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": ":".join(sys.path)}, capture_output=True, text=True)
        self.assertEqual((done.stdout, done.stderr), ("set()\n", ""))

    def test_every_name_is_there(self):
        for name in dir(hvd):
            getattr(hvd, name)
        with self.assertRaisesRegex(AttributeError, "no attribute 'alreduce'"):
            hvd.alreduce  # pylint: disable=pointless-statement


if __name__ == "__main__":
    unittest.main()
