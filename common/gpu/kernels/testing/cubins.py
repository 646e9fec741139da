"""For tests: which kernels are in a program, read from its bytes."""

import collections
import os
import re
import struct

_EM_CUDA = 190
IMAGES = 4  # of each architecture: one for each .cu file
PTX = {("8.0", 80), ("8.0", 70)}


def expected():
    """The architectures for which this build's toolkit makes code; empty: there is none, or nobody wants kernels."""
    with open(os.path.join(os.environ["TEST_SRCDIR"], "local_cuda", "summary"), encoding="utf-8") as f:
        said, by, _ = f.read().partition(", by nvcc")
    return {int(number) for number in re.findall(r"sm_(\d+)", said)} if by else set()


def check(test, path):
    """Fails the test unless the program at `path` has the kernels that this build's toolkit makes: code and PTX."""
    with open(path, "rb") as f:
        data = f.read()
    architectures = expected()
    test.assertEqual(code(data), {architecture: IMAGES for architecture in architectures}, path)
    wanted = {each: IMAGES for each in PTX} if architectures else {}
    test.assertEqual(ptx(data), wanted, path)


def code(data):
    """{architecture (86: sm_86): how many ELF files of machine code for it are in `data`}, a Counter."""
    found = collections.Counter()
    for match in re.finditer(rb"\x7fELF\x02\x01.", data, re.S):
        at = match.start()
        if at + 64 > len(data):
            break
        (machine,) = struct.unpack_from("<H", data, at + 18)
        (flags,) = struct.unpack_from("<I", data, at + 48)
        if machine == _EM_CUDA:
            # Since version 8 of its ABI, the lowest byte is something else.
            found[(flags >> 8 if data[at + 8] >= 8 else flags) & 0xff] += 1
    return found


def ptx(data):
    """The (version, architecture) of each PTX in `data`, a Counter."""
    found = re.findall(rb"\n\.version (\d+\.\d+)\n\.target sm_(\d+)\n", data)
    return collections.Counter((version.decode(), int(architecture)) for version, architecture in found)
