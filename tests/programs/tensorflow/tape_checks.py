"""DistributedGradientTape: its gradients on every rank. For training.py."""

import os
import time

import numpy as np
import tensorflow as tf

import maypole.tensorflow as hvd
from maypole.tensorflow import _gradient_reduction, reductions, util


def mean(values):
    """The mean over the ranks of values(rank)."""
    return sum(values(r) for r in range(hvd.size())) / hvd.size()


def close(got, wanted, relative=1e-5):
    np.testing.assert_allclose(np.asarray(got), np.asarray(wanted), rtol=relative, atol=1e-6)


def refused(function, kind, text):
    try:
        function()
    except kind as error:
        assert text in str(error), (text, error)
    else:
        raise AssertionError("expected a %s about %r" % (getattr(kind, "__name__", kind), text))


class Names:
    """The names under which gradients are submitted within it."""

    def __enter__(self):
        self.seen = []
        self._real = reductions.grouped_allreduce

        def grouped(tensors, **kwargs):
            self.seen.append((kwargs["name"], len(tensors)))
            return self._real(tensors, **kwargs)

        reductions.grouped_allreduce = grouped
        return self.seen

    def __exit__(self, *_):
        reductions.grouped_allreduce = self._real


def two_variables():
    return tf.Variable([1.0, 2.0], name="first"), tf.Variable([[3.0]], name="second")


def loss_of(a, b):
    return tf.reduce_sum(a) * (hvd.rank() + 1.0) + tf.reduce_sum(b * b)


def check_eager_structures_and_none():
    a, b = two_variables()
    unused = tf.Variable(1.0)
    with tf.GradientTape() as tape:
        loss = loss_of(a, b)
    tape = hvd.DistributedGradientTape(tape)
    assert isinstance(tape, tf.GradientTape)
    gradients = tape.gradient(loss, {"x": [a, unused], "y": (b,)})
    close(gradients["x"][0], [mean(lambda r: r + 1.0)] * 2)
    assert gradients["x"][1] is None
    close(gradients["y"][0], [[6.0]])
    with tf.GradientTape() as tape:
        loss = loss_of(a, b)
    one = hvd.DistributedGradientTape(tape).gradient(loss, a)  # not a list
    close(one, [mean(lambda r: r + 1.0)] * 2)


def check_a_variable_that_some_ranks_use():
    """Zeros come from the ranks that have no gradient; what no rank has stays None. (It hung.)"""
    last = hvd.size() - 1
    everyones, some, table, none = [tf.Variable(tf.ones([5, 2]), name=name) for name in ("e", "s", "t", "n")]

    def gradients(use, **kwargs):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(everyones)
            if hvd.rank() == use:
                loss += tf.reduce_sum(some) + tf.reduce_sum(tf.gather(table, tf.constant([1, 1], tf.int64)))
            elif hvd.rank() == 0:  # dense here
                loss += tf.reduce_sum(table)
        found = hvd.DistributedGradientTape(tape, **kwargs).gradient(loss, [everyones, some, table, none])
        assert found[3] is None, found
        return found[:3]

    rows = np.zeros([5, 2])
    rows[1] = 2
    for kwargs in ({}, {"sparse_as_dense": True}):
        for run in (lambda f: f, tf.function):
            for use in (0, last):
                first, second, third = run(lambda use=use: gradients(use, **kwargs))()
                close(first, np.ones([5, 2]))
                close(second, np.full([5, 2], 1 / hvd.size()))
                close(tf.convert_to_tensor(third), (rows + (use != 0)) / hvd.size())
                assert not kwargs or not isinstance(third, tf.IndexedSlices)
    # Only of the gradients that one step has, as in one process: no zeros of earlier steps.
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(everyones)
    assert hvd.DistributedGradientTape(tape).gradient(loss, [everyones, some])[1] is None


def check_tables_that_one_rank_uses():
    table = tf.Variable(tf.ones([5, 2]))
    for integer in (tf.int32, tf.int64):
        for run in (lambda f: f, tf.function):

            def gradient():
                with tf.GradientTape() as tape:
                    loss = tf.reduce_sum(table * 0.0) if hvd.rank() < 0 else tf.constant(0.0)
                    if hvd.rank() == hvd.size() - 1:
                        loss += tf.reduce_sum(tf.gather(table, tf.constant([3], integer)))
                return hvd.DistributedGradientTape(tape).gradient(loss, table)

            found = run(gradient)()
            assert isinstance(found, tf.IndexedSlices) and found.indices.shape == [1], found
            close(found.values, np.full([1, 2], 1 / hvd.size()))


