"""What MAYPOLE_FAKE_CUDA says, and what the fake driver's processes share."""

import ctypes
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
MEBIBYTE = 1 << 20
ATTRIBUTE_COMPUTE_MODE, ATTRIBUTE_VMM, ATTRIBUTE_WRITES = 20, 102, 122
OUT_OF_MEMORY, NOT_INITIALIZED, STUB, UNAVAILABLE, NO_DEVICE, INVALID_DEVICE = 2, 3, 34, 46, 100, 101
INVALID_CONTEXT, OPERATING_SYSTEM, NOT_SUPPORTED, ILLEGAL_ADDRESS = 201, 304, 801, 700


class Properties(ctypes.Structure):
    """CUmemAllocationProp of a shareable allocation."""
    _fields_ = [("type", ctypes.c_int), ("handles", ctypes.c_int), ("location", ctypes.c_int), ("device", ctypes.c_int),
                ("win32", ctypes.c_void_p), ("flags", ctypes.c_char * 8)]


class Access(ctypes.Structure):
    _fields_ = [("location", ctypes.c_int), ("device", ctypes.c_int), ("flags", ctypes.c_int)]


class IpcHandle(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_ubyte * 64)]


class Cuda:
    """The calls that the tests need, in the process that has made this object."""

    def __init__(self, start=True):
        self.lib = ctypes.CDLL(os.path.join(HERE, "libcuda.so.1"))
        if start:
            assert self.init() == 0
            assert self.retain() == 0

    def init(self):
        return self.lib.cuInit(0)

    def retain(self, device=0):
        context = ctypes.c_void_p()
        return self.lib.cuDevicePrimaryCtxRetain(ctypes.byref(context), device) or self.lib.cuCtxSetCurrent(context)

    def uuid(self, device):
        uuid = (ctypes.c_ubyte * 16)()
        return bytes(uuid) if self.lib.cuDeviceGetUuid_v2(uuid, device) == 0 else None

    def attribute(self, which):
        value = ctypes.c_int()
        assert self.lib.cuDeviceGetAttribute(ctypes.byref(value), which, 0) == 0
        return value.value

    def version(self):
        value = ctypes.c_int()
        assert self.lib.cuDriverGetVersion(ctypes.byref(value)) == 0
        return value.value

    def alloc(self, size):
        """The address, or the negative error."""
        address = ctypes.c_uint64()
        return -self.lib.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(size)) or address.value

    def free_bytes(self):
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        assert self.lib.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)) == 0
        return free.value

    def write(self, address, data):
        return self.lib.cuMemcpyHtoD_v2(ctypes.c_uint64(address), data, ctypes.c_size_t(len(data)))

    def read(self, address, size):
        data = ctypes.create_string_buffer(size)
        assert self.lib.cuMemcpyDtoH_v2(data, ctypes.c_uint64(address), ctypes.c_size_t(size)) == 0
        return data.raw

    def ipc_handle(self, address):
        """The handle as bytes, or the error."""
        handle = IpcHandle()
        return self.lib.cuIpcGetMemHandle(ctypes.byref(handle), ctypes.c_uint64(address)) or bytes(handle)

    def ipc_open(self, handle):
        address = ctypes.c_uint64()
        opened = self.lib.cuIpcOpenMemHandle_v2(ctypes.byref(address), IpcHandle.from_buffer_copy(handle), 1)
        return -opened or address.value

    def ipc_close(self, address):
        return self.lib.cuIpcCloseMemHandle(ctypes.c_uint64(address))

    def create(self, size=2 * MEBIBYTE):
        handle = ctypes.c_uint64()
        properties = Properties(1, 1, 1, 0)
        return -self.lib.cuMemCreate(ctypes.byref(handle), ctypes.c_size_t(size), ctypes.byref(properties),
                                     ctypes.c_uint64(0)) or handle.value

    def map(self, handle, size=2 * MEBIBYTE):
        address = ctypes.c_uint64()
        bytes_, zero = ctypes.c_size_t(size), ctypes.c_uint64(0)
        assert self.lib.cuMemAddressReserve(ctypes.byref(address), bytes_, zero, zero, zero) == 0
        assert self.lib.cuMemMap(address, bytes_, zero, ctypes.c_uint64(handle), zero) == 0
        assert self.lib.cuMemSetAccess(address, bytes_, ctypes.byref(Access(1, 0, 3)), ctypes.c_size_t(1)) == 0
        return address.value

    def export_to(self, handle):
        fd = ctypes.c_int()
        assert self.lib.cuMemExportToShareableHandle(ctypes.byref(fd), ctypes.c_uint64(handle), 1,
                                                     ctypes.c_uint64(0)) == 0
        with socket.socket(fileno=os.dup(3)) as s:
            socket.send_fds(s, [b"x"], [fd.value])
        os.close(fd.value)

    def import_from(self):
        with socket.socket(fileno=os.dup(3)) as s:
            _, fds, _, _ = socket.recv_fds(s, 1, 1)
        handle = ctypes.c_uint64()
        error = self.lib.cuMemImportFromShareableHandle(ctypes.byref(handle), ctypes.c_void_p(fds[0]), 1)
        os.close(fds[0])
        return -error or handle.value

    def stream_write(self, address):
        return self.lib.cuStreamWriteValue64_v2(None, ctypes.c_uint64(address), ctypes.c_uint64(1), 0)


