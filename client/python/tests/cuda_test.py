"""CUDA tensors in maypole.torch, without a GPU.

CPU tensors stand for CUDA tensors: stream_of() is replaced, so that each of
them is "on" the stream that its thread has chosen. The fake library then writes
outputs in copy_result() only, as the real one does.
"""

import contextlib
import ctypes
import gc
import threading
import types
import unittest
from unittest import mock

import torch

import fake_library
from maypole import _native

_native.use(fake_library.FakeLibrary(2))
import maypole.torch as hvd  # pylint: disable=wrong-import-position
from maypole.torch import _autograd, _structures, _tensors, arena  # pylint: disable=wrong-import-position
from maypole.torch._gradients import buckets as _buckets, reducer as _reducer  # pylint: disable=wrong-import-position

_CONSTRUCTORS = (torch.empty, torch.zeros, torch.ones, torch.full, torch.tensor)


class OtherDefaultDevice(torch.overrides.TorchFunctionMode):
    """What torch.set_default_device() does; here to a device that no operation
    accepts."""

    def __torch_function__(self, func, types_, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if func in _CONSTRUCTORS:
            kwargs.setdefault("device", "meta")
        return func(*args, **kwargs)


class CudaTest(unittest.TestCase):

    def setUp(self):
        self.fake = fake_library.FakeLibrary(2)
        _native.use(self.fake)
        self.thread = threading.local()
        self.waits = []  # (tensor, the stream that the current one waits for)
        self.brought = []  # (tensor, the stream that it comes from)
        for name, function in (("stream_of", lambda _: self.thread.stream),
                               ("wait_for_stream",
                                lambda *args: self.waits.append(args)),
                               ("bring_to_current_stream",
                                lambda *args: self.brought.append(args))):
            patch = mock.patch.object(_tensors, name, function)
            patch.start()
            self.addCleanup(patch.stop)

    def both(self, function):
        """Runs function(rank); rank r has the current stream 10 + r."""

        def rank(r):
            self.thread.stream = 10 + r
            return function(r)

        return fake_library.run_ranks(self.fake, rank)

    @contextlib.contextmanager
    def stream(self, stream):
        before = getattr(self.thread, "stream", None)
        self.thread.stream = stream
        yield
        self.thread.stream = before

    def assert_one_copy_each(self, names):
        """Each rank has submitted and copied on its own stream."""
        self.assertEqual(
            self.fake.streams,
            {(r, name): 10 + r for r in range(2) for name in names})
        self.assertEqual(sorted((name, s) for name, _, s in self.fake.copies),
                         sorted((name, 10 + r) for name in names
                                for r in range(2)))
        self.assertEqual(self.fake.pending(), 0)

    def test_results_arrive_by_one_copy(self):

        def rank(r):
            x = torch.tensor([1.0 + r, 5.0])
            self.assertEqual(hvd.allreduce(x, name="a").tolist(), [1.5, 5.0])
            self.assertEqual(x.tolist(), [1.0 + r, 5.0])
            self.assertEqual(hvd.broadcast(x, 1, "b").tolist(), [2.0, 5.0])
            self.assertIs(hvd.allreduce_(x, name="c"), x)
            self.assertEqual(x.tolist(), [1.5, 5.0])
            y = torch.tensor([float(r)])
            self.assertIs(hvd.broadcast_(y, 1, "d"), y)
            self.assertEqual(y.tolist(), [1.0])
            rows = torch.arange(3.0) * (r + 1)
            self.assertEqual(hvd.reducescatter(rows, "e").tolist(),
                             [0.0, 1.5] if r == 0 else [3.0])
            self.assertEqual(hvd.allreduce(x, name="f",
                                           compression=hvd.Compression.fp16)
                             .tolist(), [1.5, 5.0])

        self.both(rank)
        self.assert_one_copy_each("abcdef")
        self.assertEqual({address for _, address, _ in self.fake.copies}, {0})
        self.assertEqual(self.brought, [])

    def test_adasum_is_one_operation(self):

        def rank(r):
            x = torch.tensor([3.0, 0.0] if r == 0 else [0.0, 5.0])
            with OtherDefaultDevice():
                result = hvd.allreduce(x, op=hvd.Adasum, name="now")
                handle = hvd.allreduce_async_(x, op=hvd.Adasum, name="later")
                self.assertIs(hvd.synchronize(handle), x)
            self.assertEqual((x.tolist(), result.tolist()), ([3.0, 5.0],) * 2)

        self.both(rank)
        self.assert_one_copy_each(["now", "later"])

    def test_a_gathered_result_is_copied_to_a_tensor_of_its_size(self):
        addresses = {}

        def rank(r):
            x = torch.full((r + 1, 2), float(r))
            rows = hvd.allgather(x, "g")
            self.assertEqual(rows.tolist(), [[0.0] * 2, [1.0] * 2, [1.0] * 2])
            self.assertEqual(rows.storage().size(), 6)
            splits = [1, 3] if r == 0 else [4, 0]
            received, counts = hvd.alltoall(torch.arange(4.0) + 10 * r, splits,
                                            "t")
            self.assertEqual(received.tolist(), [0, 10, 11, 12, 13]
                             if r == 0 else [1, 2, 3])
            self.assertEqual(counts.tolist(), [1, 4] if r == 0 else [3, 0])
            addresses[r] = {rows.data_ptr(), received.data_ptr()}
            return rows, received

        results = self.both(rank)  # alive, but their handles are released
        self.assert_one_copy_each("gt")
        for r in range(2):
            self.assertEqual({a for _, a, s in self.fake.copies if s == 10 + r},
                             addresses[r])
        del results

    def test_a_gather_of_nothing_copies_nothing_but_waits(self):

        def rank(_):
            self.assertEqual(tuple(hvd.allgather(torch.ones(0, 3), "g").shape),
                             (0, 3))
            rows, _ = hvd.alltoall(torch.ones(0, 3), [0, 0], "t")
            self.assertEqual(tuple(rows.shape), (0, 3))

        self.both(rank)
        # NCCL may still read the input of a rank that gets nothing.
        self.assertEqual(sorted(self.fake.copies),
                         [(name, 0, s) for name in "gt" for s in (10, 11)])
        self.assertEqual(self.fake.pending(), 0)

    def test_the_copy_is_on_the_stream_of_the_wait(self):
        outputs = {}

        def rank(r):
            x = torch.ones(2)
            handles = [hvd.allreduce_async_(x, name="a"),
                       hvd.allgather_async(x, "g"),
                       hvd.reducescatter_async(x, "r")]
            with self.stream(20 + r):
                results = [hvd.synchronize(handle) for handle in handles]
            self.assertIs(results[0], x)
            outputs[10 + r] = {id(results[0]), id(results[2])}
            return results  # alive, so that no id is used twice

        results = self.both(rank)
        self.assertEqual(set(self.fake.streams.values()), {10, 11})
        self.assertEqual(sorted(s for _, _, s in self.fake.copies),
                         [20] * 3 + [21] * 3)
        # A gathered result is made on the stream of the wait.
        for stream, ids in outputs.items():
            self.assertEqual({id(t) for t, s in self.brought if s == stream},
                             ids)
        # The others' input, x, too: NCCL may have read it.
        self.assertEqual(len(self.brought), 8)
        del results

    def test_not_contiguous(self):

        def rank(r):
            x = torch.arange(6.0).reshape(2, 3).t() * (r + 1)
            want = (torch.arange(6.0).reshape(2, 3).t() * 1.5).tolist()
            handle = hvd.allreduce_async_(x, name="x")
            self.assertIs(hvd.synchronize(handle), x)
            self.assertEqual(x.tolist(), want)
            self.assertEqual(hvd.allgather(x, "g").tolist(), want * 2)

        self.both(rank)
        self.assert_one_copy_each("xg")

    def test_groups(self):

        def rank(r):
            xs = [torch.tensor([1.0 + r]), torch.tensor([2.0, 4.0])]
            results = hvd.grouped_allreduce(xs, name="a")
            self.assertEqual([x.tolist() for x in results], [[1.5], [2.0, 4.0]])
            hvd.grouped_allreduce_(xs, name="i")
            self.assertEqual(xs[0].tolist(), [1.5])
            gathered = hvd.grouped_allgather(xs, "g")
            self.assertEqual(gathered[1].tolist(), [2.0, 4.0] * 2)

        self.both(rank)
        self.assert_one_copy_each(
            [f"{name}.{i}of2" for name in "aig" for i in range(2)])

    def test_gradients(self):

        def rank(r):
            x = torch.ones(r + 1, requires_grad=True)
            (hvd.allgather(x, "g") * torch.tensor([1.0, 2.0, 4.0]) *
             (r + 1)).sum().backward()
            self.assertEqual(x.grad.tolist(), [1.5] if r == 0 else [3.0, 6.0])
            x = torch.ones(2, requires_grad=True)
            hvd.allreduce(x * (r + 1), name="a").sum().backward()
            self.assertEqual(x.grad.tolist(), [r + 1.0] * 2)

        self.both(rank)

    def test_an_error_of_the_operation_copies_nothing(self):

        def rank(r):
            for call in (lambda: hvd.allreduce(torch.ones(2 + r), name="bad"),
                         lambda: hvd.allgather(torch.ones(1, 2 + r), "bad")
                         if r == 0 else hvd.allgather(
                             torch.ones(1, 2, dtype=torch.int32), "bad")):
                with self.assertRaisesRegex(hvd.HorovodInternalError,
                                            "bad: rank 0"):
                    call()

        self.both(rank)
        self.assertEqual(self.fake.copies, [])
        self.assertEqual(self.fake.pending(), 0)

    def test_a_copy_that_fails_is_the_operations_error(self):
        self.fake.copy_error = "the GPU was lost"

        def rank(_):
            for handle in (hvd.allreduce_async(torch.ones(1)),
                           hvd.allgather_async(torch.ones(1)),
                           hvd.alltoall_async(torch.ones(2))):
                with self.assertRaisesRegex(hvd.HorovodInternalError,
                                            "the GPU was lost"):
                    hvd.synchronize(handle)

        self.both(rank)
        self.assertEqual(len(self.fake.copies), 6)
        self.assertEqual(self.fake.pending(), 0)

    def test_cpu_on_one_rank_and_cuda_on_the_other(self):

        def rank(r):
            self.thread.stream = None if r == 0 else 5
            with self.assertRaises(hvd.HorovodInternalError):
                hvd.allreduce(torch.ones(1), name="x")

        self.both(rank)

    def train(self, **options):

        def rank(r):
            layer = torch.nn.Linear(3, 2)
            with torch.no_grad():
                layer.weight.fill_(0.5)
                layer.bias.fill_(0.1)
            optimizer = hvd.DistributedOptimizer(
                torch.optim.Adam(layer.parameters(), lr=0.1),
                layer.named_parameters(), **options)
            hvd.broadcast_parameters(layer.state_dict(), 0)
            for step in range(3):
                optimizer.zero_grad()
                layer(torch.arange(3.0) + r + step).square().sum().backward()
                optimizer.step()
            hvd.broadcast_optimizer_state(optimizer, 1)
            return layer.weight.tolist() + layer.bias.tolist()

        return self.both(rank)

    def test_training(self):
        results = [self.train(**options) for options in (
            {}, {"gradient_as_bucket_view": True})]
        self.assertEqual(results[0], results[1])
        self.assertEqual(results[0][0], results[0][1])
        self.assertIn("DistributedOptimizer.bias.bucket",
                      {name for name, _, _ in self.fake.copies})
        self.assertEqual(self.brought, [])
        self.assertEqual(self.waits, [])
        self.assertEqual(self.fake.pending(), 0)

    def test_a_bucket_waits_for_all_streams_that_compute_its_gradients(self):

        def rank(r):
            first, last = (torch.nn.Parameter(torch.ones(2)) for _ in range(2))
            optimizer = hvd.DistributedOptimizer(
                torch.optim.SGD([first, last], lr=0.1),
                [("first", first), ("last", last)],
                gradient_as_bucket_view=True)

            def on(stream):
                return lambda _: setattr(self.thread, "stream", stream)

            first.register_hook(on(10 + r))
            last.register_hook(on(30 + r))
            for _ in range(3):
                optimizer.zero_grad()
                (first * last).sum().backward()
                self.thread.stream = 10 + r
                optimizer.step()
            return first.grad.data_ptr(), last.grad.data_ptr()

        addresses = self.both(rank)
        # In the second and third step, whichever gradient comes last.
        for r in range(2):
            waits = [(tensor.data_ptr(), stream)
                     for tensor, stream in self.waits if stream % 10 == r]
            self.assertEqual([address in addresses[r] for address, _ in waits],
                             [True] * 2)
            self.assertLess({stream for _, stream in waits}, {10 + r, 30 + r})

    def test_each_result_is_on_the_device_of_its_input(self):
        # A tensor that is made without a device would be on another one.

        def rank(r):
            x, splits = torch.ones(2, requires_grad=True), torch.tensor([1, 1])
            with OtherDefaultDevice():
                self.assertEqual(torch.zeros(1).device.type, "meta")
                results = [hvd.allreduce(x, name="a"), hvd.allgather(x, "b"),
                           hvd.reducescatter(x, "c"), hvd.broadcast(x, 0, "d"),
                           *hvd.alltoall(x, splits, "e"),
                           *hvd.alltoall(x, [1, 1], "f")]
                # Not by backward(), in which torch disables the mode.
                context = types.SimpleNamespace(
                    rows=[2], name="g", process_set=hvd.global_process_set)
                _autograd.Allgather.backward(context,
                                             torch.ones_like(results[1]))
                objects = hvd.allgather_object(r)
                root = hvd.broadcast_object(r)
            self.assertEqual({t.device.type for t in results}, {"cpu"})
            self.assertEqual((objects, root), ([0, 1], 0))

        self.both(rank)
        self.thread.stream = None
        self.both_on_the_cpu(rank)

    def both_on_the_cpu(self, rank):

        def on_the_cpu(r):
            self.thread.stream = None
            rank(r)

        fake_library.run_ranks(self.fake, on_the_cpu)

    def test_state_is_received_on_the_type_of_device_that_it_came_from(self):
        parameters = [torch.nn.Parameter(torch.ones(1)),
                      torch.nn.Parameter(torch.ones(1, device="meta"))]
        optimizer = torch.optim.SGD(parameters, lr=0.1)
        tensors = []
        _structures.take_out(
            [torch.ones(2), torch.ones(3, device="meta")], tensors)
        specs = [_structures.TensorAt(i, t) for i, t in enumerate(tensors)]
        got = _structures.tensors_for(specs, optimizer)
        self.assertEqual([(t.device.type, tuple(t.shape)) for t in got],
                         [("cpu", (2,)), ("meta", (3,))])


class StreamsTest(unittest.TestCase):
    """The real functions, over a torch.cuda in Python."""

    def setUp(self):
        self.calls = []

        def stream(number):
            return types.SimpleNamespace(
                cuda_stream=number,
                wait_stream=lambda other: self.calls.append(
                    (number, "waits for", other.cuda_stream)))

        cuda = types.SimpleNamespace(
            current_stream=lambda device: stream(77 if device == "cuda:1" else
                                                 0),
            default_stream=lambda device: stream("default of " + device),
            ExternalStream=lambda number, device: stream(number))
        patch = mock.patch.object(torch, "cuda", cuda)
        patch.start()
        self.addCleanup(patch.stop)
        self.tensor = types.SimpleNamespace(
            is_cuda=True, device="cuda:1", data_ptr=lambda: 0x1000,
            record_stream=lambda s: self.calls
            .append(("used on", s.cuda_stream)))

    def test_stream_of(self):
        self.assertIsNone(_tensors.stream_of(torch.ones(1)))
        self.assertEqual(_tensors.stream_of(self.tensor), 77)
        self.tensor.device = "cuda:0"
        self.assertEqual(_tensors.stream_of(self.tensor), 0)

    def test_wait_for_stream(self):
        _tensors.wait_for_stream(self.tensor, 5)
        self.assertEqual(self.calls, [(77, "waits for", 5)])

    def test_bring_to_current_stream(self):
        _tensors.bring_to_current_stream(self.tensor, 5)
        _tensors.bring_to_current_stream(self.tensor, 0)
        self.assertEqual(self.calls, [
            (77, "waits for", 5), ("used on", 77),
            (77, "waits for", "default of cuda:1"), ("used on", 77)
        ])

    def array(self, **interface):
        """A Numba array, say, and the tensor that torch makes of it."""
        shared = torch.ones(3)
        made = mock.Mock(wraps=shared, device="cuda:1")
        made.numel.return_value = 3
        as_tensor = mock.patch.object(torch, "as_tensor", return_value=made)
        as_tensor.start()
        self.addCleanup(as_tensor.stop)
        interface = {"data": (shared.data_ptr(), False), **interface}
        return types.SimpleNamespace(__cuda_array_interface__=interface), made

    def test_cuda_array_interface(self):
        array, made = self.array(stream=5)
        self.assertIs(_tensors.as_tensor(array, "allreduce", "x"), made)
        self.assertEqual(self.calls, [(77, "waits for", 5)])
        torch.as_tensor.assert_called_once_with(array, device="cuda")

    def test_cuda_array_interface_without_pending_work(self):
        for interface in ({}, {"stream": None}):
            array, made = self.array(**interface)
            self.assertIs(_tensors.as_tensor(array, "allreduce", "x"), made)
        self.assertEqual(self.calls, [])

    def test_a_copy_of_an_array_is_refused(self):
        array, _ = self.array(data=(0x1000, False))
        with self.assertRaisesRegex(ValueError, "'x'.*current CUDA device"):
            _tensors.as_tensor(array, "allreduce", "x")



class SharedMemoryTest(unittest.TestCase):
    """Tensors in memory that a CUDA device's executor shares: the real
    functions, over a torch.cuda and a torch.as_tensor() in Python."""

    def setUp(self):
        gc.collect()
        self.fake = fake_library.FakeLibrary(1)
        _native.use(self.fake)
        arena._fallbacks.clear()
        self.stream = 10
        self.seen = []  # (device, interface) of each as_tensor()
        cuda = types.SimpleNamespace(
            current_device=lambda: 3,
            current_stream=lambda device: types.SimpleNamespace(
                cuda_stream=self.stream, wait_stream=lambda other: None),
            ExternalStream=lambda number, device: None)
        for name, replacement in (("cuda", cuda),
                                  ("as_tensor", self.as_tensor)):
            patch = mock.patch.object(torch, name, replacement)
            patch.start()
            self.addCleanup(patch.stop)

    def as_tensor(self, array, device):
        """As torch, which holds the array as long as the tensor's storage."""
        interface = array.__cuda_array_interface__
        self.seen.append((device, interface))
        address, read_only = interface["data"]
        self.assertFalse(read_only)
        memory = (ctypes.c_ubyte *
                  interface["shape"][0]).from_address(address)
        memory.held = array
        return torch.frombuffer(memory, dtype=torch.uint8)

    def freed(self):
        gc.collect()
        return [streams for _, streams in self.fake.freed_on_gpu]

    def test_shapes_dtypes_and_values(self):
        for dtype in (None, torch.float64, torch.bfloat16, torch.int64,
                      torch.bool, torch.uint8):
            tensor = hvd.empty(3, 5, dtype=dtype, device="cuda")
            self.assertEqual((tuple(tensor.shape), tensor.dtype),
                             ((3, 5), dtype or torch.float32))
            self.assertIn(tensor.data_ptr(), self.fake.gpu_memory)
            self.assertTrue(tensor.is_contiguous())
            tensor.copy_(torch.arange(15).reshape(3, 5))
            self.assertEqual(tensor.tolist(),
                             torch.arange(15).reshape(3, 5)
                             .to(tensor.dtype).tolist())
            size = tensor.numel() * tensor.element_size()
            self.assertEqual(hvd.arena_statistics(), {
                "bytes": size, "tensors": 1, "fallbacks": {}})
            self.assertEqual(self.seen.pop(), (torch.device("cuda:3"), {
                "shape": (size,), "typestr": "|u1", "strides": None,
                "data": (tensor.data_ptr(), False), "stream": None,
                "version": 3}))
            del tensor
            gc.collect()
            self.assertEqual(self.fake.gpu_memory, {})
        self.assertEqual(self.fake.counter("arena_bytes"), 0)
        self.assertEqual(hvd.arena_statistics()["tensors"], 0)

    def test_it_is_on_the_device_that_was_named(self):
        tensor = hvd.empty(4, device="cuda:1", requires_grad=True)
        self.assertTrue(tensor.requires_grad)
        other = hvd.empty(4, device=torch.device("cuda"))
        self.assertEqual(self.fake.gpus, [1, 3])
        self.assertEqual([device.index for device, _ in self.seen], [1, 3])
        del tensor, other

    def test_memory_lives_as_long_as_any_view(self):
        tensor = hvd.empty(10, device="cuda").fill_(2.0)
        holders = [tensor[3:], tensor.storage(), tensor.view(2, 5)]
        del tensor
        self.fake.shutdown()  # it outlives the job
        while holders:
            self.assertEqual(self.freed(), [])
            self.assertEqual(hvd.arena_statistics()["bytes"], 40)
            holders.pop()
        self.assertEqual(self.freed(), [[10]])
        self.assertEqual(self.fake.gpu_memory, {})

    def test_it_is_freed_in_the_order_of_the_streams_that_used_it(self):
        tensor = hvd.empty(10, device="cuda")
        self.stream = 4
        del tensor
        self.assertEqual(self.freed(), [[4, 10]])
        # The result of an operation that another stream has waited for.
        tensors = [hvd.empty(10, device="cuda") for _ in range(2)]
        self.stream = 7
        for part in (tensors[0], tensors[0][5:]):
            on_device = types.SimpleNamespace(
                device="cuda:3", data_ptr=part.data_ptr,
                record_stream=lambda stream: None)
            _tensors.bring_to_current_stream(on_device, 4)
        self.stream = 5
        del part, on_device, tensors[0]
        self.assertEqual(self.freed()[1:], [[4, 5, 7]])
        del tensors[0]
        self.assertEqual(self.freed()[2:], [[4, 5]])

    def test_a_size_of_zero_needs_none(self):
        with mock.patch.object(torch, "empty", wraps=torch.empty) as empty:
            empty.side_effect = lambda *size, **options: torch.zeros(
                *size, dtype=options["dtype"])
            tensor = hvd.empty(0, 2, device="cuda")
        self.assertEqual(tuple(tensor.shape), (0, 2))
        self.assertEqual((self.fake.gpus, hvd.arena_statistics()["fallbacks"]),
                         ([], {}))

    def test_other_errors_are_raised(self):
        self.fake.allocate_on_gpu = mock.Mock(side_effect=_native.StatusError(
            _native.INVALID_ARGUMENT, "there is no NVIDIA driver"))
        with self.assertRaisesRegex(ValueError, "no NVIDIA driver"):
            hvd.empty(3, device="cuda")

    def test_a_torch_that_cannot_use_the_memory_has_ordinary_tensors(self):

        def as_tensor(array, device):
            raise TypeError("no NumPy")

        torch.as_tensor = as_tensor
        torch_zeros = torch.zeros
        with mock.patch.object(torch, "zeros", lambda count, dtype, device:
                               torch_zeros(count, dtype=dtype)):
            with self.assertWarnsRegex(UserWarning, "no NumPy"):
                bucket = arena.zeros_flat(3, torch.float32,
                                          torch.device("cuda"))
        self.assertEqual(bucket.tolist(), [0.0] * 3)
        self.assertEqual(self.freed(), [[10]])
        self.assertEqual(hvd.arena_statistics(), {
            "bytes": 0, "tensors": 0, "fallbacks": {"no_gpu_arena": 1}})

    def test_a_bucket_is_zeroed(self):
        bucket = arena.zeros_flat(100, torch.float32, torch.device("cuda"))
        self.assertIn(bucket.data_ptr(), self.fake.gpu_memory)
        self.assertEqual(bucket.tolist(), [0.0] * 100)

    def test_gradient_buckets(self):
        parameter = torch.nn.Parameter(torch.ones(10))
        parameter.grad = torch.arange(10.0)
        zeros_flat = arena.zeros_flat
        with mock.patch.object(
                arena, "zeros_flat", lambda count, dtype, _: zeros_flat(
                    count, dtype, torch.device("cuda:2"))):
            buckets = _buckets.Buckets(2**20)
            buckets.add([parameter], {parameter: "p"})
        self.assertEqual(self.fake.gpus, [2])
        self.assertIn(parameter.grad.data_ptr(), self.fake.gpu_memory)
        self.assertEqual(parameter.grad.tolist(), list(range(10)))

    def test_sparse_results_are_coalesced_so_that_all_ranks_round_alike(self):
        hvd.init()
        p = torch.nn.Parameter(torch.zeros(3, 1))
        p.grad = gathered = torch.sparse_coo_tensor([[1, 1]], [[0.5], [0.25]], (3, 1))
        result = mock.Mock(is_cuda=True, coalesce=gathered.coalesce)
        reducer = _reducer.Reducer(hvd.Compression.none, hvd.Average, 1.0, False, True, hvd.global_process_set)
        with mock.patch.object(_reducer, "sparse_allreduce_async", return_value=lambda: result):
            reducer.start(p, "p")()
        self.assertTrue(p.grad.is_coalesced())
        self.assertEqual(p.grad.to_dense().tolist(), [[0.0], [0.75], [0.0]])


if __name__ == "__main__":
    unittest.main()