def check_a_function_that_one_rank_traces_again():
    """Without the others, also with a variable that no rank uses, and one that some use."""
    a, b = two_variables()
    unused = tf.Variable(1.0, name="unused")

    @tf.function
    def retraced(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(a) * tf.reduce_mean(x)
            if hvd.rank() == 0:
                loss += tf.reduce_sum(b)
        return hvd.DistributedGradientTape(tape).gradient(loss, [a, b, unused])[:2]

    for rows in (4, 4 - hvd.rank() % 2):
        close(retraced(tf.ones([rows]))[1], [[1 / hvd.size()]])


def check_different_variables_are_an_error():
    a, b = two_variables()
    mine = [a, b] if hvd.rank() == 0 else [a]
    with tf.GradientTape(persistent=True) as tape:
        loss = loss_of(a, b)
    tape = hvd.DistributedGradientTape(tape)
    refused(lambda: tape.gradient(loss, mine), ValueError, "'second float32(1, 1)' on rank 0 but not on rank 1")
    refused(lambda: tf.function(lambda: tape.gradient(loss, mine))(), ValueError, "of different variables")
    named = tf.Variable([1.0], name="of_rank_%d" % hvd.rank())
    with tf.GradientTape(persistent=True) as tape:
        loss = tf.reduce_sum(named)
    tape = hvd.DistributedGradientTape(tape)
    refused(lambda: tape.gradient(loss, named), ValueError, "use_generic_names=True")
    close(tape.gradient(loss, named, use_generic_names=True), [1.0])
    close(tape.gradient(loss, named, None, True), [1.0])  # where Horovod has it


def check_unconnected_gradients():
    a, b = two_variables()
    unused = tf.Variable([1.0, 2.0])
    with tf.GradientTape(persistent=True) as tape:
        loss = loss_of(a, b)
    tape = hvd.DistributedGradientTape(tape)
    zero = tf.UnconnectedGradients.ZERO
    close(tape.gradient(loss, unused, unconnected_gradients=zero), [0.0, 0.0])
    close(tape.gradient(loss, [a, unused], None, zero)[1], [0.0, 0.0])
    close(tape.gradient(loss, [a, unused], None, "zero")[1], [0.0, 0.0])
    assert tape.gradient(loss, [a, unused], None, tf.UnconnectedGradients.NONE)[1] is None


def check_one_local_source():
    """One source that is no list, which stays local."""
    scalar, vector = tf.Variable(3.0), tf.Variable([1.0, 2.0])
    mine = (hvd.rank() + 1.0) / hvd.size()

    def gradient(source, function):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(scalar * vector) * (hvd.rank() + 1.0)
        tape = hvd.DistributedGradientTape(tape)
        tape.register_local_source(source)
        return getattr(tape, function)(loss, source)

    for run in (lambda f: f, tf.function):
        for source, wanted in ((scalar, 3.0 * mine), (vector, [3.0 * mine] * 2)):
            close(run(lambda: gradient(source, "gradient"))(), wanted)
            (local,), others = run(lambda: gradient(source, "get_local_and_global_gradients"))()
            close(local, wanted)
            assert not others
        close(run(lambda: gradient([scalar, vector], "gradient"))()[0], 3.0 * mine)


def check_persistent_and_inside_the_block():
    a, b = two_variables()
    with hvd.DistributedGradientTape(tf.GradientTape(persistent=True)) as tape:
        x = tf.constant(2.0)
        tape.watch(x)
        loss = loss_of(a, b) * x
        with tape.stop_recording():
            loss_of(a, b)
    for _ in range(2):
        close(tape.gradient(loss, [a])[0], [2 * mean(lambda r: r + 1.0)] * 2)
    close(tape.gradient(loss, x), mean(lambda r: 3.0 * (r + 1) + 9.0))
    assert [v.ref() for v in tape.watched_variables()] == [a.ref(), b.ref()]
    with tf.GradientTape() as inner:
        outer = hvd.DistributedGradientTape(inner)  # before it is used
        loss = loss_of(a, b)
    close(outer.gradient(loss, [b])[0], [[6.0]])


def check_function_retraces_and_names():
    a, b = two_variables()

    @tf.function
    def step(x):
        with tf.GradientTape() as first, tf.GradientTape() as second:
            loss = loss_of(a, b) * tf.reduce_sum(x)
            other = 2.0 * loss
        return (hvd.DistributedGradientTape(first).gradient(loss, [a, b]),
                hvd.DistributedGradientTape(second).gradient(other, [a, b]))

    with Names() as names:
        for shape in ([1], [1, 1], [1, 1, 1]):  # each is traced
            one, two = step(tf.ones(shape))
            close(one[0], [mean(lambda r: r + 1.0)] * 2)
            close(two[1], [[12.0]])
        step(tf.ones([1]))  # is not
    assert len(names) == 6, names
    assert names[0] == names[2] == names[4] and names[1] == names[3] == names[5], names
    assert names[0] != names[1], names
    assert "second" in names[0][0], names


def check_loop_in_a_function():
    """Iterations have one name: each begins when the one before has ended."""
    w = tf.Variable([8.0, 8.0])

    @tf.function
    def steps(count):
        for _ in tf.range(count):
            with tf.GradientTape() as tape:
                loss = (hvd.rank() + 1.0) * tf.reduce_sum(w * w)
            w.assign_sub(0.1 * hvd.DistributedGradientTape(tape).gradient(loss, w))

    steps(tf.constant(20))
    close(w, [8.0 * (1 - 0.2 * mean(lambda r: r + 1.0)) ** 20] * 2, 1e-4)


def late(value, on_rank_0):
    """Returns the value, a bit later on rank 0 or on the others."""

    def wait(x):
        time.sleep(0.2 if (hvd.rank() == 0) == on_rank_0 else 0)
        return x

    same = tf.numpy_function(wait, [value], tf.float32, stateful=False)
    same.set_shape(value.shape)
    return same


def check_one_name_in_two_places_of_a_function():
    """Calls of a function, branches and scopes: each gets its own gradients, in whatever order they are ready."""
    v = tf.Variable([1.0])

    def gradient_of(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(v * x)
        return hvd.DistributedGradientTape(tape).gradient(loss, [v])[0]

    inner = tf.function(gradient_of)
    inner(tf.ones([1]))  # is traced before the function that calls it

    @tf.function
    def two_calls(a, b):
        return inner(late(a, True)), inner(late(b, False))

    @tf.function
    def call_and_own(a, b):
        called, own = inner(late(a, True)), gradient_of(late(b, False))
        return called + 0.0 * own, own, inner(late(b, True))

    @tf.function
    def own_and_branch(a, b, yes):
        own = gradient_of(late(a, True))
        return own, tf.cond(yes, lambda: gradient_of(late(b, False)), lambda: tf.zeros([1]))

    @tf.function
    def scopes(a, b):
        a, b = late(a, True), late(b, False)
        with tf.name_scope("first"):
            a = hvd.allreduce(a, name="x", ignore_name_scope=True)
        with tf.name_scope("second"):
            return a, hvd.allreduce(b, name="x", ignore_name_scope=True)

    one, two = tf.constant([1.0]), tf.constant([100.0])
    for results in (two_calls(one, two), call_and_own(one, two), own_and_branch(one, two, tf.constant(True)),
                    scopes(one, two)):
        close(results[0], [1.0])
        for result in results[1:]:
            close(result, [100.0])


def check_other_variables_are_broadcast():
    """Ranks that pass other variables to broadcast_variables() than others get an error that names them."""
    variables = [tf.Variable([float(hvd.rank())]) for _ in range(3)]
    refused(lambda: hvd.broadcast_variables(variables if hvd.rank() == 0 else variables[:1], 0), ValueError,
            "'1: float32(1,)', '2: float32(1,)' on rank 0 but not on rank 1")
    hvd.broadcast_variables(variables, 0)
    close(variables[2], [0.0])


def check_names_without_counts():
    """As elastic jobs use them, in which a new process has not made the models that the others have made before."""
    assert util.without_counts(["m_3.dense_7.kernel", "m_3.dense_9.kernel", "x_y"]) == [
        "m.dense.kernel", "m.dense_1.kernel", "x_y"]
    assert util.without_counts(["dense_2.kernel", "dense.kernel"]) == ["dense_1.kernel", "dense.kernel"]


def check_indexed_slices():
    table = tf.Variable(tf.ones([5, 2]))
    rows = tf.constant([hvd.rank(), 4])

    def gradient(**kwargs):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.gather(table, rows)) * (hvd.rank() + 1.0)
        return hvd.DistributedGradientTape(tape, **kwargs).gradient(loss, table)

    wanted = np.zeros([5, 2])
    for r in range(hvd.size()):
        wanted[r] += (r + 1.0) / hvd.size()
        wanted[4] += (r + 1.0) / hvd.size()
    sparse = gradient()
    assert isinstance(sparse, tf.IndexedSlices)
    assert sparse.indices.shape[0] == 2 * hvd.size()
    close(tf.convert_to_tensor(sparse), wanted)
    close(tf.convert_to_tensor(tf.function(gradient)()), wanted)
    close(gradient(sparse_as_dense=True), wanted)


def check_groups_and_types():
    variables = [tf.Variable(float(i), name="v%d" % i) for i in range(4)]
    variables.append(tf.Variable(4.0, dtype=tf.float64, name="double"))

    def gradients(groups, check=True, **kwargs):
        with tf.GradientTape() as tape:
            loss = (hvd.rank() + 1.0) * tf.add_n([v * v for v in variables[:4]])
            loss += tf.cast(variables[4] * variables[4], tf.float32)
        with Names() as names:
            found = hvd.DistributedGradientTape(tape, groups=groups, **kwargs).gradient(loss, variables)
        for i in range(4) if check else ():
            close(found[i], 2.0 * i * mean(lambda r: r + 1.0))
        if check:
            close(found[4], 8.0)
        assert found[4].dtype == tf.float64
        return [n for _, n in names]

    assert gradients(None) == [5]
    assert gradients(2) == [3, 2]
    assert gradients([[variables[3], variables[0]], [variables[1]]]) == [2, 1, 1, 1]
    gradients(None, compression=hvd.Compression.fp16)
    gradients(None, device_dense="/cpu:0", device_sparse="/cpu:0")
    before = _gradient_reduction._GROUP_BYTES
    _gradient_reduction._GROUP_BYTES = 8
    try:
        assert gradients(None) == [5]
        in_graph = []
        tf.function(lambda: in_graph.extend(gradients(None, check=False)))()
        assert in_graph == [1, 2, 2], in_graph  # from the last, of 8 bytes, to the first
    finally:
        _gradient_reduction._GROUP_BYTES = before


def check_reductions():
    a, b = two_variables()

    def gradient(**kwargs):
        with tf.GradientTape() as tape:
            loss = loss_of(a, b)
        return hvd.DistributedGradientTape(tape, **kwargs).gradient(loss, [a, b])[0][0]

    total = sum(range(1, hvd.size() + 1))
    close(gradient(op=hvd.Sum), total)
    close(gradient(op=hvd.Max), hvd.size())
    close(gradient(op=hvd.Adasum), total / hvd.size())  # of gradients that are parallel, the mean
    close(gradient(gradient_predivide_factor=3.0), total / hvd.size())
    refused(lambda: gradient(op=hvd.Sum, gradient_predivide_factor=2.0), ValueError, "needs op=Average")
    refused(lambda: gradient(groups="two"), ValueError, "list of lists")


def check_process_set():
    evens = hvd.add_process_set(range(0, hvd.size(), 2))
    if evens.included():
        a, b = two_variables()
        with tf.GradientTape() as tape:
            loss = loss_of(a, b)
        found = hvd.DistributedGradientTape(tape, process_set=evens).gradient(loss, [a])
        close(found[0][0], np.mean([r + 1.0 for r in evens.ranks]))
    hvd.remove_process_set(evens)


def trained_alone_or_not(run, steps=6, start=1.0, rate=0.1, broadcast_after=None, passes=1, skipped=None, local=False):
    """Trains variables in a loop of its own, eagerly or in a function: run is tf.function or leaves its argument alone.

    start, rate: this rank's. broadcast_after: the step after which rank 0's variables are broadcast. passes: how often
    gradients are reduced in a step. skipped: the step whose gradients are not applied on the last rank.
    """
    a, b = tf.Variable(tf.fill([3, 2], start), name="kernel"), tf.Variable([0.5], name="bias")
    table = tf.Variable(tf.fill([4, 1], start), name="table")

    @run
    def step(applies):
        for _ in range(passes):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(a * a) * (hvd.rank() + 1.0) + tf.reduce_sum(b) * tf.reduce_sum(tf.gather(table, [1]))
            tape = hvd.DistributedGradientTape(tape)
            if local:
                tape.register_local_source([a, table])
            gradients = tape.gradient(loss, [a, b, table])
        if applies:
            for v, g in zip((a, b, table), gradients):
                v.assign_sub(rate * tf.convert_to_tensor(g))

    for i in range(steps):
        step(i != skipped or hvd.rank() != hvd.size() - 1)
        if i == broadcast_after:
            hvd.broadcast_variables([a, b, table], 0)
    return a.numpy()


def check_ranks_that_begin_differently():
    """A loop that never broadcasts ends with an error that names the variable; one that does so later goes on."""
    own = hvd.rank() + 1.0
    for run in (lambda f: f, tf.function):
        refused(lambda: trained_alone_or_not(run, start=own), (ValueError, tf.errors.InvalidArgumentError),
                "begin with different weights of parameter 'kernel': checksum ")
        everyones = hvd.allgather(trained_alone_or_not(run, start=own, broadcast_after=0, passes=3)[tf.newaxis], name="alike")
        assert np.all(everyones == everyones[0]), everyones
        os.environ["MAYPOLE_CHECK_START"] = "0" if hvd.rank() > 0 else "1"
        trained_alone_or_not(run, start=own)
        del os.environ["MAYPOLE_CHECK_START"]
    trained_alone_or_not(lambda f: f, start=own, local=True)


def check_ranks_that_become_different():
    """A rank that skips a step after its gradients were reduced, or has another learning rate, ends all with an error."""
    refused(lambda: trained_alone_or_not(tf.function, steps=5, skipped=2), tf.errors.InvalidArgumentError,
            "were equal before")
    for kwargs in ({"skipped": 4}, {"rate": 0.1 / (hvd.rank() + 1), "broadcast_after": 0}):  # eagerly in the next step
        refused(lambda: trained_alone_or_not(lambda f: f, **kwargs), ValueError, "were equal before")


def check_local_sources():
    a, b = two_variables()
    for scale in (True, False):
        with tf.GradientTape(persistent=True) as tape:
            loss = loss_of(a, b)
        tape = hvd.DistributedGradientTape(tape, scale_local_gradients=scale)
        tape.register_local_source(a)
        mine = (hvd.rank() + 1.0) / (hvd.size() if scale else 1)
        close(tape.gradient(loss, [a, b])[0], [mine] * 2)
        local, others = tape.get_local_and_global_gradients(loss, [a, b])
        close(local[0], [mine] * 2)
        close(others[0], [[6.0]])
    with Names() as names:
        tape.gradient(loss, [b], use_generic_names=True)
    assert names[0][0].endswith("gradient_0"), names


def check_partial_tape():
    own, shared = tf.keras.layers.Dense(1, use_bias=False), tf.keras.layers.Dense(1, use_bias=False)
    x = tf.ones([2, 3]) * (hvd.rank() + 1.0)
    shared(own(x))
    for layer, value in ((own, [[1.0], [0.0], [0.0]]), (shared, [[1.0]])):
        layer.set_weights([np.array(value, np.float32)])
    for layers in (own, [own]):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(shared(own(x)))
        tape = hvd.PartialDistributedGradientTape(tape, local_layers=layers)
        first, second = tape.gradient(loss, own.trainable_variables + shared.trainable_variables)
        close(first, [[(hvd.rank() + 1.0) / hvd.size()]] * 3)
        close(second, [[mean(lambda r: r + 1.0)]])
    refused(lambda: hvd.PartialDistributedGradientTape(tape, local_layers=["own"]), ValueError,
            "expected a Keras layer")


def check_losses_are_those_of_one_process():
    """Ten steps with Adam's arithmetic: each rank with its rows, and all of them here."""
    random = np.random.RandomState(3)
    x = random.randn(8 * hvd.size(), 6).astype(np.float32)
    y = np.tanh(x.sum(1, keepdims=True))
    start = random.randn(6, 4).astype(np.float32), random.randn(4, 1).astype(np.float32)
    mine = slice(hvd.rank(), None, hvd.size())

    def losses(x, y, distributed):
        weights = [tf.Variable(w) for w in start]
        momenta = [tf.Variable(tf.zeros_like(w)) for w in start]

        @tf.function
        def step():
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((tf.tanh(x @ weights[0]) @ weights[1] - y)**2)
            if distributed:
                tape = hvd.DistributedGradientTape(tape)
            for w, m, g in zip(weights, momenta, tape.gradient(loss, weights)):
                m.assign(0.9 * m + g)
                w.assign_sub(0.1 * m)
            return loss

        return [float(step()) for _ in range(10)]

    together = losses(x[mine], y[mine], True)
    averaged = [float(hvd.allreduce(tf.constant(loss), name="loss")) for loss in together]
    alone = losses(x, y, False)
    close(averaged, alone, 1e-4)
    assert alone[-1] < 0.7 * alone[0], alone
