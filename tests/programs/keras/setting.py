"""What the Keras programs share: which Keras, models, data, and training as one process does it."""

import os
import sys

import numpy as np

TF_KERAS = "tf.keras" in sys.argv
if TF_KERAS:
    import maypole.tensorflow.keras as hvd
    from tensorflow import keras
else:
    import keras
    import maypole.keras as hvd

hvd.init()
KERAS3 = hasattr(keras, "ops")
BACKEND = keras.backend.backend() if KERAS3 else "tensorflow"
RANK, SIZE = hvd.rank(), hvd.size()
BATCH = 8 * SIZE  # of all ranks together
STEPS = 4

_random = np.random.RandomState(3)
X = _random.rand(STEPS * BATCH, 6).astype("float32")
Y = (X[:, :1] * 2 - X[:, 1:2] + 0.5 * X[:, 2:3] * X[:, 3:4]).astype("float32")
# What this rank sees: its part of each batch.
MINE = np.arange(len(X)).reshape(STEPS, SIZE, -1)[:, RANK].ravel()

checks = [0]


def check(condition, *what):
    checks[0] += 1
    assert condition, what


def close(a, b, relative=1e-4):
    """Checks that all numbers are equal up to `relative` of the greatest."""
    a, b = [np.concatenate([np.ravel(v) for v in values]) for values in (a, b)]
    apart = float(np.max(np.abs(a - b)) / max(np.max(np.abs(b)), 1e-30))
    check(apart <= relative, apart, a, b)
    return apart


def model(seed=7, name="m"):
    """A small model; names of layers differ between ranks, as the order of creation does."""
    keras.utils.set_random_seed(seed)
    inputs = keras.Input((6,))
    hidden = keras.layers.Dense(5, activation="tanh", name=f"{name}{RANK}")(inputs)
    return keras.Model(inputs, keras.layers.Dense(1)(hidden))


def compiled(of, optimizer, **kwargs):
    of.compile(optimizer, keras.losses.MeanSquaredError(), **kwargs)
    return of


def fit(of, rows, batch, callbacks=(), epochs=1, **kwargs):
    """The losses of the epochs."""
    return of.fit(X[rows], Y[rows], batch_size=batch, epochs=epochs, shuffle=False, verbose=0,
                  callbacks=list(callbacks), **kwargs).history["loss"]


def standard_callbacks():
    return [hvd.callbacks.BroadcastGlobalVariablesCallback(0),
            hvd.callbacks.MetricAverageCallback()]


def path(name):
    return os.path.join(os.environ["MAYPOLE_TEST_DIR"], name)
