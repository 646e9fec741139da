"""Optimizers, hooks and checkpoints of version 1 graphs. For training.py."""

import json
import os
import time

import numpy as np
import tensorflow as tf

import maypole.tensorflow as hvd
from maypole.tensorflow import gradient_aggregation_eager
from tape_checks import close, mean, refused

v1 = tf.compat.v1
DIR = os.environ["MAYPOLE_TEST_DIR"]
_random = np.random.RandomState(5)
START = _random.randn(3, 1).astype(np.float32)
X = _random.randn(24, 3).astype(np.float32)
Y = X.sum(1, keepdims=True) ** 2


def rows(distributed):
    if distributed:
        return X[hvd.rank()::hvd.size()], Y[hvd.rank()::hvd.size()]
    return X, Y


def model(x, y):
    w = v1.get_variable("w", initializer=START)
    return w, tf.reduce_mean((tf.tanh(x @ w) - y)**2)


def trained(optimizer, steps, distributed, batches=1):
    """The losses and last weights of `steps` steps under a MonitoredTrainingSession, and its global step."""
    with tf.Graph().as_default():
        x, y = rows(distributed)
        batch = v1.placeholder(tf.int32, [])
        size = len(x) // batches
        part = slice(batch * size, (batch + 1) * size)
        w, loss = model(tf.constant(x)[part], tf.constant(y)[part])
        step = v1.train.get_or_create_global_step()
        with tf.control_dependencies([loss]):
            train_op = optimizer().minimize(loss, global_step=step)
        hooks = [hvd.BroadcastGlobalVariablesHook(0)] if distributed else []
        with v1.train.MonitoredTrainingSession(hooks=hooks) as session:
            losses = [session.run([loss, train_op], {batch: i % batches})[0] for i in range(steps)]
            return losses, session.run(w, {batch: 0}), session.run(step, {batch: 0})


def averaged(losses):
    return hvd.allreduce(tf.constant(losses), name="losses")


def check_losses_are_those_of_one_process():
    for make in (lambda: v1.train.MomentumOptimizer(0.1, 0.9), lambda: v1.train.AdamOptimizer(0.05)):
        together, weights, steps = trained(lambda: hvd.DistributedOptimizer(make()), 8, True)
        alone, weights1, _ = trained(make, 8, False)
        close(averaged(together), alone, 1e-4)
        close(weights, weights1, 1e-4)
        assert steps == 8, steps


def check_aggregation():
    """Of three batches, every third step applies their sum or mean: one step of all three."""
    for average in (True, False):
        rate = 0.1 if average else 0.1 / 3
        together, weights, steps = trained(
            lambda: hvd.DistributedOptimizer(v1.train.GradientDescentOptimizer(rate), backward_passes_per_step=3,
                                             average_aggregated_gradients=average), 9, True, batches=3)
        alone, weights1, _ = trained(lambda: v1.train.GradientDescentOptimizer(0.1), 3, False)
        close(weights, weights1, 1e-4)
        assert steps == 9, steps
        close(np.mean(averaged(together)[:3]), alone[0], 1e-4)


def check_aggregation_eager():
    helper = gradient_aggregation_eager.LocalGradientAggregationHelperEager
    a, b, c = tf.Variable([1.0, 1.0]), tf.Variable(2.0), tf.Variable(0.0)

    def reduced(gradients, variables):
        assert len(gradients) == len(variables)
        return [hvd.allreduce(g, name="aggregated.%d" % i) for i, g in enumerate(gradients)]

    for wrap in (lambda f: f, tf.function):
        aggregation = helper(2, reduced, sparse_as_dense=True, average_aggregated_gradients=False)
        aggregation.register_local_var(b)
        applied = tf.Variable(0)

        @wrap
        def step(scale):
            slices = tf.IndexedSlices(tf.reshape(scale, [1]), tf.constant([1]), tf.constant([2]))
            gradients = aggregation.compute_gradients([slices, scale * 10.0, None], [a, b, c])
            assert gradients[2] is None
            aggregation.apply_gradients(lambda: applied.assign_add(1), None, zip(gradients, [a, b, c]))
            return gradients[:2]

        for turn in range(2):
            mine = tf.constant(hvd.rank() + 1.0)
            close(step(mine)[0], [0.0, hvd.rank() + 1.0])
            assert applied.numpy() == turn
            of_a, of_b = step(mine)
            close(of_a, [0.0, 2 * mean(lambda r: r + 1.0)])
            close(of_b, 20.0 * (hvd.rank() + 1.0) / hvd.size())
            assert applied.numpy() == turn + 1
    refused(lambda: helper(0, reduced, False, False), ValueError, "expected a positive integer")
    sparse = helper(2, reduced, False, False)
    refused(lambda: sparse.compute_gradients([tf.IndexedSlices([1.0], [1], [2])], [a]), ValueError, "sparse_as_dense")


