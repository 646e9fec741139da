"""What is compiled for AVX2 or NEON shares no inline function with the rest.

Such a function is a weak symbol, of which the linker keeps one copy: it could
be the one that only processors with AVX2 can run.
"""

import subprocess
import sys
import unittest

OBJECTS = [a for a in sys.argv[1:] if not a.startswith("-")]
OWN = "maypole::ReduceSimd("


class SimdSymbolsTest(unittest.TestCase):
    def test_defines_its_one_function_alone(self):
        self.assertTrue(OBJECTS)
        for path in OBJECTS:
            text = subprocess.check_output(["nm", "-C", "--defined-only", path], text=True)
            symbols = [line.split(None, 2)[1:] for line in text.splitlines()]
            # Small letters are local to the object, but for u, v and w.
            shared = [(kind, name) for kind, name in symbols if kind.isupper() or kind in "uvw"]
            self.assertEqual(len(shared), 1, shared)
            kind, name = shared[0]
            self.assertEqual(kind, "T")
            self.assertTrue(name.startswith(OWN), name)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
