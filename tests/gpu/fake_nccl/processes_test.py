"""Ranks in processes of their own, and what MAYPOLE_FAKE_NCCL says."""

import array
import ctypes
import os
import select
import signal
import sys
import time
import traceback
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
CUDA = os.path.join(os.path.dirname(HERE), "fake")
SUCCESS, CUDA_ERROR, SYSTEM, INTERNAL, ARGUMENT, USAGE, REMOTE, IN_PROGRESS = range(8)
FLOAT, SUM = 7, 0
UNDEFINED = -2**31
SECONDS = 20  # none of the waits takes so long


class UniqueId(ctypes.Structure):
    _fields_ = [("internal", ctypes.c_char * 128)]


class Config(ctypes.Structure):
    """ncclConfig_t up to `blocking`; the rest is undefined or null."""
    _fields_ = [("size", ctypes.c_size_t), ("magic", ctypes.c_uint), ("version", ctypes.c_uint),
                ("blocking", ctypes.c_int), ("rest", ctypes.c_int * 30)]


class Nccl:
    """One rank, in the process that has made this object."""

    def __init__(self, cuda):
        if cuda:  # before NCCL looks for it
            self.cuda = ctypes.CDLL(os.path.join(CUDA, "libcuda.so.1"))
        self.nccl = ctypes.CDLL(os.path.join(HERE, "libnccl.so.2"))
        self.nccl.ncclGetLastError.restype = ctypes.c_char_p
        self.comm = ctypes.c_void_p()
        if cuda:
            context, self.stream = ctypes.c_void_p(), ctypes.c_void_p()
            self.memory = ctypes.c_uint64()
            assert self.cuda.cuInit(0) == 0
            assert self.cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
            assert self.cuda.cuCtxSetCurrent(context) == 0
            assert self.cuda.cuStreamCreate(ctypes.byref(self.stream), 1) == 0
            assert self.cuda.cuMemAlloc_v2(ctypes.byref(self.memory), ctypes.c_size_t(4 << 20)) == 0

    def version(self):
        value = ctypes.c_int()
        assert self.nccl.ncclGetVersion(ctypes.byref(value)) == 0
        return value.value

    def new_id(self):
        unique = UniqueId()
        return self.nccl.ncclGetUniqueId(ctypes.byref(unique)) or bytes(unique)

    def init(self, unique, ranks, rank, blocking=0):
        """What the call returns."""
        config = Config(128, 0xcafebeef, 22809, blocking, tuple([UNDEFINED] * 30))
        return self.nccl.ncclCommInitRankConfig(ctypes.byref(self.comm), ranks, UniqueId.from_buffer_copy(unique), rank,
                                                ctypes.byref(config))

    def state(self):
        state = ctypes.c_int()
        assert self.nccl.ncclCommGetAsyncError(self.comm, ctypes.byref(state)) == 0
        return state.value

    def ready(self, not_state=IN_PROGRESS):
        end = time.monotonic() + SECONDS
        while self.state() == not_state:
            assert time.monotonic() < end
            time.sleep(0.001)
        return self.state()

    def error(self):
        return self.nccl.ncclGetLastError(None).decode()

    def write(self, values):
        data = array.array("f", values).tobytes()
        assert self.cuda.cuMemcpyAsync(self.memory, data, ctypes.c_size_t(len(data)), self.stream) == 0

    def read(self, count):
        data = ctypes.create_string_buffer(4 * count)
        assert self.cuda.cuMemcpyAsync(data, self.memory, ctypes.c_size_t(4 * count), self.stream) == 0
        return list(array.array("f", data.raw))

    def allreduce(self, count=1, op=SUM):
        return self.nccl.ncclAllReduce(self.memory, self.memory, ctypes.c_size_t(count), FLOAT, op, self.comm,
                                       self.stream)

    def broadcast(self, root=0):
        return self.nccl.ncclBroadcast(self.memory, self.memory, ctypes.c_size_t(1), FLOAT, root, self.comm,
                                       self.stream)

    def abort(self):
        return self.nccl.ncclCommAbort(self.comm)

    def destroy(self):
        return self.nccl.ncclCommDestroy(self.comm)

    def idle(self):
        return self.cuda.cuStreamQuery(self.stream) == 0


def child(requests, answers, cuda):
    """Evaluates the expressions that the test writes, and writes their values."""
    rank = Nccl(cuda)
    answers.write("None\n")
    answers.flush()
    for line in requests:
        answers.write(repr(eval(line, {"rank": rank})) + "\n")  # pylint: disable=eval-used
        answers.flush()


