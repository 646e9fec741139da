"""libmaypole_gpu.so, as a machine without a GPU sees it."""

import ctypes
import os
import struct
import subprocess
import sys
import unittest

PLUGIN = os.path.abspath(sys.argv[1]) if len(sys.argv) > 1 else ""
UNAVAILABLE = 14
# A fat binary: this word, then entries of one kind and architecture each. Not
# documented, read off what nvcc 13 writes.
CONTAINER = struct.pack("<I", 0xBA55ED50)
PTX, SASS = 1, 2


class Error(ctypes.Structure):
    _fields_ = [("native", ctypes.c_int32), ("text", ctypes.c_char * 508)]


class Versions(ctypes.Structure):
    _fields_ = [
        ("driver", ctypes.c_int32),
        ("runtime", ctypes.c_int32),
        ("nccl", ctypes.c_int32),
        ("nccl_error", ctypes.c_char * 508),
    ]


class TableHead(ctypes.Structure):
    _fields_ = [
        ("version", ctypes.c_uint32),
        ("bytes", ctypes.c_uint32),
        (
            "initialize",
            ctypes.CFUNCTYPE(
                ctypes.c_int, ctypes.c_char_p, ctypes.POINTER(Versions), ctypes.POINTER(Error)
            ),
        ),
    ]


def has_driver() -> bool:
    try:
        ctypes.CDLL("libcuda.so.1")
        return True
    except OSError:
        return False


def table(version: int) -> "ctypes._Pointer[TableHead]":
    function = ctypes.CDLL(PLUGIN).maypole_gpu_table
    function.restype = ctypes.POINTER(TableHead)
    function.argtypes = [ctypes.c_uint32]
    return function(version)


def codes(library: bytes) -> "set[tuple[int, int]]":
    """(kind, architecture) of all device code in the library."""
    found = set()
    at = library.find(CONTAINER)
    while at >= 0:
        _, _, head, size = struct.unpack_from("<IHHQ", library, at)
        entry, end = at + head, at + head + size
        while entry < end:
            kind, _, entry_head, entry_size = struct.unpack_from("<HHIQ", library, entry)
            (architecture,) = struct.unpack_from("<I", library, entry + 28)
            found.add((kind, architecture))
            entry += entry_head + entry_size
        at = library.find(CONTAINER, end)
    return found


class PluginTest(unittest.TestCase):
    def test_exports_its_table_only(self) -> None:
        out = subprocess.check_output(["nm", "-D", "--defined-only", PLUGIN], text=True)
        names = [line.split()[-1] for line in out.splitlines() if line.strip()]
        self.assertEqual(names, ["maypole_gpu_table"])

    def test_needs_the_c_library_only(self) -> None:
        out = subprocess.check_output(["readelf", "-d", PLUGIN], text=True)
        needed = [line.split("[")[1].rstrip("]") for line in out.splitlines() if "(NEEDED)" in line]
        allowed = ("libc.so", "libm.so", "libpthread.so", "libdl.so", "librt.so", "ld-linux")
        self.assertEqual([n for n in needed if not n.startswith(allowed)], [])

    def test_knows_one_version_of_the_table(self) -> None:
        self.assertEqual(table(1).contents.version, 1)
        self.assertFalse(table(2))
        self.assertFalse(table(0))

    @unittest.skipIf(has_driver(), "this machine has an NVIDIA driver")
    def test_says_that_there_is_no_driver(self) -> None:
        versions, error = Versions(), Error()
        for _ in range(2):
            code = table(1).contents.initialize(b"", ctypes.byref(versions), ctypes.byref(error))
            self.assertEqual(code, UNAVAILABLE)
            self.assertEqual(
                error.text.decode(),
                "there is no NVIDIA driver on this machine (libcuda.so.1 cannot be loaded)",
            )

    def test_has_code_for_ampere_hopper_and_later_ones(self) -> None:
        with open(PLUGIN, "rb") as library:
            found = codes(library.read())
        self.assertEqual(found, {(SASS, 80), (SASS, 90), (PTX, 90)})


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0]])
