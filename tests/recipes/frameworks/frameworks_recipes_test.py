"""Recipes of TensorFlow, Keras and JAX from seeds: N ranks train as one process on the batch; see whole_batch.py."""

import os
import unittest

import environments
import harness

RECIPES = os.path.join(harness.ROOT, "tests/recipes/frameworks")
QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3", "TF_ENABLE_ONEDNN_OPTS": "0", "JAX_PLATFORMS": "cpu"}


class RecipesCase(unittest.TestCase):
    def check(self, environment, program, first, count, np=2):
        path = os.pathsep.join([RECIPES, harness.environment()["PYTHONPATH"]])
        command = [environments.python(environment), os.path.join(RECIPES, program), str(first), str(count)]
        with harness.Job(np=np, command=command, env=dict(QUIET, PYTHONPATH=path)) as job:
            job.check_ok(500)
            for record in job.records():
                self.assertEqual(len(record["ends"]), count)
                # Errors are allowed, but these recipes have none that one process does not have.
                self.assertEqual(set(record["ends"]), {"equal"})


class RecipesTest(RecipesCase):
    def test_tensorflow(self):
        self.check("tensorflow-2.18", "tensorflow_recipes.py", 0, 6)

    def test_jax(self):
        self.check("jax-0.4.38", "jax_recipes.py", 0, 6)


class ManyRecipesTest(RecipesCase):
    def test_tensorflow(self):
        for name in ("tensorflow-2.18", "tensorflow-2.15", "tensorflow-2.21"):
            self.check(name, "tensorflow_recipes.py", 100, 60)

    def test_tensorflow_on_three_ranks(self):
        self.check("tensorflow-2.18", "tensorflow_recipes.py", 200, 40, np=3)

    def test_jax(self):
        for name in ("jax-0.4.38", "jax-0.10"):
            self.check(name, "jax_recipes.py", 100, 60)

    def test_jax_on_three_ranks(self):
        self.check("jax-0.4.38", "jax_recipes.py", 200, 40, np=3)


if __name__ == "__main__":
    unittest.main()