def check_local_variables_and_sparse():
    with tf.Graph().as_default(), v1.Session() as session:
        table = v1.get_variable("table", initializer=np.ones([4, 1], np.float32))
        own = v1.get_variable("own", initializer=1.0)
        loss = tf.reduce_sum(tf.gather(table, [hvd.rank(), 3])) * (hvd.rank() + 1.0) + own * (hvd.rank() + 1.0)
        optimizer = hvd.DistributedOptimizer(v1.train.GradientDescentOptimizer(1.0))
        optimizer.register_local_var(own)
        pairs = optimizer.compute_gradients(loss)
        assert isinstance(pairs[0][0], tf.IndexedSlices)
        train_op = optimizer.apply_gradients(pairs)
        session.run(v1.global_variables_initializer())
        session.run(train_op)
        wanted = np.ones([4, 1])
        for r in range(hvd.size()):
            wanted[r] -= (r + 1.0) / hvd.size()
            wanted[3] -= (r + 1.0) / hvd.size()
        close(session.run(table), wanted)
        close(session.run(own), 1.0 - (hvd.rank() + 1.0) / hvd.size())


def check_two_optimizers_in_one_graph():
    """As of a GAN: the same names in both, and all in flight at once."""
    with tf.Graph().as_default(), v1.Session() as session:
        w = [v1.get_variable("w%d" % i, initializer=1.0) for i in range(3)]
        loss = tf.add_n(w) * (hvd.rank() + 1.0)
        both = [hvd.DistributedOptimizer(v1.train.GradientDescentOptimizer(rate)).compute_gradients(loss)
                for rate in (0.1, 0.2)]
        session.run(v1.global_variables_initializer())
        for pairs in session.run([[g for g, _ in pairs] for pairs in both]):
            close(pairs, [mean(lambda r: r + 1.0)] * 3)


def check_wrong_optimizers():
    refused(lambda: hvd.DistributedOptimizer(object()), ValueError, "expected an optimizer")


def check_keras_optimizers():
    """They are those of maypole.tensorflow.keras."""
    w = tf.Variable([1.0, 2.0])
    optimizer = hvd.DistributedOptimizer(tf.keras.optimizers.SGD(0.5), op=hvd.Sum)
    assert isinstance(optimizer, tf.keras.optimizers.SGD), optimizer
    optimizer.apply_gradients([(tf.constant([1.0, 3.0]) * (hvd.rank() + 1.0), w)])
    total = sum(range(1, hvd.size() + 1))
    close(w, [1.0 - 0.5 * total, 2.0 - 1.5 * total])


def check_slots_are_the_wrapped_ones():
    with tf.Graph().as_default():
        w, loss = model(*rows(True))
        wrapped = v1.train.MomentumOptimizer(0.1, 0.9)
        optimizer = hvd.DistributedOptimizer(wrapped)
        assert optimizer.get_name() == "DistributedMomentumOptimizer"
        optimizer.minimize(loss)
        assert optimizer.get_slot_names() == ["momentum"]
        assert optimizer.get_slot(w, "momentum") is wrapped.get_slot(w, "momentum")
        assert [v.name for v in optimizer.variables()] == [v.name for v in wrapped.variables()]


def check_hook_and_a_checkpoint_of_rank_0():
    """Rank 0 alone has a checkpoint; the hook runs after it is restored, so all ranks go on from it."""
    directory = os.path.join(DIR, "checkpoint") if hvd.rank() == 0 else None
    for turn in range(2):
        with tf.Graph().as_default():
            v = v1.get_variable("v", initializer=float(hvd.rank() + 1))
            local = v1.get_variable("local", initializer=float(hvd.rank()), collections=[v1.GraphKeys.LOCAL_VARIABLES])
            step = v1.train.get_or_create_global_step()
            add = tf.group(v.assign_add(10.0), step.assign_add(1))
            hook = hvd.BroadcastGlobalVariablesHook(root_rank=0)
            with v1.train.MonitoredTrainingSession(checkpoint_dir=directory, hooks=[hook],
                                                   save_checkpoint_steps=1) as session:
                close(session.run(v), 1.0 + 20.0 * turn)
                close(session.run(local), hvd.rank())
                assert session.run(step) == 2 * turn
                session.run(add)
                session.run(add)


