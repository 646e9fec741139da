"""All reductions have the same bits on x86-64 and on aarch64, whose programs qemu-user runs here."""

import itertools
import subprocess
import sys
import unittest

PROGRAMS = [a for a in sys.argv[1:] if not a.startswith("-")]
QEMU = ["qemu-aarch64-static", "-L", "/usr/aarch64-linux-gnu"]

FLOATS = {"float16", "float32", "float64", "bfloat16"}
DTYPES = FLOATS | {"uint8", "int8", "uint16", "int16", "int32", "int64", "bool"}
OPS = {"average", "sum", "adasum", "min", "max", "product"}


def checksums(*argv):
    """{(function, dtype, op): checksum}"""
    lines = subprocess.run(argv, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()
    return {tuple(words[:3]): words[3] for words in map(str.split, lines)}


class ReductionBitsTest(unittest.TestCase):
    def test_both_processors_agree(self):
        native, emulated = PROGRAMS
        here, there = checksums(native), checksums(*QEMU, emulated)
        self.assertEqual(here, there)
        everything = set(itertools.product(("reduce", "portable", "neutral"), DTYPES, OPS))
        everything.update(("scale", dtype, "-") for dtype in DTYPES - {"bool"})
        everything.update(("adasum", dtype, "-") for dtype in FLOATS)
        self.assertEqual(set(here), everything)

    def test_these_are_programs_for_two_processors(self):
        machines = []
        for path in PROGRAMS:
            with open(path, "rb") as f:
                machines.append(int.from_bytes(f.read(20)[18:], "little"))
        self.assertEqual(machines, [62, 183])  # EM_X86_64, EM_AARCH64


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