class Process:
    """A forked process with one rank. Calls may be begun in several before their ends are awaited."""

    def __init__(self, test, device=0, config="", cuda=True, **env):
        requests, self.requests = os.pipe()
        self.answers, answers = os.pipe()
        errors, error_output = os.pipe()
        self.process = os.fork()
        if self.process == 0:
            try:
                for number, fd in enumerate((requests, answers, error_output)):
                    os.dup2(fd, number)
                os.closerange(3, os.sysconf("SC_OPEN_MAX"))
                os.environ.update(env, MAYPOLE_FAKE_CUDA="devices=4,memory=64M", CUDA_VISIBLE_DEVICES=str(device),
                                  MAYPOLE_FAKE_NCCL=config)
                child(os.fdopen(0), os.fdopen(1, "w"), cuda)
                ctypes.CDLL(None).exit(0)  # as a C program ends
            except BaseException:  # pylint: disable=broad-except
                traceback.print_exc()
                sys.stderr.flush()
            finally:
                os._exit(1)
        for fd in (requests, answers, error_output):
            os.close(fd)
        self.requests, self.answers = os.fdopen(self.requests, "w"), os.fdopen(self.answers)
        self.errors = os.fdopen(errors)
        test.addCleanup(self.end)

    def begin(self, expression):
        self.requests.write(expression + "\n")
        self.requests.flush()

    def value(self):
        line = self.answers.readline()
        if not line:
            raise EOFError(self.errors.read())
        return eval(line)  # pylint: disable=eval-used

    def has_value(self, seconds):
        """Whether there is one by then."""
        return bool(select.select([self.answers], [], [], seconds)[0])

    def __call__(self, expression):
        self.begin(expression)
        return self.value()

    def running(self):
        if self.process:
            self.process = 0 if os.waitpid(self.process, os.WNOHANG)[0] else self.process
        return self.process != 0

    def wait(self, seconds=SECONDS):
        """Whether the process has ended by then."""
        end = time.monotonic() + seconds
        while self.running() and time.monotonic() < end:
            time.sleep(0.001)
        return not self.running()

    def kill(self):
        if self.running():
            os.kill(self.process, signal.SIGKILL)
            self.wait()

    def finish(self):
        """Whether the process ends when it has no more to do."""
        self.requests.close()
        return self.wait()

    def end(self):
        finished = self.finish()
        self.kill()
        self.answers.close()
        self.errors.close()
        assert finished


