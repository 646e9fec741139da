"""maypolerun --check-build reports what it finds: the driver, its GPUs, NCCL, and where operations can run."""

import os
import re
import shutil
import subprocess
import tempfile
import time
import unittest

import cubins
import fake_gpu
import harness

NCCL = os.path.join(harness.ROOT, "tests/gpu/fake_nccl/libnccl.so.2")
PROGRAM = os.path.join(harness.ROOT, "client/launcher/maypolerun")


class CheckBuildTest(unittest.TestCase):
    def setUp(self):
        self.dir = tempfile.mkdtemp(prefix="mpb", dir="/tmp")
        self.addCleanup(shutil.rmtree, self.dir)

    def said(self, fake="", driver=True, nccl=False, python=None, path=None, library=None):
        env = harness.environment({"MAYPOLE_FAKE_CUDA": fake, "PYTHONPATH": python or "",
                                   "LD_LIBRARY_PATH": ":".join([fake_gpu.DIRECTORY] * driver +
                                                               [os.path.dirname(NCCL)] * nccl)})
        if library is not None:
            env["MAYPOLE_NCCL_LIBRARY"] = library
        if path is not None:
            env["PATH"] = path + os.pathsep + env["PATH"]
        done = subprocess.run([PROGRAM, "--check-build"], env=env, capture_output=True, text=True, timeout=60)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        return done.stdout

    def test_two_gpus_and_nccl(self):
        text = self.said("devices=2,driver=12040", nccl=True)
        self.assertRegex(text, r"\[X\] NVIDIA driver[ \d.]*: CUDA 12\.4, 2 GPU\(s\)\n")
        uuids = re.findall(r"\[X\] GPU \d: Fake GPU.*, (GPU-[0-9a-f-]{36})\n", text)
        self.assertEqual(len(set(uuids)), 2, text)
        self.assertRegex(text, r"\[X\] NCCL 2\.\d+\.\d+ \(libnccl.so.2 of the dynamic linker\): .*/libnccl\.so\.2\n")
        self.assertIn("    [X] NCCL\n", text)
        self.assertIn("    [X] host\n", text)

    def test_gpus_that_are_used_through_mps(self):
        self.assertIn(", used through MPS\n", self.said("mps=1"))
        self.assertNotIn("MPS", self.said())

    def test_the_nccl_of_a_python_package(self):
        library = os.path.join(self.dir, "nvidia/nccl/lib")
        os.makedirs(library)
        shutil.copy(NCCL, library)
        text = self.said(python=self.dir)
        self.assertRegex(text, r"\[X\] NCCL 2\.\d+\.\d+ \(of python3\): %s/libnccl\.so\.2\n" % library)
        self.assertIn("    [X] NCCL\n", text)
        text = self.said(python=self.dir, library="none")
        self.assertIn("    [ ] NCCL (MAYPOLE_NCCL_LIBRARY): none, as it says\n", text)
        self.assertIn("    [ ] NCCL\n", text)

    def test_the_nccl_of_the_variable(self):
        text = self.said(library=NCCL)
        self.assertRegex(text, r"\[X\] NCCL 2\.\d+\.\d+ \(MAYPOLE_NCCL_LIBRARY\): .*/libnccl\.so\.2\n")
        self.assertIn("    [X] NCCL\n", text)

    def test_a_python_that_does_not_end(self):
        program = os.path.join(self.dir, "python3")
        with open(program, "w") as f:
            f.write("#!/bin/sh\nprintf /nccl\nexec sleep 600 >&-\n")
        os.chmod(program, 0o755)
        since = time.monotonic()
        text = self.said(path=self.dir)
        self.assertLess(time.monotonic() - since, 20)
        self.assertIn("[ ] NCCL (of python3): python3 on PATH has no package nvidia-nccl\n", text)

    def test_kernels_are_those_of_the_programs(self):
        text = self.said(driver=False)
        for program in ("worker/maypole-worker", "client/libmaypole.so"):
            cubins.check(self, os.path.join(harness.ROOT, program))
        names = ", ".join("sm_%d" % architecture for architecture in sorted(cubins.expected()))
        self.assertIn("    [X] kernels: code for %s; for other GPUs the driver compiles PTX for sm_80, sm_70\n" % names if
                      names else "    [ ] kernels: this build has none, because there was no nvcc: ", text)

    def test_no_driver(self):
        text = self.said(driver=False)
        self.assertRegex(text, r"\[ \] NVIDIA driver: there is no NVIDIA driver on this machine ")
        self.assertIn("    [ ] NCCL\n", text)
        self.assertIn("[ ] NCCL (of python3): python3 on PATH has no package nvidia-nccl\n", text)
        self.assertIn("[ ] agent, ranks on several GPUs: there is no usable NVIDIA driver\n", text)
        self.assertIn("[ ] host: there is no usable NVIDIA driver\n", text)


if __name__ == "__main__":
    unittest.main()