def child():
    """Evaluates the expressions that the test writes, and prints their values."""
    scope = {"Cuda": Cuda}
    for line in sys.stdin:
        exec("_ = " + line, scope)  # pylint: disable=exec-used
        if line.startswith("Cuda("):
            scope["cuda"] = scope["_"]
            print("None", flush=True)
        else:
            print(repr(scope["_"]), flush=True)


class Process:
    """A process that uses the fake driver."""

    def __init__(self, test, config="", env=None, sock=None):
        env = dict(os.environ, MAYPOLE_FAKE_CUDA=config, **(env or {}))
        command = [sys.executable, os.path.abspath(__file__), "--child"]
        if sock:
            command = ["/bin/sh", "-c", f'exec 3<&{sock.fileno()}; exec "$@"', "sh", *command]
        self.process = subprocess.Popen(command, env=env, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=subprocess.PIPE, pass_fds=[sock.fileno()] if sock else [])
        test.addCleanup(self.end)

    def __call__(self, expression):
        self.process.stdin.write(expression + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise EOFError(self.process.stderr.read())
        return eval(line)  # pylint: disable=eval-used

    def kill(self):
        self.process.kill()
        self.process.wait()

    def end(self):
        self.process.stdin.close()
        self.process.wait(20)
        self.process.stdout.close()
        self.process.stderr.close()


class DriverTest(unittest.TestCase):
    def setUp(self):
        self.state = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.state)

    def start(self, config="", **options):
        process = Process(self, config, **options)
        process("Cuda()")
        return process

    def start_without_init(self, config="", **options):
        process = Process(self, config, **options)
        process("Cuda(start=False)")
        return process

    def test_a_bad_configuration_ends_the_process(self):
        for config in ("color=red", "devices=two", "devices", "vmm=1", "driver=11080", "memory=1X", "fail=cuMemAlloc"):
            with self.assertRaisesRegex(EOFError, f'fake libcuda: .*bad value in "{config}"'):
                self.start(config)

    def test_visible_devices(self):
        everything = self.start("devices=3")
        uuids = [everything(f"cuda.uuid({i})") for i in range(4)]
        self.assertEqual((len(set(uuids)), uuids[3]), (4, None))
        text = "GPU-" + uuids[1].hex()
        text = "-".join((text[:12], text[12:16], text[16:20], text[20:24], text[24:]))
        some = self.start("devices=3", env={"CUDA_VISIBLE_DEVICES": "2," + text + ",7,0"})
        self.assertEqual([some(f"cuda.uuid({i})") for i in range(3)], [uuids[2], uuids[1], None])
        none = self.start_without_init("devices=3", env={"CUDA_VISIBLE_DEVICES": ""})
        self.assertEqual(none("cuda.init()"), NO_DEVICE)

    def test_calls_need_init_and_a_context(self):
        process = self.start_without_init()
        self.assertEqual(process("cuda.alloc(64)"), -NOT_INITIALIZED)
        self.assertEqual(process("cuda.init()"), 0)
        self.assertEqual(process("cuda.alloc(64)"), -INVALID_CONTEXT)
        self.assertEqual(process("cuda.retain()"), 0)
        self.assertGreater(process("cuda.alloc(64)"), 0)

    def test_errors_on_request(self):
        self.assertEqual(self.start_without_init("init=803")("cuda.init()"), 803)
        process = self.start("fail=cuMemAlloc:2,fail=cuMemAlloc:4:700,driver=12040")
        errors = [min(process("cuda.alloc(64)"), 0) for _ in range(5)]
        self.assertEqual(errors, [0, -OUT_OF_MEMORY, 0, -ILLEGAL_ADDRESS, 0])
        self.assertEqual(process("cuda.version()"), 12040)

    def test_what_a_gpu_may_lack(self):
        process = self.start("vmm=0,ipc=0,writes=0")
        self.assertEqual(process(f"cuda.attribute({ATTRIBUTE_VMM})"), 0)
        self.assertEqual(process(f"cuda.attribute({ATTRIBUTE_WRITES})"), 0)
        self.assertEqual(process("cuda.create()"), -NOT_SUPPORTED)
        memory = process("cuda.alloc(64)")
        self.assertEqual(process(f"cuda.ipc_handle({memory})"), NOT_SUPPORTED)
        self.assertEqual(process(f"cuda.stream_write({memory})"), NOT_SUPPORTED)

    def test_processes_share_the_memory_of_a_gpu(self):
        config = f"memory=64M,state={self.state}"
        one, two = self.start(config), self.start(config)
        self.assertGreater(one(f"cuda.alloc({40 * MEBIBYTE})"), 0)
        self.assertEqual(two("cuda.free_bytes()"), 24 * MEBIBYTE)
        self.assertEqual(two(f"cuda.alloc({30 * MEBIBYTE})"), -OUT_OF_MEMORY)
        one.kill()
        self.assertEqual(two("cuda.free_bytes()"), 64 * MEBIBYTE)
        self.assertGreater(two(f"cuda.alloc({30 * MEBIBYTE})"), 0)

    def test_an_exclusive_gpu_has_one_process(self):
        config = f"devices=2,exclusive=1,state={self.state}"
        one, two = self.start(config), self.start_without_init(config)
        self.assertEqual(two("cuda.init()"), 0)
        self.assertEqual(two(f"cuda.attribute({ATTRIBUTE_COMPUTE_MODE})"), 3)
        self.assertEqual(two("cuda.retain()"), UNAVAILABLE)
        self.assertEqual(two("cuda.retain(1)"), 0)
        one.kill()
        self.assertEqual(two("cuda.retain()"), 0)

    def test_processes_share_memory_by_descriptors(self):
        left, right = socket.socketpair()
        with left, right:
            one, two = self.start(sock=left), self.start(sock=right)
        handle = one("cuda.create()")
        mine = one(f"cuda.map({handle})")
        one(f"cuda.export_to({handle})")
        imported = two("cuda.import_from()")
        self.assertGreater(imported, 0)
        theirs = two(f"cuda.map({imported})")
        self.assertEqual(one(f"cuda.write({mine}, b'hello')"), 0)
        one.kill()
        self.assertEqual(two(f"cuda.read({theirs}, 5)"), b"hello")  # it lives as long as a mapping

    def test_a_driver_that_lies_imports_nothing(self):
        left, right = socket.socketpair()
        with left, right:
            one, two = self.start(sock=left), self.start("vmm=lies", sock=right)
        one(f"cuda.export_to({one('cuda.create()')})")
        self.assertEqual(two(f"cuda.attribute({ATTRIBUTE_VMM})"), 1)
        self.assertEqual(two("cuda.import_from()"), -OPERATING_SYSTEM)

    def test_an_import_needs_the_same_gpu(self):
        left, right = socket.socketpair()
        with left, right:
            one = self.start("devices=2", sock=left, env={"CUDA_VISIBLE_DEVICES": "0"})
            two = self.start("devices=2", sock=right, env={"CUDA_VISIBLE_DEVICES": "1"})
        one(f"cuda.export_to({one('cuda.create()')})")
        self.assertEqual(two("cuda.import_from()"), -INVALID_DEVICE)

    def test_processes_share_memory_by_ipc_handles(self):
        one, two = self.start(), self.start()
        mine = one("cuda.alloc(4096)")
        handle = one(f"cuda.ipc_handle({mine})")
        theirs = two(f"cuda.ipc_open({handle})")
        self.assertGreater(theirs, 0)
        self.assertEqual(two(f"cuda.ipc_open({handle})"), theirs)  # once more
        self.assertEqual(two(f"cuda.write({theirs}, b'hello')"), 0)
        self.assertEqual(one(f"cuda.read({mine}, 5)"), b"hello")
        self.assertEqual([two(f"cuda.ipc_close({theirs})") for _ in range(3)], [0, 0, 1])
        forged = bytearray(handle)
        forged[16] ^= 1
        self.assertLess(two(f"cuda.ipc_open({bytes(forged)})"), 0)
        one.kill()
        self.assertLess(two(f"cuda.ipc_open({handle})"), 0)

    def test_a_process_ends_with_pending_work(self):
        process = self.start("seed=3,late=100000")
        memory = process("cuda.alloc(8)")
        for _ in range(100):
            self.assertEqual(process(f"cuda.stream_write({memory})"), 0)
        begin = time.monotonic()
        process.process.stdin.close()
        self.assertEqual(process.process.wait(20), 0)
        self.assertLess(time.monotonic() - begin, 4)

    def test_drivers_that_cannot_be_used(self):
        stub = ctypes.CDLL(os.path.join(HERE, "stub/libcuda.so.1"))
        self.assertEqual(stub.cuInit(0), STUB)
        self.assertEqual(stub.cuGetProcAddress_v2(b"cuInit", None, 12000, ctypes.c_uint64(0), None), STUB)
        old = ctypes.CDLL(os.path.join(HERE, "old/libcuda.so.1"))
        self.assertEqual(old.cuInit(0), 0)
        self.assertTrue(hasattr(old, "cuGetProcAddress"))
        self.assertFalse(hasattr(old, "cuGetProcAddress_v2"))


if __name__ == "__main__":
    if sys.argv[1:] == ["--child"]:
        child()
    else:
        unittest.main()
