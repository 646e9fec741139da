"""maypole.keras and maypole.tensorflow.keras on each version: training as one process does it, and all else by value.

The plain run has only KerasTest, with the Keras 3 of TensorFlow 2.18.
"""

import os
import subprocess
import unittest

import environments
import harness

PROGRAM = os.path.join(harness.ROOT, "tests/programs/keras/main.py")
# In a process that has never heard of Maypole.
PLAIN = """
import sys
import numpy as np
{import_keras}
try:
    import maypole
    sys.exit("maypole is installed")
except ImportError:
    pass
expected = np.load(sys.argv[1] + "/predicted.npz")
for path in sys.argv[2:]:
    model = keras.models.load_model(path)
    assert type(model.optimizer).__module__.split(".")[0] in ("keras", "tf_keras"), type(model.optimizer)
    apart = np.abs(model.predict(expected["x"], verbose=0) - expected["y"]).max()
    assert apart < 1e-6, apart
print("equal", len(sys.argv) - 2)
"""


class KerasCase(unittest.TestCase):
    def check(self, environment, backend="tensorflow", least=60, np=2, nodes=1, tf_keras=False, **env):
        python = environments.python(environment)
        env.update(KERAS_BACKEND=backend, TF_CPP_MIN_LOG_LEVEL="3")
        command = [python, PROGRAM] + ["tf.keras"] * tf_keras
        with harness.Job(np=np, nodes=nodes, command=command, env=env) as job:
            job.check_ok(400)
            records = job.records()
            for record in records:
                self.assertGreaterEqual(record["checks"], least)
                self.assertEqual(record["backend"], backend)
            print(environment, "Keras", records[0]["keras"], records[0]["seconds"])
            self.infer(python, job.dir, records[0]["keras3"], tf_keras, env)

    def infer(self, python, directory, keras3, tf_keras, env):
        """What rank 0 has saved, in a process without Maypole."""
        files = [os.path.join(directory, "saved" + s) for s in ((".keras", ".h5") if keras3 else (".h5", ""))]
        code = PLAIN.format(import_keras="from tensorflow import keras" if tf_keras else "import keras")
        env = {**os.environ, **env}
        env.pop("PYTHONPATH", None)
        done = subprocess.run([python, "-c", code, directory] + files, env=env, capture_output=True, text=True,
                              timeout=200)
        self.assertEqual(done.stdout.splitlines()[-1:], ["equal 2"], done.stderr[-3000:])


class KerasTest(KerasCase):
    def test_tensorflow(self):
        self.check("tensorflow-2.18")


class KerasVersionsTest(KerasCase):
    def test_more_ranks(self):
        self.check("tensorflow-2.18", np=4, nodes=2)

    def test_tf_keras_of_keras_3(self):
        self.check("tensorflow-2.18", tf_keras=True)

    def test_newest_tensorflow(self):
        self.check("tensorflow-2.21")

    def test_keras_2(self):
        self.check("tensorflow-2.15")

    def test_keras_2_as_tf_keras(self):
        self.check("tensorflow-2.15", tf_keras=True)

    def test_keras_2_without_eager_execution(self):
        program = os.path.join(harness.ROOT, "tests/programs/keras/graph_mode.py")
        for name in ("tensorflow-2.8", "tensorflow-2.15"):
            with harness.Job(np=2, command=[environments.python(name), program], env={"TF_CPP_MIN_LOG_LEVEL": "3"}) as job:
                job.check_ok(200)
                self.assertEqual([record["refused"] is None for record in job.records()], [name.endswith("8")] * 2)

    def test_tensorflow_2_12(self):
        self.check("tensorflow-2.12", tf_keras=True)

    def test_tensorflow_2_8(self):
        self.check("tensorflow-2.8", tf_keras=True)

    def test_jax(self):
        self.check("jax-0.10", "jax")

    def test_jax_0_4_38(self):
        self.check("keras-jax", "jax")

    def test_torch(self):
        self.check("keras-torch", "torch")

    def test_other_backends_are_one_clear_line(self):
        # Keras' own NumPy backend needs more packages.
        code = "import keras; keras.backend.backend = lambda: 'numpy'; import maypole.keras"
        done = subprocess.run([environments.python("keras-torch"), "-c", code], capture_output=True, text=True,
                              timeout=200, env=harness.environment({"KERAS_BACKEND": "torch"}))
        self.assertIn("ImportError: Keras uses the backend 'numpy'", done.stderr.splitlines()[-1])
        self.assertIn("set KERAS_BACKEND to one of tensorflow, jax, torch", done.stderr.splitlines()[-1])


if __name__ == "__main__":
    unittest.main()
