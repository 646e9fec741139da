"""Collectives in functions that XLA compiles (jit_compile=True). Run by training.py."""

import numpy as np
import tensorflow as tf

import maypole.tensorflow as hvd

WORKS = tuple(int(n) for n in tf.__version__.split(".")[:2]) >= (2, 18)


def compiled(function):
    return tf.function(function, jit_compile=True)


def refused(function, text):
    try:
        function()
    except (NotImplementedError, ValueError) as error:
        assert text in str(error), error
    else:
        raise AssertionError("no error that says " + text)


def check_compiled_collectives():
    if not WORKS:
        return refused(compiled(lambda: hvd.allreduce(tf.zeros([2]))), "jit_compile=False")
    n, me = hvd.size(), hvd.rank()
    x = np.arange(2.0 * n, dtype=np.float32) + me
    everyone = np.stack([np.arange(2.0 * n, dtype=np.float32) + r for r in range(n)])

    @compiled
    def step(x):
        group = hvd.grouped_allreduce([x * 2, tf.cast(x, tf.int32), x[0]], op=hvd.Sum, prescale_factor=1.0)
        return (hvd.allreduce(x), hvd.allreduce(x, op=hvd.Max), hvd.allreduce(x, prescale_factor=0.1, op=hvd.Sum),
                hvd.allgather(x), hvd.allgather(x[0]), hvd.broadcast(x, n - 1), hvd.reducescatter(x, op=hvd.Sum),
                hvd.size_op(), hvd.rank_op(), *group)

    want = (everyone.mean(0), everyone.max(0), everyone.sum(0) * 0.1, everyone.reshape(-1), everyone[:, 0], everyone[-1],
            everyone.sum(0)[2 * me:2 * me + 2], n, me, everyone.sum(0) * 2, everyone.sum(0), everyone[:, 0].sum())
    for _ in range(3):
        for got, right in zip(step(x), want, strict=True):
            np.testing.assert_allclose(got, right, rtol=1e-6)
    refused(compiled(lambda: hvd.alltoall(tf.zeros([n]))), "no fixed shape")

    def of_some_rows():
        rows = tf.where(tf.ones([3]) > 0)[:, 0]  # how many is not known when the function is traced
        return hvd.allreduce(tf.IndexedSlices(tf.gather(tf.ones([3, 2]), rows), rows, tf.constant([3, 2])))

    refused(compiled(of_some_rows), "use sparse_as_dense=True")


def check_compiled_gradients():
    if not WORKS:
        return
    w = tf.Variable([1.0, 2.0])
    factor = tf.constant(hvd.rank() + 1.0)

    @compiled
    def step():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(w * w * factor)
        (gradient,) = hvd.DistributedGradientTape(tape, op=hvd.Sum).gradient(loss, [w])
        w.assign_sub(0.0 * gradient)
        with tf.GradientTape() as tape:
            y = tf.reduce_sum(hvd.allreduce(w * factor) * factor) + tf.reduce_sum(hvd.broadcast(w, 0)) * factor
        return gradient, tape.gradient(y, w)

    mean = (hvd.size() + 1) / 2
    for _ in range(2):
        gradient, through = step()
        np.testing.assert_allclose(gradient, 2 * np.array([1.0, 2.0]) * mean * hvd.size(), rtol=1e-6)
        of_root = mean if hvd.rank() == 0 else 0.0
        np.testing.assert_allclose(through, [mean * (hvd.rank() + 1) + of_root] * 2, rtol=1e-6)
