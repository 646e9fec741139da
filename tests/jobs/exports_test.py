"""libmaypole exports only maypole_* and needs only libc."""

import subprocess
import unittest

import harness


class ExportsTest(unittest.TestCase):
    def test_symbols(self):
        out = subprocess.check_output(["nm", "-D", "--defined-only", harness.LIBRARY], text=True)
        names = [line.split()[-1] for line in out.splitlines() if line.strip()]
        self.assertIn("maypole_submit", names)
        self.assertEqual([n for n in names if not n.startswith("maypole_")], [])

    def test_needs_no_library_that_could_clash(self):
        out = subprocess.check_output(["readelf", "-d", harness.LIBRARY], text=True)
        needed = [line.split("[")[1].rstrip("]") for line in out.splitlines() if "(NEEDED)" in line]
        allowed = ("libc.so", "libm.so", "libpthread.so", "libdl.so", "librt.so", "ld-linux")
        self.assertEqual([n for n in needed if not n.startswith(allowed)], [])


if __name__ == "__main__":
    unittest.main()
