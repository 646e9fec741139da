"""The binding itself: layout of the C struct, looking the library up."""

import _ctypes
import ctypes
import os
import tempfile
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
    ]


class LayoutTest(unittest.TestCase):

    def test_packed_operation_is_the_c_struct(self):
        self.assertEqual(_native.OPERATION.size, ctypes.sizeof(Operation))
        name = ctypes.create_string_buffer(b"x")
        packed = _native.OPERATION.pack(160, 1, 2, 3, 4, 5, 6, 7, 8,
                                        *range(10, 18), 0.5, 0.25,
                                        ctypes.addressof(name), 21, 22, 23, 24,
                                        0)
        operation = Operation.from_buffer_copy(packed)
        self.assertEqual(operation.struct_size, 160)
        self.assertEqual(
            (operation.kind, operation.dtype, operation.op, operation.device,
             operation.process_set, operation.root, operation.dims,
             operation.awaited), (1, 2, 3, 4, 5, 6, 7, 8))
        self.assertEqual(list(operation.shape), list(range(10, 18)))
        self.assertEqual((operation.prescale, operation.postscale), (0.5, 0.25))
        self.assertEqual((operation.name, operation.input, operation.output),
                         (b"x", 21, 22))
        self.assertEqual((operation.splits, operation.splits_count), (23, 24))


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
