"""pip builds the sdist where there is a compiler; its wheel equals the one that Bazel's programs make, and trains.

There is no CUDA toolkit, so the kernels' compilers come from PyPI.
"""

import glob
import os
import pwd
import shutil
import subprocess
import unittest
import zipfile

import cubins
import installed
import cuda_toolkit
import sdist


def names(path):
    with zipfile.ZipFile(path) as archive:
        return sorted(archive.namelist())


class SdistTest(unittest.TestCase):
    def test_pip_builds_it(self):
        directory = installed.directory()
        self.addCleanup(shutil.rmtree, directory)
        source = os.path.join(directory, sdist.make_sdist(directory, installed.source_tree()))
        # Bazel's server and its cache are this user's.
        home = pwd.getpwuid(os.getuid()).pw_dir
        env = {"PATH": os.environ["PATH"], "HOME": home, "PIP_CONFIG_FILE": "/dev/null", "TMPDIR": directory,
               "CUDA_HOME": "/nowhere"}
        done = subprocess.run([installed.PYTHON, "-m", "pip", "wheel", "--no-deps", "--no-index", "--no-cache-dir", "-w",
                               directory, "-v", source], env=env, cwd=directory, capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        (built,) = glob.glob(directory + "/*.whl")
        self.check_kernels(built, done.stdout + done.stderr)
        other = os.path.join(directory, "other")
        os.mkdir(other)
        self.assertEqual(names(built), names(installed.make_wheel(other)))
        environment = installed.Environment(os.path.join(directory, "env"))
        environment.pip("install", "--no-index", "--no-deps", built)
        environment.check_training(self)

    def check_kernels(self, built, said):
        from_pypi = "maypole: the wheel's kernels are compiled by nvcc of PyPI" in said
        self.assertNotEqual(from_pypi, "maypole: the wheel is built without kernels" in said, said)
        wanted = {int(name): cubins.IMAGES for name in cuda_toolkit.wanted_architectures()} if from_pypi else {}
        with zipfile.ZipFile(built) as archive:
            for name in ("maypole/bin/maypole", "maypole/lib/libmaypole.so"):
                data = archive.read(name)
                self.assertEqual(cubins.code(data), wanted, name)
                self.assertEqual(set(cubins.ptx(data)), cubins.PTX if from_pypi else set(), name)


if __name__ == "__main__":
    unittest.main()