def check_a_variable_that_one_rank_uses():
    """The optimizers of version 1, eager and in a graph: rank 0's variable moves on all ranks by its part."""
    makes = [lambda: hvd.DistributedOptimizer(v1.train.GradientDescentOptimizer(1.0)),
             lambda: hvd.DistributedOptimizer(v1.train.GradientDescentOptimizer(1.0), backward_passes_per_step=2),
             lambda: hvd.DistributedOptimizer(v1.train.GradientDescentOptimizer(1.0), op=hvd.Adasum)]
    for make, steps, moved in zip(makes, (1, 2, 1), (1 / hvd.size(), 2 / hvd.size(), 1.0)):
        optimizer = make()
        both, one, none = [tf.Variable([1.0], name=name) for name in ("both", "one", "none")]

        def loss():
            return tf.reduce_sum(both) + (tf.reduce_sum(one) if hvd.rank() == 0 else 0.0)

        for _ in range(steps):
            optimizer.apply_gradients(optimizer.compute_gradients(loss, [both, one, none]))
        close([both[0], one[0], none[0]], [1.0 - steps, 1.0 - moved, 1.0])
        with tf.Graph().as_default(), v1.Session() as session:
            both, one, none = [v1.get_variable(name, initializer=[1.0]) for name in ("both", "one", "none")]
            optimizer = make()
            step = optimizer.apply_gradients(optimizer.compute_gradients(loss(), [both, one, none]))
            session.run([v1.global_variables_initializer(), v1.local_variables_initializer()])
            for _ in range(steps):
                session.run(step)
            close(session.run([both[0], one[0], none[0]]), [1.0 - steps, 1.0 - moved, 1.0])


def check_eager_has_no_global_variables():
    refused(lambda: hvd.broadcast_global_variables(0), RuntimeError, "broadcast_variables")


def check_loops():
    """Only the collectives need time, and iterations have one name. In a function one begins when the one before has
    ended, whatever parallel_iterations says; a session runs as many at once as it says."""

    def late(i):  # another rank in each iteration
        if i % hvd.size() == hvd.rank():
            time.sleep(0.01)
        return True

    def total(x, parallel):

        def body(i, sum_):
            with tf.control_dependencies([tf.numpy_function(late, [i], tf.bool)]):
                return i + 1, sum_ + hvd.allreduce(x * tf.cast(i, tf.float32), name="of a loop")

        return tf.while_loop(lambda i, sum_: i < 20, body, [0, 0.0], parallel_iterations=parallel)[1]

    mine, wanted = hvd.rank() + 1.0, 190 * mean(lambda r: r + 1.0)
    for parallel in (1, 10):
        close(tf.function(total)(tf.constant(mine), parallel), wanted)
    with tf.Graph().as_default(), v1.Session() as session:
        close(session.run(total(tf.constant(mine), 1)), wanted)


class FailsOnce(v1.train.SessionRunHook):
    """A step ends with the error after which a MonitoredSession makes a new session."""

    def __init__(self):
        self.failed = False

    def after_run(self, run_context, run_values):
        if not self.failed:
            self.failed = True
            raise tf.errors.AbortedError(None, None, "once")


def check_a_state_follows_its_session():
    with tf.Graph().as_default():
        w = v1.get_variable("w", initializer=1.0)
        add = w.assign_add(1.0)
        with v1.train.MonitoredTrainingSession(hooks=[FailsOnce()]) as session:
            state = hvd.elastic.TensorFlowState(session=session)
            session.run(add)  # of the old session, and again of the new one
            state.save()
            session.run(add)
            close(session.run(w), 3.0)
            state.restore()
            close(session.run(w), 2.0)
            state.sync()


def check_what_is_left_for_serving():
    """Trains with a checkpoint on rank 0 and freezes its graph there; serve.py does the rest, for the test."""
    directory = os.path.join(DIR, "served", "checkpoint") if hvd.rank() == 0 else None
    with tf.Graph().as_default():
        x = v1.placeholder_with_default(rows(True)[0], [None, 3], name="x")
        w = v1.get_variable("w", initializer=START)
        prediction = tf.tanh(x @ w, name="prediction")
        loss = tf.reduce_mean((prediction - rows(True)[1])**2)
        step = v1.train.get_or_create_global_step()
        train_op = hvd.DistributedOptimizer(v1.train.AdamOptimizer(0.05)).minimize(loss, global_step=step)
        with v1.train.MonitoredTrainingSession(checkpoint_dir=directory, hooks=[
                hvd.BroadcastGlobalVariablesHook(0), v1.train.StopAtStepHook(last_step=4)]) as session:
            while not session.should_stop():
                session.run(train_op)
    if hvd.rank() == 0:
        freeze(tf.train.latest_checkpoint(directory))


def freeze(checkpoint):
    with tf.Graph().as_default() as graph, v1.Session() as session:
        v1.train.import_meta_graph(checkpoint + ".meta").restore(session, checkpoint)
        assert any(node.op.startswith("Maypole") for node in graph.as_graph_def().node)
        frozen = v1.graph_util.convert_variables_to_constants(session, graph.as_graph_def(), ["prediction"])
        assert not any(node.op.startswith("Maypole") for node in frozen.node)
        served = np.arange(6, dtype=np.float32).reshape(2, 3) / 6
        with open(os.path.join(DIR, "served", "prediction.json"), "w") as f:
            json.dump(session.run("prediction:0", {"x:0": served}).tolist(), f)
    with open(os.path.join(DIR, "served", "frozen.pb"), "wb") as f:
        f.write(frozen.SerializeToString())
