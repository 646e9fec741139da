"""maypole.torch over the real library, in a job of one rank."""

import gc
import os
import socket
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

import torch

import maypole
import maypole.arrays
import maypole.torch as hvd
from maypole import _native
from maypole.common import basics, exceptions
from maypole.torch import _tensors


class SingleRankTest(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        for name in list(os.environ):
            if name.startswith("MAYPOLE_") and name != "MAYPOLE_LIBRARY":
                del os.environ[name]

    def setUp(self):
        hvd.init()

    def tearDown(self):
        hvd.shutdown()

    def test_identity(self):
        self.assertTrue(hvd.is_initialized())
        self.assertEqual((hvd.rank(), hvd.size()), (0, 1))
        self.assertEqual((hvd.local_rank(), hvd.local_size()), (0, 1))
        self.assertEqual((hvd.cross_rank(), hvd.cross_size()), (0, 1))
        self.assertTrue(hvd.is_homogeneous())
        self.assertEqual(hvd.global_process_set.ranks, [0])
        hvd.init()  # a second time: nothing happens
        hvd.shutdown()
        self.assertFalse(hvd.is_initialized())
        for call in (hvd.rank, hvd.size, hvd.barrier,
                     lambda: hvd.allreduce(torch.ones(1))):
            with self.assertRaisesRegex(ValueError, "not been initialized"):
                call()

    def test_allreduce_of_every_dtype(self):
        for dtype in (torch.float16, torch.bfloat16, torch.float32,
                      torch.float64, torch.int32, torch.int64, torch.uint8):
            x = torch.arange(1000).remainder(100).to(dtype).reshape(10, 100)
            result = hvd.allreduce(x, name=f"x.{dtype}")
            self.assertTrue(torch.equal(result, x), dtype)
            self.assertNotEqual(result.data_ptr(), x.data_ptr())
            y = x.clone()
            self.assertIs(hvd.allreduce_(y, op=hvd.Sum), y)
            self.assertTrue(torch.equal(y, x), dtype)

    def test_scale_factors(self):
        x = torch.tensor([1.0, -2.0, 0.5])
        result = hvd.allreduce(x, op=hvd.Sum, prescale_factor=3.0,
                               postscale_factor=0.5)
        self.assertEqual(result.tolist(), [1.5, -3.0, 0.75])

    def test_scale_factors_of_integers(self):
        cases = (
            # dtype, inputs, prescale, postscale, results
            (torch.int32, [5, -5, 3], 0.5, 1.0, [2, -2, 1]),
            (torch.int64, [2**62, -2**62, 7], 1.0, 4.0,
             [2**63 - 1, -2**63, 28]),
            (torch.uint8, [200, 3, 1], 2.0, 1.0, [255, 6, 2]),
            (torch.uint8, [200, 3, 1], -1.0, 1.0, [0, 0, 0]),
            (torch.int8, [100, -100, 9], 1.0, 1.5, [127, -128, 13]),
            (torch.int16, [1, -1, 0], float("inf"), 1.0, [32767, -32768, 0]),
            (torch.int32, [1, -1, 5], 1.0, float("nan"), [0, 0, 0]),
        )
        for dtype, values, pre, post, want in cases:
            x = torch.tensor(values, dtype=dtype)
            factors = {"prescale_factor": pre, "postscale_factor": post}
            for op in (hvd.Sum, hvd.Average, hvd.Max):
                got = hvd.allreduce(x, op=op, **factors)
                self.assertEqual(got.tolist(), want, (dtype, op))
                self.assertEqual(got.dtype, dtype)
            self.assertEqual(x.tolist(), values)
            y = x.clone()
            self.assertIs(hvd.allreduce_(y, op=hvd.Sum, **factors), y)
            self.assertEqual(y.tolist(), want)
            rows = torch.stack((x, x)).t()  # not contiguous
            hvd.allreduce_(rows, op=hvd.Sum, **factors)
            self.assertEqual(rows.t().tolist(), [want, want])
            got = hvd.reducescatter(x, op=hvd.Sum, **factors)
            self.assertEqual(got.tolist(), want)
            for got in hvd.grouped_allreduce([x, x], op=hvd.Sum, **factors):
                self.assertEqual(got.tolist(), want)
        with self.assertRaisesRegex(ValueError, "bool"):
            hvd.allreduce(torch.ones(1) > 0, op=hvd.Sum, prescale_factor=2.0)

    def test_adasum_of_one_rank(self):
        x = torch.randn(3, 5)
        self.assertTrue(torch.equal(hvd.allreduce(x, op=hvd.Adasum), x))
        half = hvd.allreduce(x, op=hvd.Adasum, name="x", postscale_factor=0.5)
        self.assertTrue(torch.equal(half, x / 2))
        handle = hvd.grouped_allreduce_async([x, x.double()], op=hvd.Adasum)
        self.assertTrue(torch.equal(hvd.synchronize(handle)[1], x.double()))
        with self.assertRaisesRegex(ValueError, "'n'.*floating.*int64"):
            hvd.allreduce(torch.ones(1, dtype=torch.int64), op=hvd.Adasum,
                          name="n")

    def test_shapes(self):
        for shape in ((), (0,), (0, 3), (1, 1, 1, 1, 1, 1, 1, 2), (5, 0, 2)):
            x = torch.full(shape, 2.5)
            self.assertTrue(torch.equal(hvd.allreduce(x), x), shape)
            self.assertTrue(torch.equal(hvd.broadcast(x, 0), x), shape)
            gathered = hvd.allgather(x)
            self.assertEqual(tuple(gathered.shape), shape or (1,))
            self.assertTrue(torch.equal(gathered, x.reshape(gathered.shape)))
        transposed = torch.arange(6.0).reshape(2, 3).t()
        self.assertTrue(torch.equal(hvd.allreduce(transposed), transposed))

    def test_every_dtype_travels(self):
        for dtype in (torch.int8, torch.int16, torch.bool, torch.uint8,
                      torch.bfloat16, torch.int64):
            x = torch.tensor([1, 0, 1], dtype=dtype)
            self.assertTrue(torch.equal(hvd.allgather(x, "a"), x), dtype)
            self.assertTrue(torch.equal(hvd.broadcast(x, 0, "b"), x), dtype)

    def test_every_reduction(self):
        for dtype in (torch.bool, torch.int8, torch.int16, torch.uint8,
                      torch.int64, torch.bfloat16, torch.float32):
            x = torch.tensor([1, 0, 1, 1, 0], dtype=dtype)
            for op in (hvd.Sum, hvd.Min, hvd.Max, hvd.Product):
                result = hvd.allreduce(x, op=op)
                self.assertTrue(torch.equal(result, x), (dtype, op))

    def test_alltoall_and_reducescatter(self):
        x = torch.arange(6.0).reshape(3, 2)
        self.assertTrue(torch.equal(hvd.alltoall(x), x))
        rows, received = hvd.alltoall(x.t(), [2], "a")
        self.assertTrue(torch.equal(rows, x.t()))
        self.assertEqual((received.tolist(), received.dtype), ([2], torch.int32))
        self.assertEqual(hvd.alltoall(torch.ones(0, 2)).numel(), 0)
        self.assertTrue(torch.equal(hvd.reducescatter(x), x))
        doubled = hvd.reducescatter(x, op=hvd.Sum, postscale_factor=2.0)
        self.assertTrue(torch.equal(doubled, 2 * x))
        for call in (lambda: hvd.alltoall(x, [2]),
                     lambda: hvd.alltoall(x, [-1]),
                     lambda: hvd.alltoall(x, [2, 1]),
                     lambda: hvd.alltoall(torch.tensor(1.0)),
                     lambda: hvd.reducescatter(x, op=hvd.Max),
                     lambda: hvd.reducescatter(x, op=hvd.Adasum)):
            with self.assertRaises(ValueError):
                call()

    def test_groups(self):
        xs = [torch.ones(2), torch.arange(4)]
        for call in (hvd.grouped_allreduce, hvd.grouped_allreduce_,
                     hvd.grouped_allgather, hvd.grouped_reducescatter):
            for x, result in zip(xs, call(xs, name="g")):
                self.assertTrue(torch.equal(x, result), call)
        before = basics.counter("operations")
        for wrong in ([torch.ones(2), torch.tensor(True)], [torch.ones(1)] * 2):
            with self.assertRaises((ValueError, NotImplementedError)):
                hvd.grouped_allreduce(wrong, name="n" * 1000)
        self.assertEqual(basics.counter("operations"), before)

    def test_join(self):
        self.assertEqual(hvd.join(), 0)
        self.assertEqual(hvd.allreduce(torch.ones(1)).item(), 1.0)
        self.assertEqual(hvd.join(), 0)

    def test_process_sets(self):
        for ranks in ([0], [], [1], [0, 0], [-1]):
            with self.assertRaises(ValueError):
                hvd.add_process_set(ranks)
        with self.assertRaises(ValueError):
            hvd.init(process_sets=[hvd.ProcessSet([0])])
        gone = hvd.ProcessSet([0])
        gone.process_set_id = 5
        with self.assertRaisesRegex(ValueError, "no process set 5"):
            hvd.allreduce(torch.ones(1), process_set=gone)
        with self.assertRaisesRegex(ValueError, "no process set 5"):
            hvd.remove_process_set(gone)

    def test_gradients(self):
        x = torch.tensor([1.0, 2.0], requires_grad=True)
        for call in (hvd.alltoall, hvd.reducescatter,
                     lambda t: hvd.grouped_allgather([t])[0],
                     lambda t: hvd.grouped_reducescatter([t])[0]):
            x.grad = None
            (call(x) * 3).sum().backward()
            self.assertEqual(x.grad.tolist(), [3.0, 3.0])

    def test_gathered_memory_outlives_the_job(self):
        gathered = hvd.allgather(torch.arange(100000), "x")
        hvd.shutdown()
        gc.collect()
        self.assertEqual(gathered[99999].item(), 99999)

    def test_many_at_once(self):
        handles = [
            hvd.allreduce_async(torch.full((100,), float(i)), name=f"t{i}")
            for i in range(500)
        ]
        for i, handle in reversed(list(enumerate(handles))):
            self.assertEqual(hvd.synchronize(handle)[99].item(), i)
        self.assertEqual(basics.counter("pending"), 0)

    def test_errors_of_the_library(self):
        with self.assertRaises(ValueError):
            hvd.broadcast(torch.ones(1), 7, "root")
        with self.assertRaisesRegex(ValueError, "'flags'.*bool has no average"):
            hvd.allreduce(torch.ones(1) > 0, name="flags")
        with self.assertRaises(ValueError):
            hvd.allreduce(torch.ones(1), name="n" * 1000)

    def test_arguments_of_the_wrong_type(self):
        # One line in Maypole's words, and nothing is submitted.
        before = basics.counter("operations")
        x, n = torch.ones(2), torch.ones(2, dtype=torch.int32)
        reductions = [lambda **more: hvd.allreduce(x, **more), lambda **more: hvd.allreduce(n, **more),
                      lambda **more: hvd.allreduce_async_(x, **more), lambda **more: hvd.allreduce(x, op=hvd.Adasum, **more),
                      lambda **more: hvd.reducescatter(x, **more), lambda **more: hvd.grouped_allreduce([x], **more),
                      lambda **more: maypole.arrays.allreduce(x.numpy(), **more),
                      lambda **more: maypole.arrays.allreduce(x.numpy(), op=hvd.Adasum, **more),
                      lambda **more: maypole.arrays.reducescatter(n.numpy(), **more)]
        others = [lambda **more: hvd.allgather(x, **more), lambda **more: hvd.alltoall(x, **more),
                  lambda **more: hvd.grouped_allgather([x], **more), lambda **more: maypole.arrays.allgather(x.numpy(), **more)]
        broadcasts = [lambda root_rank=0, **more: hvd.broadcast(x, root_rank, **more),
                      lambda root_rank=0, **more: maypole.arrays.broadcast(x.numpy(), root_rank, **more)]
        for calls, arguments, kind, text in (
                (reductions + others + broadcasts, {"name": 5}, TypeError, "name=5, expected a string or None$"),
                (reductions + others + broadcasts, {"name": b"x"}, TypeError, "name=b'x', expected a string"),
                (reductions + others + broadcasts, {"name": "a\0b"}, ValueError, r"name='a\\x00b' contains a NUL character"),
                (reductions + others + broadcasts, {"name": "a\udcff"}, ValueError, r"name='a\\udcff'.*UTF-8"),
                (reductions, {"prescale_factor": "x"}, TypeError, "prescale_factor='x', expected a number$"),
                (reductions, {"postscale_factor": None}, TypeError, "postscale_factor=None, expected a number$"),
                (reductions, {"prescale_factor": 1j}, TypeError, "prescale_factor=1j, expected a number$"),
                (reductions, {"prescale_factor": torch.ones(2)}, TypeError, r"prescale_factor=tensor.*expected a number"),
                (broadcasts, {"root_rank": "0"}, TypeError, "root_rank='0', expected an integer$"),
                (broadcasts, {"root_rank": 0.0}, TypeError, "root_rank=0.0, expected an integer$")):
            for number, call in enumerate(calls):
                with self.subTest(arguments=arguments, call=number), self.assertRaisesRegex(kind, text):
                    call(**arguments)
        self.assertEqual(basics.counter("operations"), before)
        for factor in (2, True, torch.tensor(2.0)):  # numbers
            self.assertEqual(hvd.allreduce(x, name="\u00e9", prescale_factor=factor).tolist(), [float(factor)] * 2)

    def test_a_timeline_into_a_fifo(self):
        with tempfile.TemporaryDirectory() as directory:
            path = os.path.join(directory, "fifo")
            os.mkfifo(path)
            with self.assertRaisesRegex(ValueError, "/fifo' cannot be opened: it is a FIFO that no process reads"):
                hvd.start_timeline(path)
            reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
            try:
                hvd.start_timeline(path)
                hvd.allreduce(torch.ones(1), name="x")
                hvd.stop_timeline()
                self.assertIn(b"allreduce x", os.read(reader, 1 << 20))
            finally:
                os.close(reader)

    def test_a_timelines_path_with_a_nul(self):
        with self.assertRaisesRegex(ValueError, r"file_path='a\\x00b' contains a NUL"):
            hvd.start_timeline("a\0b")

    def test_host_memory_that_is_submitted_as_a_cuda_tensor(self):
        # With or without a driver, the library sees that it is none.
        x = torch.ones(2)
        with mock.patch.object(_tensors, "stream_of", lambda _: 0):
            for call in (lambda: hvd.allreduce(x, name="x"),
                         lambda: hvd.allgather(x, "x")):
                with self.assertRaisesRegex(Exception, "'x': "):
                    call()
        self.assertEqual(hvd.allreduce(x, name="x").tolist(), [1.0, 1.0])
        self.assertEqual(basics.counter("pending"), 0)
        with self.assertRaises(_native.StatusError):
            _native.library().copy_result(2**62, 0, 0)

    def test_training_and_objects(self):
        model = torch.nn.Linear(3, 1)
        optimizer = hvd.DistributedOptimizer(
            torch.optim.Adam(model.parameters()), model.named_parameters())
        hvd.broadcast_parameters(model.state_dict(), 0)
        model(torch.ones(2, 3)).sum().backward()
        optimizer.step()
        hvd.broadcast_optimizer_state(optimizer, 0)
        self.assertEqual(hvd.broadcast_object({"a": [1]}), {"a": [1]})
        self.assertEqual(hvd.allgather_object("x"), ["x"])
        hvd.barrier()

    def test_elastic_training_without_other_ranks(self):
        model = torch.nn.Linear(1, 1)
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), 0.1), model.named_parameters())
        state = hvd.elastic.TorchState(model, optimizer, step=0)
        interruptions = [hvd.HorovodInternalError(), hvd.HostsUpdatedInterrupt()]
        joins = basics.joins()

        @hvd.elastic.run
        def train(state):
            while state.step < 5:
                model(torch.ones(1, 1)).sum().backward()
                optimizer.step()
                state.step += 1
                if state.step in (2, 4) and interruptions:
                    raise interruptions.pop(0)
                state.commit()
            return hvd.allreduce(torch.tensor([float(state.step)])).item()

        self.assertEqual(train(state), 5.0)
        self.assertEqual(basics.joins(), joins + 2)
        self.assertEqual(_native.library().change_wanted(), 0)

    def test_a_forked_child_knows_its_place(self):
        # So that a worker of a DataLoader can seed, or choose its data, by the rank.
        child = os.fork()
        if child == 0:
            places = hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size(), hvd.cross_rank(), hvd.cross_size()
            knows = places == (0, 1, 0, 1, 0, 1) and hvd.is_homogeneous() and hvd.is_initialized()
            hvd.shutdown()
            os._exit(0 if knows and not hvd.is_initialized() else 3)
        self.assertEqual(os.waitpid(child, 0)[1], 0)
        self.assertTrue(hvd.is_initialized())
        self.assertEqual(hvd.allreduce(torch.ones(1)).item(), 1.0)

    def test_a_forked_child_cannot_join(self):
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            for call in (hvd.init, hvd.barrier, lambda: hvd.allreduce(torch.ones(1))):
                try:
                    call()
                except ValueError as error:
                    os.write(writer, f"{error}\n".encode())
            os._exit(0)
        os.close(writer)
        self.assertEqual(os.waitpid(child, 0)[1], 0)
        with os.fdopen(reader) as said:
            lines = said.read().splitlines()
        self.assertEqual(len(lines), 3, lines)
        self.assertEqual(set(lines), {exceptions.FORKED})

    def test_one_text_for_not_initialized(self):
        hvd.shutdown()
        for call in (hvd.rank, hvd.barrier, lambda: hvd.allreduce(torch.ones(1)),
                     lambda: hvd.broadcast_async(torch.ones(1), 0, "x"),
                     lambda: hvd.allgather(torch.ones(1))):
            with self.assertRaises(ValueError) as raised:
                call()
            self.assertEqual(str(raised.exception), exceptions.NOT_INITIALIZED)

    def test_an_unnamed_tensor_is_not_named(self):
        with self.assertRaises(ValueError) as raised:
            hvd.allreduce(torch.ones(1) > 0)
        self.assertNotIn("''", str(raised.exception))
        self.assertIn("allreduce", str(raised.exception))

    def test_version(self):
        self.assertRegex(maypole.__version__, r"^\d+\.\d+\.\d+$")
        with self.assertRaises(AttributeError):
            maypole.nothing  # pylint: disable=no-member,pointless-statement
        environment = dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path))
        environment["MAYPOLE_LIBRARY"] = _native.library().path
        output = subprocess.run([sys.executable, "-m", "maypole"],
                                env=environment, check=True, text=True,
                                stdout=subprocess.PIPE).stdout
        self.assertIn(f"maypole: {maypole.__version__}\n", output)
        self.assertIn("between nodes: TCP\n", output)
        self.assertIn("cuda: yes\n", output)


