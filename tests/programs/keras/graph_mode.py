"""Keras 2 under tf.compat.v1.disable_eager_execution(): trains as one process does, or one clear line."""

import numpy as np
import tensorflow as tf
from tensorflow import keras

import maypole.tensorflow.keras as hvd
import rank

tf.compat.v1.disable_eager_execution()
hvd.init()
RANK, SIZE = hvd.rank(), hvd.size()
X = np.random.RandomState(3).rand(16, 3).astype("float32")
Y = 2 * X.sum(1, keepdims=True) - 1
LEGACY = getattr(keras.optimizers, "legacy", keras.optimizers)


def trained(optimizer, x, y, batch, callbacks=()):
    """The weights after two epochs."""
    model = keras.Sequential([keras.layers.Dense(1, kernel_initializer="ones", input_shape=(3,))])
    model.compile(optimizer, "mse")
    model.fit(x, y, batch_size=batch, epochs=2, shuffle=False, verbose=0, callbacks=list(callbacks))
    return np.concatenate([w.ravel() for w in model.get_weights()])


def on_all_ranks(make, **kwargs):
    callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0), hvd.callbacks.MetricAverageCallback(),
                 hvd.callbacks.LearningRateScheduleCallback(0.1, lambda epoch: 1.0 / (1 + epoch))]
    return trained(hvd.DistributedOptimizer(make(0.1), **kwargs), X[RANK::SIZE], Y[RANK::SIZE], 4 // SIZE, callbacks)


class Rates(keras.callbacks.Callback):
    """What LearningRateScheduleCallback does."""

    def on_epoch_begin(self, epoch, logs=None):
        keras.backend.set_value(self.model.optimizer.learning_rate, 0.1 / (1 + epoch))


def check(distributed, alone):
    assert np.allclose(distributed, alone, rtol=1e-4), (distributed, alone)
    assert not np.allclose(alone, [1, 1, 1, 0], rtol=1e-2), alone
    everyones = hvd.allgather(distributed[None])
    assert np.all(everyones == everyones[0]), everyones


for make in (LEGACY.SGD, LEGACY.Adam):
    check(on_all_ranks(make), trained(make(0.1), X, Y, 4, [Rates()]))
# The batches of two passes are one of one process.
check(on_all_ranks(LEGACY.SGD, backward_passes_per_step=2, average_aggregated_gradients=True),
      trained(LEGACY.SGD(0.1), X, Y, 8, [Rates()]))
refused = None
if LEGACY is not keras.optimizers and not hasattr(keras.optimizers.SGD, "get_updates"):
    try:
        on_all_ranks(keras.optimizers.SGD)
    except RuntimeError as error:
        refused = str(error)
    assert "expected legacy.SGD" in refused, refused
rank.record(refused=refused)
hvd.shutdown()
