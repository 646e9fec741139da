"""The bundle of probe and plugin that tests/gpu/run.sh makes: it is small and complete, and its errors without a driver are clear."""

import json
import os
import shutil
import subprocess
import tempfile
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
LIMIT = 60 << 20


class BundleTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.dir = tempfile.mkdtemp(prefix="maypole bundle ")  # a path with spaces
        cls.addClassCleanup(shutil.rmtree, cls.dir)
        cls.bundle = os.path.join(cls.dir, "gpu")
        subprocess.run([os.path.join(HERE, "run.sh"), "--bundle-of", os.path.join(HERE, "probe/probe"),
                        os.path.join(ROOT, "worker/backend/gpu/libmaypole_gpu.so"),
                        os.path.join(ROOT, "worker/backend/gpu/plugin_gpu_test"), cls.bundle],
                       check=True, timeout=60)

    def run_bundle(self, *options, bundle=None, env=None):
        """Runs the bundle in a directory of its own, with a minimal environment."""
        return subprocess.run([os.path.join(HERE, "run.sh"), "--from", bundle or self.bundle, *options],
                              cwd=self.dir, env=dict({"PATH": "/usr/bin:/bin"}, **(env or {})), text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=120)

    def test_it_is_small_and_has_no_driver_of_its_own(self):
        files = [os.path.join(d, f) for d, _, names in os.walk(self.bundle) for f in names]
        self.assertLess(sum(map(os.path.getsize, files)), LIMIT)
        names = {os.path.basename(f) for f in files}
        self.assertLessEqual({"probe", "libmaypole_gpu.so", "plugin_gpu_test"}, names)
        for name in names:
            self.assertFalse(name.startswith(("libc.so", "ld-linux", "libcuda.so", "libnccl")), name)

    def test_all_that_it_needs_is_in_it_or_of_libc(self):
        env = dict(os.environ, LD_LIBRARY_PATH=os.path.join(self.bundle, "lib"))
        for name in ("probe", "libmaypole_gpu.so", "plugin_gpu_test"):
            out = subprocess.run(["ldd", os.path.join(self.bundle, name)], env=env, check=True, text=True,
                                 stdout=subprocess.PIPE, timeout=60).stdout
            for line in out.splitlines():
                if "=>" not in line:
                    continue
                library, path = [part.strip() for part in line.split("=>")]
                of_libc = library.split(".so")[0] in ("libc", "libm", "libdl", "librt", "libpthread", "libresolv")
                self.assertTrue(of_libc or path.startswith(self.bundle), line)

    @unittest.skipIf(os.path.exists("/dev/nvidiactl"), "there is a GPU here")
    def test_without_a_driver_it_says_so_in_one_line(self):
        path = os.path.join(self.dir, "facts.json")
        ran = self.run_bundle("--json=" + path)
        self.assertEqual(ran.returncode, 3, ran.stdout + ran.stderr)
        self.assertRegex(ran.stderr, r"\Agpu probe: no GPU here: [^\n]+\n\Z")
        with open(path) as f:
            rows = json.load(f)["rows"]
        self.assertEqual({row["fact"] for row in rows}, set(range(1, 9)))
        for row in rows:
            self.assertEqual(row["outcome"], "not measured", row)
            self.assertEqual(row["figures"], [], row)
            self.assertNotEqual(row["text"], "", row)

    def test_the_fake_runs_out_of_the_bundle(self):
        ran = self.run_bundle("--fake", "--quick", "--facts=4")
        self.assertEqual(ran.returncode, 0, ran.stdout + ran.stderr)
        self.assertIn("fake", ran.stdout)

    @unittest.skipIf(os.path.exists("/dev/nvidiactl"), "there is a GPU here")
    def test_the_plugins_tests_start_out_of_it(self):
        ran = subprocess.run([os.path.join(HERE, "run.sh"), "--check", self.bundle], env={"PATH": "/usr/bin:/bin"},
                             text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=120)
        self.assertEqual(ran.returncode, 0, ran.stdout)
        self.assertIn("there is no NVIDIA driver on this machine", ran.stdout)
        self.assertTrue(ran.stdout.endswith("run.sh: 0 of the plugin's tests failed\n"), ran.stdout)

    def test_what_is_missing_is_named(self):
        ran = self.run_bundle(bundle="nowhere")
        self.assertEqual(ran.returncode, 2)
        self.assertIn("no bundle in %s/nowhere: make one with" % os.path.realpath(self.dir), ran.stderr)


if __name__ == "__main__":
    unittest.main()