class StartTimeoutTest(unittest.TestCase):
    """MAYPOLE_START_TIMEOUT is kept, whoever does not move."""

    def setUp(self):
        directory = tempfile.TemporaryDirectory(prefix="mp", dir="/tmp")
        self.addCleanup(directory.cleanup)
        self.dir = directory.name

    def error(self, **variables):
        """What init() says in a process with these variables."""
        env = {k: v for k, v in os.environ.items() if not k.startswith("MAYPOLE_") or k == "MAYPOLE_LIBRARY"}
        env.update({"MAYPOLE_RANK": "0", "MAYPOLE_SIZE": "2", "MAYPOLE_LOCAL_RANK": "0", "MAYPOLE_LOCAL_SIZE": "2",
                    "MAYPOLE_CROSS_RANK": "0", "MAYPOLE_CROSS_SIZE": "1", "MAYPOLE_JOB": "j", "MAYPOLE_TOKEN": "t",
                    "MAYPOLE_START_TIMEOUT": "1"}, **variables)
        rank = subprocess.run([sys.executable, "-c", "from maypole.common import basics; basics.init()"], env=env,
                              timeout=30, stderr=subprocess.PIPE, text=True, check=False)
        self.assertNotEqual(rank.returncode, 0)
        return rank.stderr

    def listener(self):
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.addCleanup(listener.close)
        listener.bind(os.path.join(self.dir, "agent.sock"))
        listener.listen(0)
        return listener

    def test_an_agent_that_reads_nothing_is_named(self):
        path = self.listener().getsockname()
        self.assertIn("rank 0 waited 1 s for the agent at %s (pid %d), which does not read what this rank has sent" %
                      (path, os.getpid()), self.error(MAYPOLE_AGENT=path))

    def test_an_agent_whose_queue_is_full(self):
        path = self.listener().getsockname()
        waiting = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.addCleanup(waiting.close)
        waiting.connect(path)
        self.assertIn("no agent answers at %s within 1 s (MAYPOLE_START_TIMEOUT)" % path, self.error(MAYPOLE_AGENT=path))

    def test_a_node_service_that_is_never_ready(self):
        program = os.path.join(self.dir, "maypolerun")
        with open(program, "w") as f:
            f.write("#!/bin/sh\nexec sleep 60\n")
        os.chmod(program, 0o755)
        self.assertRegex(self.error(MAYPOLE_BIN=self.dir, MAYPOLE_RUNTIME_DIR=self.dir),
                         r"the node service in %s/\S+ \(%s --node-service\) is not ready within MAYPOLE_START_TIMEOUT; "
                         r"see \S+/log" % (self.dir, program))


if __name__ == "__main__":
    unittest.main()
