"""recipes_test.py with the newest torch of PyPI: also fused optimizers and torch.compile."""

import os
import shutil
import tempfile
import unittest

import crew
import harness
import pypi_torch
import recipes_test

DIRECTORY = tempfile.mkdtemp(prefix="mpt", dir="/tmp")


def setUpModule():
    unittest.addModuleCleanup(shutil.rmtree, DIRECTORY)
    os.chmod(DIRECTORY, 0o755)
    # Of all players.
    harness.PYTHON = pypi_torch.environment(os.path.join(DIRECTORY, "env"))
    recipes_test.MODERN = True
    crew.START_SECONDS = 300


class NewTorchRecipesTest(recipes_test.RecipesTest):
    pass


if __name__ == "__main__":
    unittest.main()
