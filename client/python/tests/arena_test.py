"""maypole.torch.empty() and its memory, with a fake library."""

import gc
import os
import subprocess
import sys
import unittest
import warnings
from unittest import mock

import torch

import fake_library
from maypole import _native

_native.use(fake_library.FakeLibrary(1))
import maypole.torch as hvd  # pylint: disable=wrong-import-position
from maypole.torch import arena  # pylint: disable=wrong-import-position


def fallbacks(reason):
    return hvd.arena_statistics()["fallbacks"].get(reason, 0)


class ArenaTest(unittest.TestCase):

    def setUp(self):
        gc.collect()
        self.fake = fake_library.FakeLibrary(1)
        _native.use(self.fake)

    def test_shapes_dtypes_and_values(self):
        for size, shape in (((3, 4), (3, 4)), (((3, 4),), (3, 4)), ((7,), (7,)),
                            ((torch.Size([]),), ()), ((2, 0), (2, 0))):
            for dtype in (None, torch.float64, torch.bfloat16, torch.int64,
                          torch.bool, torch.uint8):
                tensor = hvd.empty(*size, dtype=dtype)
                self.assertEqual(tuple(tensor.shape), shape)
                self.assertEqual(tensor.dtype, dtype or torch.float32)
                self.assertTrue(tensor.is_contiguous())
                self.assertEqual(tensor.count_nonzero().item(), 0)
        weights = hvd.empty(4, requires_grad=True)
        (weights * 2).sum().backward()
        self.assertEqual(weights.grad.tolist(), [2.0] * 4)

    def test_empty_like(self):
        like = hvd.empty_like(torch.ones(3, 2, dtype=torch.float64).t())
        self.assertEqual(tuple(like.shape), (2, 3))
        self.assertTrue(like.is_contiguous())
        self.assertEqual(like.dtype, torch.float64)
        self.assertEqual(hvd.empty_like(torch.ones(()), dtype=torch.int32).dtype,
                         torch.int32)
        self.assertTrue(hvd.empty_like(like, requires_grad=True).requires_grad)

    def test_what_is_refused(self):
        with self.assertRaisesRegex(NotImplementedError, "'meta'.*CUDA"):
            hvd.empty_like(torch.empty(3, device="meta"))
        with self.assertRaises(RuntimeError):
            hvd.empty(-1)
        with self.assertRaises(TypeError):
            hvd.empty("three")
        self.fake.shutdown()
        for size in (3, 0):
            for device in (None, "cuda"):
                with self.assertRaisesRegex(ValueError, "not been initialized"):
                    hvd.empty(size, device=device)

    def test_no_room_on_a_cuda_device_is_ordinary_memory(self):
        arena._fallbacks.clear()
        self.fake.arena_limit = 40
        torch_empty, devices = torch.empty, []

        def empty(*size, **options):
            if options["device"] not in ("cpu", "meta"):
                devices.append(options.pop("device"))
            return torch_empty(*size, **options)

        with mock.patch.object(torch, "empty", empty):
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                tensor = hvd.empty(2, 3, dtype=torch.float64, device="cuda:1",
                                   requires_grad=True)
        self.assertEqual(devices, [torch.device("cuda:1")])
        self.assertEqual((tuple(tensor.shape), tensor.dtype),
                         ((2, 3), torch.float64))
        self.assertTrue(tensor.requires_grad)
        statistics = hvd.arena_statistics()
        self.assertEqual(statistics["fallbacks"], {"no_gpu_arena": 1})
        self.assertEqual(statistics["tensors"], 0)
        self.assertEqual(self.fake.counter("arena_bytes"), 0)
        self.assertEqual(self.fake.gpus, [])

    def test_memory_lives_as_long_as_any_view(self):
        tensor = hvd.empty(10)
        statistics = hvd.arena_statistics()
        self.assertEqual((statistics["bytes"], statistics["tensors"]), (40, 1))
        self.assertEqual(self.fake.counter("arena_bytes"), 40)
        holders = [tensor[3:], tensor.detach().numpy(), tensor.storage(),
                   tensor.view(2, 5)]
        parameter = torch.nn.Parameter(torch.zeros(10))
        parameter.grad = tensor
        holders.append(parameter)
        del tensor, parameter
        while holders:
            self.assertEqual(self.fake.counter("arena_bytes"), 40)
            holders.pop()
            gc.collect()
        self.assertEqual(self.fake.counter("arena_bytes"), 0)
        self.assertEqual(hvd.arena_statistics()["tensors"], 0)

    def test_a_tensor_outlives_the_job(self):
        tensor = hvd.empty(10)
        self.fake.shutdown()
        tensor.fill_(2.0)
        self.assertEqual(tensor.sum().item(), 20.0)
        del tensor
        gc.collect()
        self.assertEqual(self.fake.counter("arena_bytes"), 0)

    def test_a_full_arena_is_ordinary_memory_said_once(self):
        arena._fallbacks.clear()
        self.fake.arena_limit = 100
        first = hvd.empty(20)
        with self.assertWarnsRegex(UserWarning, "arena is full"):
            second = hvd.empty(20)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            third = hvd.empty_like(first)
        self.assertEqual(fallbacks("arena_full"), 2)
        self.assertEqual(self.fake.counter("arena_bytes"), 80)
        for tensor in (second, third):
            self.assertEqual(tensor.fill_(1.0).sum().item(), 20.0)

    def test_an_allreduce_in_place_runs_in_the_arena(self):
        tensor = hvd.empty(32)
        tensor.fill_(3.0)
        hvd.allreduce_(tensor, name="whole")
        hvd.allreduce_(tensor[16:], name="part")
        hvd.allreduce_(tensor[1:], name="not aligned")
        hvd.allreduce_(torch.ones(32), name="elsewhere")
        self.assertEqual(self.fake.arena_operations, ["whole", "part"])

    def test_the_interpreter_ends_with_tensors_alive(self):
        program = ("import fake_library\n"
                   "from maypole import _native\n"
                   "_native.use(fake_library.FakeLibrary(1))\n"
                   "import maypole.torch as hvd\n"
                   "hvd.init()\n"
                   "keep = hvd.empty(1000)\n"
                   "keep.cycle = keep\n")
        done = subprocess.run([sys.executable, "-c", program],
                              env=dict(os.environ,
                                       PYTHONPATH=os.pathsep.join(sys.path)),
                              stderr=subprocess.PIPE, text=True, check=False)
        self.assertEqual((done.returncode, done.stderr), (0, ""))


if __name__ == "__main__":
    unittest.main()
