"""The binding itself: layout of the C struct, looking the library up."""

import _ctypes
import ctypes
import os
import tempfile
import types
import unittest

from maypole import _native


class Operation(ctypes.Structure):
    """maypole_operation as the C compiler lays it out."""

    _fields_ = [("struct_size", ctypes.c_size_t)] + [
        (name, ctypes.c_int32)
        for name in ("kind", "dtype", "op", "device", "process_set", "root",
                     "dims", "awaited")
    ] + [
        ("shape", ctypes.c_int64 * 8),
        ("prescale", ctypes.c_double),
        ("postscale", ctypes.c_double),
        ("name", ctypes.c_char_p),
        ("input", ctypes.c_void_p),
        ("output", ctypes.c_void_p),
        ("splits", ctypes.c_void_p),
        ("splits_count", ctypes.c_int32),
        ("reserved", ctypes.c_int32),
        ("stream", ctypes.c_void_p),
    ]


class StubLibrary(_native.Library):
    """The binding over Python functions in place of C's."""

    def __init__(self, **functions):  # pylint: disable=super-init-not-called
        self._names = {}
        self._lib = types.SimpleNamespace(**functions)


class LayoutTest(unittest.TestCase):

    def test_packed_operation_is_the_c_struct(self):
        self.assertEqual(_native.OPERATION.size, ctypes.sizeof(Operation))
        name = ctypes.create_string_buffer(b"x")
        packed = _native.OPERATION.pack(168, 1, 2, 3, 4, 5, 6, 7, 8,
                                        *range(10, 18), 0.5, 0.25,
                                        ctypes.addressof(name), 21, 22, 23, 24,
                                        0, 2**63)
        operation = Operation.from_buffer_copy(packed)
        self.assertEqual(operation.struct_size, 168)
        self.assertEqual(
            (operation.kind, operation.dtype, operation.op, operation.device,
             operation.process_set, operation.root, operation.dims,
             operation.awaited), (1, 2, 3, 4, 5, 6, 7, 8))
        self.assertEqual(list(operation.shape), list(range(10, 18)))
        self.assertEqual((operation.prescale, operation.postscale), (0.5, 0.25))
        self.assertEqual((operation.name, operation.input, operation.output),
                         (b"x", 21, 22))
        self.assertEqual((operation.splits, operation.splits_count), (23, 24))
        self.assertEqual(operation.stream, 2**63)

    def test_a_stream_makes_it_an_operation_on_cuda_tensors(self):
        for stream, device, pointer in ((None, _native.CPU, None),
                                        (0, _native.CUDA, None),
                                        (77, _native.CUDA, 77)):
            submitted = []

            def submit(packed, *_):
                submitted.append(packed)
                return _native.OK

            library = StubLibrary()
            library._submit = library._submit_group = submit
            arguments = (_native.ALLREDUCE, _native.FLOAT32, 1, 0, (4,), 1.0,
                         1.0, "x", 8, 16, False, 0, None, stream)
            library.submit(*arguments)
            library.submit_group([arguments])
            self.assertEqual(len(submitted), 2)
            for packed in submitted:
                operation = Operation.from_buffer_copy(packed)
                self.assertEqual((operation.device, operation.stream),
                                 (device, pointer))
                self.assertEqual((operation.input, operation.output), (8, 16))


class GpuMemoryTest(unittest.TestCase):

    def test_arguments_and_errors(self):
        calls = []
        status = _native.OK

        def allocate(size, gpu, memory):
            calls.append((size, gpu))
            memory.value = 0x7000
            return status

        def free(address, streams, count):
            calls.append((address, list(streams), count))
            return _native.OK

        library = StubLibrary(maypole_allocate_on_gpu=allocate,
                              maypole_free_on_gpu=free,
                              maypole_last_error=lambda: b"no room")
        self.assertEqual(library.allocate_on_gpu(100, 3), 0x7000)
        self.assertEqual(library.free_on_gpu(0x7000, [0, 2**63]), _native.OK)
        self.assertEqual(calls, [(100, 3), (0x7000, [None, 2**63], 2)])
        status = _native.RESOURCE_EXHAUSTED
        with self.assertRaisesRegex(_native.StatusError, "no room") as caught:
            library.allocate_on_gpu(100, 3)
        self.assertEqual(caught.exception.code, _native.RESOURCE_EXHAUSTED)


class CopyResultTest(unittest.TestCase):

    def test_arguments_and_errors(self):
        calls = []
        status = _native.OK

        def copy_result(*arguments):
            calls.append(arguments)
            return status

        library = StubLibrary(maypole_copy_result=copy_result,
                              maypole_last_error=lambda: b"no such handle")
        library.copy_result(5, 0x1000, 77)
        self.assertEqual(calls, [(5, 0x1000, 77)])
        status = _native.NOT_FOUND
        with self.assertRaisesRegex(_native.StatusError, "no such") as raised:
            library.copy_result(5, 0, 0)
        self.assertEqual(raised.exception.code, _native.NOT_FOUND)


class LookupTest(unittest.TestCase):

    def setUp(self):
        self.saved = os.environ.pop("MAYPOLE_LIBRARY", None)

    def tearDown(self):
        os.environ.pop("MAYPOLE_LIBRARY", None)
        if self.saved is not None:
            os.environ["MAYPOLE_LIBRARY"] = self.saved

    def test_a_named_library_that_is_missing(self):
        os.environ["MAYPOLE_LIBRARY"] = "/nonexistent/libmaypole.so"
        with self.assertRaisesRegex(ImportError, "/nonexistent/libmaypole.so"):
            _native.load()

    def test_a_file_that_is_no_library(self):
        with tempfile.NamedTemporaryFile(suffix=".so") as file:
            file.write(b"not an ELF file")
            file.flush()
            os.environ["MAYPOLE_LIBRARY"] = file.name
            with self.assertRaisesRegex(ImportError, "cannot load"):
                _native.load()

    def test_a_library_that_is_not_maypole(self):
        os.environ["MAYPOLE_LIBRARY"] = _ctypes.__file__
        with self.assertRaisesRegex(ImportError, "is not a libmaypole"):
            _native.load()


if __name__ == "__main__":
    unittest.main()
