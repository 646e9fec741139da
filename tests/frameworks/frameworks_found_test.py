"""maypolerun --check-build reports for each framework of python3 whether it is supported, and if not, what and why."""

import os
import re
import shutil
import subprocess
import tempfile
import unittest

import environments
import harness


def found_by(python_directory=None, packages=None, **env):
    """{name: (supported, the rest of its line, the lines below it)}"""
    env = harness.environment({"PYTHONPATH": packages or "", "HOME": "/nonexistent", **env})
    if python_directory:
        env["PATH"] = python_directory + os.pathsep + env["PATH"]
    done = subprocess.run([os.path.join(harness.ROOT, harness.PROGRAMS[0]), "--check-build"], env=env,
                          capture_output=True, text=True, timeout=60)
    rows = done.stdout.partition("Available Frameworks:\n")[2].partition("\n\n")[0]
    return done, {m[2]: (m[1] == "X", m[3], m[4].splitlines())
                  for m in re.finditer(r" {4}\[(.)\] (\w+) (.*)\n?((?: {10}.*\n?)*)", rows)}


class FrameworksFoundTest(unittest.TestCase):
    def packages(self, **versions):
        """A directory with packages of these names and versions, which cannot even be imported."""
        directory = tempfile.mkdtemp(prefix="mpf", dir="/tmp")
        self.addCleanup(shutil.rmtree, directory)
        for name, version in versions.items():
            os.makedirs(os.path.join(directory, name))
            with open(os.path.join(directory, name, "__init__.py"), "w", encoding="utf-8") as f:
                f.write("1 / 0\n")
            distribution = "tensorflow_cpu" if name == "tensorflow" else name
            info = os.path.join(directory, f"{distribution}-{version}.dist-info")
            os.makedirs(info)
            with open(os.path.join(info, "METADATA"), "w", encoding="utf-8") as f:
                f.write(f"Metadata-Version: 2.1\nName: {distribution.replace('_', '-')}\nVersion: {version}\n")
        return directory

    def test_what_is_supported_and_why_not(self):
        packages = self.packages(tensorflow="2.12.1", keras="2.12.0", jax="0.4.31", jaxlib="0.4.31", mxnet="1.9.1",
                                 numpy="2.0.0")
        done, found = found_by(packages=packages, HOROVOD_WITH_MXNET="1")
        supported, text, notes = found["TensorFlow"]
        self.assertTrue(supported)
        self.assertRegex(text, r"^2\.12\.1 \(of /\S+/python3\)$")
        self.assertIn("older than 2.13", notes[0])
        self.assertTrue(found["Keras"][0])
        self.assertEqual(found["JAX"][:2],
                         (False, "0.4.31 (its jaxlib 0.4.31 is too old: Maypole supports 0.4.38 and newer)"))
        self.assertEqual(found["MXNet"][:2], (False, "1.9.1 (it cannot be imported with NumPy 2.0.0: install 1.23)"))
        self.assertEqual((done.returncode, done.stderr),
                         (1, "maypolerun: HOROVOD_WITH_MXNET: it is not there, see above\n"))

    def test_the_backend_of_keras(self):
        packages = self.packages(keras="3.8.0", jax="0.4.38", jaxlib="0.4.38")
        self.assertIn("its backend tensorflow is not installed", found_by(packages=packages)[1]["Keras"][1])
        self.assertEqual(found_by(packages=packages, KERAS_BACKEND="jax")[1]["Keras"][2][0].strip(),
                         "backend jax (KERAS_BACKEND)")
        with open(os.path.join(packages, "keras.json"), "w", encoding="utf-8") as f:
            f.write('{"backend": "jax"}')
        self.assertTrue(found_by(packages=packages, KERAS_HOME=packages)[1]["Keras"][0])

    def test_a_library_is_missing(self):
        done, found = found_by(packages=self.packages(tensorflow="2.18.1"), HOROVOD_WITH_TENSORFLOW="1",
                               MAYPOLE_LIBRARY="/nowhere/libmaypole.so")
        self.assertEqual(found["TensorFlow"],
                         (False, "2.18.1 (there is no libmaypole_tensorflow.so in /nowhere)", []))
        self.assertEqual(done.returncode, 1)


class EnvironmentsFoundTest(unittest.TestCase):
    """With the frameworks themselves."""

    def test_every_environment(self):
        titles = {"tensorflow": "TensorFlow", "jax": "JAX", "mxnet": "MXNet", "keras": "Keras"}
        for name, environment in environments.ENVIRONMENTS.items():
            framework, _, wanted = name.partition("-")
            if framework not in titles:
                continue  # a tool's
            backend = wanted if framework == "keras" else framework
            with self.subTest(name):
                done, found = found_by(os.path.dirname(environments.python(name)), KERAS_BACKEND=backend)
                self.assertEqual((done.returncode, done.stderr), (0, ""))
                supported, text, _ = found[titles[framework]]
                self.assertTrue(supported, text)
                self.assertRegex(text, r"^\d" if framework == "keras" else "^" + re.escape(wanted))
                if environment.torch or any("keras" in r for r in environment.requirements):
                    self.assertTrue(found["Keras"][0], found["Keras"])


if __name__ == "__main__":
    unittest.main()
