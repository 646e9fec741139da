"""Loads what tensorflow_train.py has saved: tensorflow_load.py DIRECTORY."""

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))  # for python3 -I

import without_maypole  # noqa: E402
import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402
import tensorflow_model  # noqa: E402


def path(name):
    return os.path.join(sys.argv[1], name)


expected = np.load(path("predicted.npz"))
restored = tensorflow_model.Model()
untrained = restored(expected["x"])
tf.train.Checkpoint(model=restored).read(path("checkpoint")).assert_consumed()
for predict in (tf.saved_model.load(path("saved")), restored):
    apart = np.abs(predict(expected["x"]) - expected["y"]).max()
    assert apart < 1e-6, apart
assert np.abs(untrained - expected["y"]).max() > 0.01  # so the comparison can fail

try:
    tf.saved_model.load(path("with_allreduce"))
    raise AssertionError("a graph with collectives was loaded without Maypole")
except RuntimeError as error:
    assert "Op type not registered 'MaypoleAllreduce'" in str(error), error

without_maypole.check()
print("equal")
