"""The newest torch of PyPI: Horovod's interface, torch.compile, elastic training, the wheel, and the package's own tests."""

import glob
import os
import shutil
import subprocess
import tempfile
import unittest

import harness
import installed
import maypolerun_test
import pypi_torch
import torch_api_test

DIRECTORY = tempfile.mkdtemp(prefix="mpt", dir="/tmp")


def setUpModule():
    unittest.addModuleCleanup(shutil.rmtree, DIRECTORY)
    os.chmod(DIRECTORY, 0o755)
    # Of all jobs of these tests.
    harness.PYTHON = pypi_torch.environment(os.path.join(DIRECTORY, "env"))
    print(subprocess.run([harness.PYTHON, "-c", "import torch; print('torch', torch.__version__)"], check=True,
                         capture_output=True, text=True).stdout)


class NewTorchApiTest(torch_api_test.TorchApiTest):
    pass


class CompileTest(unittest.TestCase):
    def compiled(self, cases, *args):
        env = {"TORCHINDUCTOR_COMPILE_THREADS": "1"}
        with harness.Job(np=2, program="compiled.py", args=args, env=env) as job:
            job.check_ok(900)
            for record in job.records():
                self.assertEqual(len(record["apart"]), cases)
                self.assertLess(max(record["apart"].values()), 1e-9)

    def test_models_steps_and_collectives_in_compiled_functions(self):
        self.compiled(4)

    def test_with_the_cpp_compiler(self):
        self.compiled(1, "--inductor")


class ElasticTest(maypolerun_test.MaypolerunElasticTest):
    """One of its tests."""


for _name in unittest.defaultTestLoader.getTestCaseNames(ElasticTest):
    if _name != "test_the_dead_are_replaced":
        setattr(ElasticTest, _name, None)


class NewTorchWheelTest(unittest.TestCase):
    def test_the_wheel_trains(self):
        path = os.path.join(DIRECTORY, "wheel")
        pypi_torch.environment(path)
        environment = installed.Environment(path)
        environment.pip("install", "--no-index", "--no-deps", installed.make_wheel(DIRECTORY))
        environment.check_training(self)


class PackageTest(unittest.TestCase):
    def test_the_tests_of_the_package(self):
        tests = sorted(glob.glob(os.path.join(harness.ROOT, "client/python/tests/*_test.py")))
        self.assertGreater(len(tests), 14)
        env = harness.environment()
        env["PYTHONPATH"] += os.pathsep + os.path.dirname(tests[0])
        for path in tests:
            with self.subTest(os.path.basename(path)):
                done = subprocess.run([harness.PYTHON, path], env=env, capture_output=True, text=True, timeout=900)
                self.assertEqual(done.returncode, 0, done.stderr[-4000:])


if __name__ == "__main__":
    unittest.main()
