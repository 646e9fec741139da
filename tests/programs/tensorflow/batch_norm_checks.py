"""SyncBatchNormalization equals a BatchNormalization of all ranks' rows. For training.py."""

import numpy as np
import tensorflow as tf

import maypole.tensorflow as hvd
from tape_checks import close, refused


def rows_of(rank):
    """How many rows the rank has: they differ."""
    return 3 + 2 * rank


def compared(shape, axis, offset):
    """A layer of all ranks, and one of one process: outputs, gradients and moving statistics."""
    total = sum(rows_of(r) for r in range(hvd.size()))
    first = sum(rows_of(r) for r in range(hvd.rank()))
    mine = slice(first, first + rows_of(hvd.rank()))
    everything = (np.random.RandomState(7).randn(total, *shape) + offset).astype(np.float32)
    factors = np.random.RandomState(8).randn(total, *shape).astype(np.float32)
    found = []
    if hvd.rank() == 0:
        hvd.SyncBatchNormalization()  # Keras' names of the layers differ from here on
    for synchronized, part in ((True, mine), (False, slice(None))):
        layer = hvd.SyncBatchNormalization(axis=axis) if synchronized else tf.keras.layers.BatchNormalization(
            axis=axis, **plain())
        x = tf.constant(everything[part])

        @tf.function
        def run():
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = layer(x, training=True)
                loss = tf.reduce_sum(tf.tanh(y) * factors[part])
            return y, tape.gradient(loss, [x] + layer.trainable_variables)

        layer.build(x.shape)
        y, (of_x, *of_weights) = run()
        found.append((y, of_x, of_weights, layer))
    (y, of_x, of_weights, layer), (y1, of_x1, of_weights1, layer1) = found
    np.testing.assert_allclose(y, y1[mine], rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(of_x, of_x1[mine], rtol=1e-3, atol=2e-5)
    for here, alone in zip(of_weights, of_weights1):
        total = hvd.allreduce(here, op=hvd.Sum, name="of_weights")
        np.testing.assert_allclose(total, alone, rtol=1e-3, atol=1e-4)
    for name in ("moving_mean", "moving_variance"):
        close(getattr(layer, name), getattr(layer1, name), 1e-4)
    close(layer(x[mine], training=False), layer1(x[mine], training=False), 1e-4)


def plain():
    return {"fused": False} if hasattr(tf.keras.layers.BatchNormalization, "_assign_moving_average") else {}


def check_rows():
    compared((4,), -1, 0.0)


def check_far_from_zero():
    compared((3, 3, 2), -1, 10.0)


def check_channels_first():
    compared((2, 3, 3), 1, 0.0)


def check_fused_is_refused():
    for fused in (True, None):
        refused(lambda: hvd.SyncBatchNormalization(fused=fused), ValueError, "fused=False")
