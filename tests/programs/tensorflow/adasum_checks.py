"""Adasum of TensorFlow tensors and of optimizers' steps, against NumPy. Run by training.py."""

import numpy as np
import tensorflow as tf

import maypole.tensorflow as hvd

tf1 = tf.compat.v1


def adasum(tensors):
    if len(tensors) == 1:
        return tensors[0]
    middle = 1 << ((len(tensors) - 1).bit_length() - 1)
    a, b = adasum(tensors[:middle]), adasum(tensors[middle:])
    product = (a * b).sum()
    return (1 - product / (2 * (a * a).sum())) * a + (1 - product / (2 * (b * b).sum())) * b


def all_ranks():
    """Of each rank, three arrays."""
    random = np.random.RandomState(1)
    return [[random.randn(5, 3), random.randn(7), random.randn(1).reshape(())] for _ in range(hvd.size())]


def check_adasum():
    everyones = all_ranks()
    want = [adasum([of_rank[i] for of_rank in everyones]) for i in range(3)]
    mine = everyones[hvd.rank()]

    def reduced():
        tensors = [tf.constant(mine[0], tf.float32), tf.constant(mine[1]), tf.constant(mine[2], tf.float32)]
        return hvd.grouped_allreduce(tensors, op=hvd.Adasum, name="three", postscale_factor=2.0)

    for function in (reduced, tf.function(reduced)):
        for got, right in zip(function(), want):
            np.testing.assert_allclose(got.numpy(), 2 * right, rtol=2e-5)
    variable = tf.Variable(mine[0])
    with tf.GradientTape() as tape:
        y = tf.reduce_sum(hvd.allreduce(variable, op=hvd.Adasum) * mine[0])
    np.testing.assert_allclose(tape.gradient(y, variable).numpy(), want[0], rtol=1e-9)


def check_adasum_of_different_tensors():
    me = hvd.rank()
    try:
        hvd.allreduce(tf.zeros([64 + 64 * (me % 2)]), op=hvd.Adasum, name="unequal")
        raise AssertionError("no error for unequal shapes")
    except tf.errors.OpError as error:
        assert "'unequal': the shapes of ranks" in str(error), error
    try:
        # As many elements, but of other shapes.
        hvd.allreduce(tf.zeros([2, 6] if me % 2 == 0 else [3, 4]), op=hvd.Adasum, name="reshaped")
        raise AssertionError("no error for other shapes")
    except tf.errors.FailedPreconditionError as error:
        assert "'reshaped': the shapes of ranks" in str(error), error
    try:
        hvd.allreduce(tf.constant([1]), op=hvd.Adasum)
        raise AssertionError("no error for integers")
    except ValueError as error:
        assert "floating point" in str(error), error


def momentum_steps(everyones, passes):
    """The variables after six steps, of which every `passes` are combined; each rank has its own momentum."""
    whole = [np.ones((5, 3)), np.zeros(7)]
    own = [[v.copy() for v in whole] for _ in everyones]
    momenta = [[np.zeros_like(v) for v in whole] for _ in everyones]
    for step in range(1, 7):
        for rank, gradients in enumerate(everyones):
            for i in range(2):
                momenta[rank][i] = 0.9 * momenta[rank][i] + gradients[i] * step
                own[rank][i] = own[rank][i] - 0.1 * momenta[rank][i]
        if step % passes == 0:
            whole = [v + adasum([mine[i] - v for mine in own]) for i, v in enumerate(whole)]
            own = [[v.copy() for v in whole] for _ in everyones]
    return whole


def distributed(passes):
    return hvd.DistributedOptimizer(tf1.train.MomentumOptimizer(0.1, 0.9), op=hvd.Adasum,
                                    backward_passes_per_step=passes)


def in_session(gradients, passes):
    with tf.Graph().as_default():
        variables = [tf1.get_variable("a", initializer=np.ones((5, 3))), tf1.get_variable("b", initializer=np.zeros(7))]
        factor = tf1.placeholder(tf.float64)
        step = distributed(passes).apply_gradients([(g * factor, v) for g, v in zip(gradients, variables)])
        with tf1.train.MonitoredTrainingSession() as session:
            for number in range(1, 7):
                session.run(step, {factor: number})
            return session.run(variables)


def eagerly(gradients, passes):
    variables = [tf.Variable(np.ones((5, 3))), tf.Variable(np.zeros(7))]
    optimizer = distributed(passes)
    for number in range(1, 7):
        optimizer.apply_gradients([(tf.constant(g) * number, v) for g, v in zip(gradients, variables)])
    return [v.numpy() for v in variables]


def check_adasum_of_steps():
    everyones = all_ranks()
    for passes in (1, 3):
        want = momentum_steps(everyones, passes)
        for way in (in_session, eagerly):
            for got, right in zip(way(everyones[hvd.rank()][:2], passes), want):
                np.testing.assert_allclose(got, right, rtol=1e-6)  # the rate is float32
