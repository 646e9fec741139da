"""Every name of Horovod's interface (horovod_names.py) under the shim, with its parameters, in each framework's versions."""

import json
import os
import subprocess
import unittest

import environments
import harness
import horovod_names


class HorovodNamesTest(unittest.TestCase):
    def check(self, python, *modules, backend="tensorflow"):
        env = harness.environment({"TF_CPP_MIN_LOG_LEVEL": "3", "KERAS_BACKEND": backend})
        env["PYTHONPATH"] += os.pathsep + os.path.join(harness.ROOT, "client/python/horovod_shim")
        done = subprocess.run([python, horovod_names.__file__, *modules], env=env, capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr[-2000:])
        said = json.loads(done.stdout.splitlines()[-1])
        self.assertEqual(said["wrong"], [])
        return said["checked"]

    def test_without_a_framework(self):
        self.assertEqual(self.check(harness.PYTHON, "horovod.common"), 29)

    def test_ray_is_not_needed_for_the_names(self):
        self.assertEqual(self.check(harness.PYTHON, "horovod.ray"), 33)

    def test_tensorflow_and_keras(self):
        checked = self.check(environments.python("tensorflow-2.18"), "horovod.tensorflow", "horovod.keras")
        self.assertEqual(checked, 103)


class AllVersionsTest(HorovodNamesTest):
    def test_tensorflow_and_keras(self):
        for name in environments.names("tensorflow"):
            with self.subTest(name):
                self.check(environments.python(name), "horovod.tensorflow", "horovod.keras")

    def test_keras_on_other_backends(self):
        for name, backend in (("keras-torch", "torch"), (environments.names("jax")[-1], "jax")):
            with self.subTest(name):
                self.check(environments.python(name), "horovod.keras", backend=backend)

    def test_spark(self):
        self.assertEqual(self.check(environments.python("spark-4.1"), "horovod.spark"), 52)

    def test_scripts_in_a_job(self):
        scripts = {
            "mxnet-1.9": "import horovod.mxnet as hvd, mxnet as mx; hvd.init(); one = mx.nd.ones(1); "
                         "sum = hvd.allreduce(one, average=False).asscalar()",
            "tensorflow-2.18": "import horovod.tensorflow as hvd, tensorflow as tf; hvd.init(); one = tf.ones([]); "
                               "sum = hvd.allreduce(one, average=False).numpy()",
            "keras-torch": "import horovod.keras as hvd; hvd.init(); sum = hvd.allreduce(1.0, average=False)"}
        for name, script in scripts.items():
            with self.subTest(name):
                command = [environments.python(name), "-c", script + "; print('SUM', float(sum), hvd.__name__)"]
                env = {"TF_CPP_MIN_LOG_LEVEL": "3", "KERAS_BACKEND": "torch"}
                with harness.Job(np=2, command=command, launcher_args=["--horovod-shim"], env=env) as job:
                    job.check_ok(120)
                    self.assertEqual(job.stdout().count("SUM 2.0 horovod."), 2)

    def test_mxnet(self):
        self.assertEqual(self.check(environments.python("mxnet-1.9"), "horovod.mxnet"), 34)


if __name__ == "__main__":
    unittest.main()
