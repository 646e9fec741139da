"""libmaypole and the libraries of frameworks export only maypole_* and need only libc."""

import glob
import os
import subprocess
import unittest

import harness


class ExportsTest(unittest.TestCase):
    def libraries(self):
        """(path, what begins each name that it may export)"""
        found = {harness.LIBRARY: "maypole_"}
        for path in glob.glob(harness.LIBRARY.replace(".so", "_*.so")):
            framework = os.path.basename(path)[len("libmaypole_"):-len(".so")]
            found[path] = f"maypole_{framework}_"
        self.assertGreaterEqual(len(found), 4)
        return found.items()

    def test_symbols(self):
        for path, prefix in self.libraries():
            with self.subTest(path):
                out = subprocess.check_output(["nm", "-D", "--defined-only", path], text=True)
                names = [line.split()[-1] for line in out.splitlines() if line.strip()]
                self.assertNotEqual(names, [])
                self.assertEqual([n for n in names if not n.startswith(prefix)], [])

    def test_needs_no_library_that_could_clash(self):
        for path, _ in self.libraries():
            with self.subTest(path):
                out = subprocess.check_output(["readelf", "-d", path], text=True)
                needed = [line.split("[")[1].rstrip("]") for line in out.splitlines() if "(NEEDED)" in line]
                allowed = ("libc.so", "libm.so", "libpthread.so", "libdl.so", "librt.so", "ld-linux")
                self.assertEqual([n for n in needed if not n.startswith(allowed)], [])


if __name__ == "__main__":
    unittest.main()