class ProcessesTest(unittest.TestCase):
    def start(self, count, config="", **options):
        processes = [Process(self, i, config, **options) for i in range(count)]
        for process in processes:
            process.value()
        return processes

    def all(self, processes, expression, expected=None):
        for process in processes:
            process.begin(expression)
        values = [process.value() for process in processes]
        if expected is not None:
            self.assertEqual(values, [expected] * len(processes))
        return values

    def init(self, processes):
        """The ids of communicators come from process 0."""
        unique = processes[0]("rank.new_id()")
        for i, process in enumerate(processes):
            process.begin(f"rank.init({unique!r}, {len(processes)}, {i}) or 0")
        return [process.value() for process in processes]

    def start_and_init(self, count, config="", **options):
        processes = self.start(count, config, **options)
        self.assertEqual(self.init(processes), [IN_PROGRESS] * count)
        self.all(processes, "rank.ready()", SUCCESS)
        return processes

    def connect(self, processes):
        self.all(processes, "rank.allreduce()", IN_PROGRESS)
        self.all(processes, "rank.ready()", SUCCESS)

    def test_an_allreduce(self):
        processes = self.start_and_init(4)
        for i, process in enumerate(processes):
            process(f"rank.write([{i}, 0.5])")
        self.all(processes, "rank.allreduce(2)", IN_PROGRESS)
        self.all(processes, "rank.ready()", SUCCESS)
        self.all(processes, "rank.read(2)", [6, 2])
        self.all(processes, "rank.destroy()", SUCCESS)

    def test_more_bytes_than_a_socket_takes(self):
        processes = self.start_and_init(3)
        self.all(processes, "rank.write([1, 2, 3, 4] * (1 << 16))")
        self.all(processes, "rank.allreduce(1 << 18)", IN_PROGRESS)
        self.all(processes, "rank.ready()", SUCCESS)
        self.all(processes, "rank.read(1 << 18) == [3, 6, 9, 12] * (1 << 16)", True)

    def test_without_a_driver(self):
        process, = self.start(1, "version=21903", cuda=False)
        self.assertEqual(process("rank.version()"), 21903)
        unique = process("rank.new_id()")
        self.assertEqual(len(unique), 128)
        self.assertEqual(process(f"rank.init({unique!r}, 1, 0)"), CUDA_ERROR)

    def test_one_gpu_serves_one_rank_of_a_host(self):
        def same_gpu(hosts):
            processes = [Process(self, 1, NCCL_HOSTID=host) for host in hosts]
            processes.append(Process(self, 2, NCCL_HOSTID=hosts[0]))
            for process in processes:
                process.value()
            self.init(processes)
            return processes, self.all(processes, "rank.ready()")

        self.assertEqual(same_gpu(("a", "b"))[1], [SUCCESS] * 3)
        processes, states = same_gpu(("a", "a"))
        self.assertEqual(states, [USAGE, USAGE, REMOTE])
        self.assertIn("Duplicate GPU detected : rank 0 and rank 1 both on CUDA device", processes[0]("rank.error()"))

    def test_the_id_may_come_from_another_process(self):
        root, = self.start(1)
        processes = self.start(2)
        unique = root("rank.new_id()")
        for i, process in enumerate(processes):
            process(f"rank.init({unique!r}, 2, {i})")
        self.all(processes, "rank.ready()", SUCCESS)
        root.kill()
        self.connect(processes)
        self.all(processes, "rank.allreduce()", IN_PROGRESS)
        self.all(processes, "rank.ready()", SUCCESS)

    def test_calls_that_differ_end_all_processes(self):
        processes = self.start_and_init(3)
        self.connect(processes)
        processes[0].begin("rank.allreduce(4)")
        processes[1].begin("rank.allreduce(4, 2)")
        for process in processes:
            self.assertTrue(process.wait())
            self.assertRegex(process.errors.read(),
                             r"rank \d calls ncclAllReduce\(count 4, float32, (sum|max)\), rank \d calls")

    def test_a_dead_peer_is_waited_for(self):
        for dead in (0, 2):
            processes = self.start_and_init(3)
            self.connect(processes)
            processes.pop(dead).kill()
            self.all(processes, "rank.allreduce()", IN_PROGRESS)
            self.all(processes, "rank.ready()", SUCCESS)
            time.sleep(0.02)
            self.all(processes, "rank.state()", SUCCESS)
            self.all(processes, "rank.idle()", False)
            self.all(processes, "rank.abort()", SUCCESS)
            self.all(processes, "rank.idle()", True)

    def test_a_dead_peer_is_an_error(self):
        for dead in (0, 2):
            processes = self.start_and_init(3, "peer_death=error")
            processes.pop(dead).kill()
            self.all(processes, f"rank.ready({SUCCESS})", REMOTE)
            self.all(processes, "rank.allreduce()", REMOTE)
            self.all(processes, "rank.abort()", SUCCESS)

    def test_a_destroyed_rank_is_no_error(self):
        processes = self.start_and_init(2, "peer_death=error")
        self.all(processes, "rank.destroy()", SUCCESS)

    def test_init_fails(self):
        process, = self.start(1, "init=error")
        self.assertEqual(self.init([process]), [IN_PROGRESS])
        self.assertEqual(process("rank.ready()"), SYSTEM)
        self.assertEqual(process("rank.abort()"), SUCCESS)

    def test_init_hangs(self):
        process, = self.start(1, "init=hang")
        self.assertEqual(self.init([process]), [IN_PROGRESS])
        time.sleep(0.01)
        self.assertEqual(process("rank.state()"), IN_PROGRESS)
        self.assertEqual(process("rank.abort()"), SUCCESS)

    def test_abort_hangs(self):
        process, = self.start_and_init(1, "abort=hang")
        process.begin("rank.abort()")
        self.assertFalse(process.has_value(0.05))
        process.kill()

    def test_abort_waits_for_the_device(self):
        processes = self.start_and_init(2, "abort=device")
        self.connect(processes)
        stuck = processes[0]
        stuck("rank.allreduce()")
        stuck("rank.ready()")
        stuck("setattr(rank, 'other', type(rank)(True))")
        stuck("rank.other.init(rank.new_id(), 1, 0, 1)")
        stuck.begin("rank.other.abort()")
        self.assertFalse(stuck.has_value(0.05))
        processes[1]("rank.allreduce()")
        self.assertEqual(stuck.value(), SUCCESS)

    def test_abort_waits_for_all_ranks(self):
        processes = self.start_and_init(3, "abort=collective")
        processes[0].begin("rank.allreduce()")
        processes[2].kill()
        processes[0].begin("rank.abort()")
        self.assertEqual(processes[0].value(), IN_PROGRESS)
        self.assertFalse(processes[0].has_value(0.05))
        self.assertEqual(processes[1]("rank.abort()"), SUCCESS)
        self.assertEqual(processes[0].value(), SUCCESS)

    def test_a_dead_peer_ends_a_first_collective(self):
        processes = self.start_and_init(2, "peer_death=error")
        self.assertEqual(processes[1]("rank.allreduce()"), IN_PROGRESS)
        processes[0].kill()
        self.assertEqual(processes[1]("rank.ready()"), REMOTE)

    def test_calls_fail(self):
        process, = self.start_and_init(1, "seed=0,fail=ncclAllReduce:2:1,fail_later=ncclAllReduce:3:2")
        self.connect([process])
        self.assertEqual(process("rank.allreduce()"), CUDA_ERROR)
        self.assertEqual(process("rank.state()"), SUCCESS)
        self.assertEqual(process("rank.allreduce()"), IN_PROGRESS)
        self.assertEqual(process("rank.ready()"), SYSTEM)

    def test_a_process_ends_whatever_it_waits_for(self):
        processes = self.start_and_init(2)
        self.connect(processes)
        processes[0]("rank.allreduce()")
        begin = time.monotonic()
        self.assertTrue(processes[0].finish())
        self.assertLess(time.monotonic() - begin, 1.5)  # the driver waits 2 s for its streams

    def test_a_bad_configuration_ends_the_process(self):
        for config in ("color=red", "seed=one", "init=never", "fail=ncclAllReduce", "peer_death=1"):
            process, = self.start(1, config, cuda=False)
            with self.assertRaisesRegex(EOFError, f'fake libnccl: .*bad value in "{config}"'):
                process("rank.version()")


if __name__ == "__main__":
    unittest.main()
