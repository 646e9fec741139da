"""tests/gpu/run.sh: a bundle needs only glibc, says in one line that there is no driver, and passes on the fake one."""

import json
import os
import re
import subprocess
import tempfile
import unittest

RUN = "tests/gpu/run.sh"
PROGRAMS = ["tests/gpu/conformance/conformance", "tests/gpu/figures/figures"]
FAKE = os.path.abspath("tests/gpu/fake")
NO_DRIVER = 3
MOST_BYTES = 60 << 20
GLIBC = re.compile(r"^(linux-vdso|libc|libm|/lib64/ld-linux-x86-64)\.so")
NEWEST_GLIBC = (2, 36)


class RunTest(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        cls.directory = tempfile.TemporaryDirectory(prefix="mpg", dir="/tmp")
        cls.bundle = os.path.join(cls.directory.name, "bundle")
        cls.state = os.path.join(cls.directory.name, "state")
        os.mkdir(cls.state)
        subprocess.run([RUN, "--bundle", cls.bundle] + PROGRAMS, check=True)

    @classmethod
    def tearDownClass(cls):
        cls.directory.cleanup()

    def run_bundle(self, *args, driver=FAKE, settings=""):
        env = {"PATH": os.environ["PATH"], "LD_LIBRARY_PATH": driver}
        env["MAYPOLE_FAKE_CUDA"] = "memory=512M,state=%s%s" % (self.state, settings)
        env.update((name, os.environ[name]) for name in os.environ if name.endswith("SAN_OPTIONS"))
        return subprocess.run([os.path.join(self.bundle, "run.sh")] + list(args), env=env, text=True, capture_output=True)

    def assert_one_line(self, done, status, text):
        self.assertEqual((done.returncode, done.stdout), (status, ""), done.stderr)
        self.assertIn(text, done.stderr)
        self.assertEqual(done.stderr.count("\n"), 1, done.stderr)

    def test_runs_with_glibc_alone(self):
        names = os.listdir(self.bundle)
        self.assertCountEqual(names, ["conformance", "figures", "run.sh"])
        paths = [os.path.join(self.bundle, name) for name in names]
        self.assertLess(sum(os.path.getsize(path) for path in paths), MOST_BYTES)
        for path in paths:
            if path.endswith(".sh"):
                continue
            listing = subprocess.check_output(["ldd", path], text=True)
            for line in listing.strip().splitlines():
                self.assertRegex(line.strip(), GLIBC)
            symbols = subprocess.check_output(["objdump", "-T", path], text=True)
            versions = [tuple(map(int, v.split("."))) for v in re.findall(r"GLIBC_([0-9.]+)", symbols)]
            self.assertLessEqual(max(versions), NEWEST_GLIBC)

    def test_says_that_there_is_no_driver(self):
        for what in "--check", "--figures":
            self.assert_one_line(self.run_bundle(what, driver=os.path.join(FAKE, "stub")), NO_DRIVER, "is the stub")
            self.assert_one_line(self.run_bundle(what, settings=",init=100"), NO_DRIVER, "finds no usable GPU")
        if "libcuda.so.1" not in subprocess.check_output(["/sbin/ldconfig", "-p"], text=True):
            for what in "--check", "--figures":
                self.assert_one_line(self.run_bundle(what, driver=""), NO_DRIVER, "there is no NVIDIA driver")

    def test_says_what_it_cannot_do(self):
        self.assert_one_line(self.run_bundle(), 2, "usage")
        self.assert_one_line(self.run_bundle("--figures", "--unknown"), 2, "usage")
        self.assert_one_line(self.run_bundle("--check", "/"), 2, "/ is no bundle")

    def test_checks_the_fake_driver(self):
        done = self.run_bundle("--check", self.bundle, "--gtest_brief=1")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertRegex(done.stdout, r"\[  PASSED  \] [1-9][0-9] tests")
        self.assertNotIn("SKIPPED", done.stdout)

    def test_measures_the_fake_driver(self):
        file = os.path.join(self.directory.name, "figures.json")
        done = self.run_bundle("--figures", "--quick", "--json=" + file)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn("meaningless", done.stdout)
        with open(file, encoding="utf-8") as f:
            content = json.load(f)
        self.assertIs(content["meaningless"], True)
        self.assertEqual(content["skipped"], [])
        figures = {figure["name"]: figure["value"] for figure in content["figures"]}
        for name in ("copy/device_read_and_written", "copy/pinned_to_device", "latency/stream_word/p50",
                     "latency/event_query/p99", "latency/hand_over/p50", "reduce/bfloat16/k2/2MiB/share_of_copy",
                     "overlap/kernel/share_here", "overlap/copy_in_device/share_there"):
            self.assertGreater(figures[name], 0, name)
            self.assertIn(name, done.stdout)

    def test_measures_what_a_device_offers(self):
        words = ["latency/stream_word", "latency/hand_over"]
        for settings, skipped in ((",vmm=0,writes=0", words + ["reduce"]), (",exclusive=1", ["reduce", "overlap"])):
            file = os.path.join(self.directory.name, "some.json")
            done = self.run_bundle("--figures", "--quick", "--json=" + file, settings=settings)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            with open(file, encoding="utf-8") as f:
                self.assertEqual([skip["name"] for skip in json.load(f)["skipped"]], skipped)


if __name__ == "__main__":
    unittest.main()
