"""Every collective of maypole.tensorflow by value: eager, in a tf.function, in a session of compat.v1.

All operations of one way of running are in one function, so that a job's ranks import TensorFlow once. The expected
values are computed by NumPy from the inputs of all ranks. Records the version and the number of compared values.
"""

import numpy as np
import tensorflow as tf

import maypole.tensorflow as hvd
import rank
from maypole.tensorflow import _nodes

DTYPES = [tf.float16, tf.bfloat16, tf.float32, tf.float64, tf.int8, tf.int16, tf.int32, tf.int64, tf.uint8, tf.uint16]
FLOATS = [tf.float16, tf.bfloat16, tf.float32, tf.float64]


def value(r, dtype, rows=2):
    """The input of rank r: [rows, 3], small whole numbers."""
    return (np.arange(rows * 3).reshape(rows, 3) % 4 + r + 1).astype(dtype.as_numpy_dtype)


class Cases:
    """What to run, and what must come out: (name, function, expected)."""

    def __init__(self):
        self.me, self.n = hvd.rank(), hvd.size()
        self.evens = hvd.add_process_set(list(range(0, self.n, 2)))
        self.all = []
        self.reductions()
        self.movements()
        self.on_process_sets()
        self.sparse()
        self.gradients()

    def add(self, name, function, expected):
        self.all.append((name, function, expected))

    def inputs(self, dtype, rows=2):
        return [value(r, dtype, rows) for r in range(self.n)]

    def reductions(self):
        for dtype in DTYPES:
            x, everyone = self.inputs(dtype)[self.me], np.stack(self.inputs(dtype))
            for op, reduced in ((hvd.Sum, everyone.sum(0)), (hvd.Min, everyone.min(0)), (hvd.Max, everyone.max(0)),
                                (hvd.Product, everyone.prod(0))):
                self.add("allreduce %s %d" % (dtype.name, op),
                         lambda x=x, op=op: hvd.allreduce(tf.constant(x), op=op), reduced.astype(x.dtype))
        for dtype in FLOATS:
            x, everyone = self.inputs(dtype)[self.me], np.stack(self.inputs(dtype)).astype(np.float64)
            self.add("average " + dtype.name, lambda x=x: hvd.allreduce(tf.constant(x)),
                     everyone.mean(0).astype(x.dtype))
        for flag, op in ((False, hvd.Sum), (True, hvd.Product)):
            mine = np.array([flag, self.me == 0, True])
            self.add("bool %d" % op, lambda x=mine, op=op: hvd.allreduce(tf.constant(x), op=op),
                     np.array([flag, op == hvd.Sum or self.n == 1, True]))
        x, everyone = self.inputs(tf.float64)[self.me], np.stack(self.inputs(tf.float64))
        self.add("factors", lambda: hvd.allreduce(tf.constant(x), op=hvd.Sum, prescale_factor=1 / 3,
                                                  postscale_factor=0.7), (everyone / 3).sum(0) * 0.7)
        whole, all_whole = self.inputs(tf.int32)[self.me], np.stack(self.inputs(tf.int32))
        self.add("factors of integers", lambda: hvd.allreduce(tf.constant(whole), average=True, prescale_factor=2.0,
                                                              postscale_factor=0.5),
                 np.trunc((all_whole * 2).sum(0) * 0.5 / self.n).astype(np.int32))
        for compression in (hvd.Compression.fp16, hvd.Compression.bf16):
            self.add("compression", lambda c=compression: hvd.allreduce(tf.constant(x), op=hvd.Sum, compression=c),
                     everyone.sum(0))
        self.add("group", lambda: hvd.grouped_allreduce([tf.constant(x), tf.constant(whole), tf.constant(2.0)],
                                                        op=hvd.Sum),
                 [everyone.sum(0), all_whole.sum(0).astype(np.int32), np.float32(2 * self.n)])
        self.add("no group", lambda: hvd.grouped_allreduce([]), [])
        self.add("no elements", lambda: hvd.allreduce(tf.zeros([0, 3])), np.zeros([0, 3], np.float32))
        for rows in (1, self.n, 2 * self.n + 1):
            self.scatter(rows)

    def scatter(self, rows):
        everyone = np.stack(self.inputs(tf.float32, rows))
        x, cut = everyone[self.me], np.array_split(np.arange(rows), self.n)[self.me]
        self.add("reducescatter %d" % rows, lambda: hvd.reducescatter(tf.constant(x), op=hvd.Sum), everyone.sum(0)[cut])
        self.add("averages %d" % rows, lambda: hvd.grouped_reducescatter([tf.constant(x), tf.constant(x * 2)]),
                 [everyone.mean(0)[cut], 2 * everyone.mean(0)[cut]])

    def movements(self):
        n, me = self.n, self.me
        for dtype in DTYPES:
            ragged = [value(r, dtype, r) for r in range(n)]  # rank 0 has no rows
            self.add("allgather " + dtype.name, lambda x=ragged[me]: hvd.allgather(tf.constant(x)),
                     np.concatenate(ragged))
            self.add("broadcast " + dtype.name, lambda x=value(me, dtype): hvd.broadcast(tf.constant(x), n - 1),
                     value(n - 1, dtype))
        self.add("bools", lambda: hvd.allgather(tf.constant([me == 0])), np.arange(n) == 0)
        self.add("scalars", lambda: hvd.allgather(tf.constant(me)), np.arange(n, dtype=np.int32))
        self.add("gathered group", lambda: hvd.grouped_allgather([tf.fill([me + 1], me), tf.constant([me * 1.5])]),
                 [np.repeat(np.arange(n), np.arange(n) + 1).astype(np.int32), np.arange(n, dtype=np.float32) * 1.5])
        self.add("alltoall", lambda: hvd.alltoall(tf.range(2 * n) + 100 * me),
                 np.concatenate([np.arange(2 * me, 2 * me + 2) + 100 * r for r in range(n)]).astype(np.int32))
        # Rank r sends r + i rows to rank i.
        starts = [np.cumsum([0] + [r + i for i in range(n)]) for r in range(n)]
        self.add("alltoall with splits",
                 lambda: hvd.alltoall(tf.range(int(starts[me][-1])) + 100 * me, splits=[me + i for i in range(n)]),
                 [np.concatenate([np.arange(starts[r][me], starts[r][me + 1]) + 100 * r
                                  for r in range(n)]).astype(np.int32), np.array([r + me for r in range(n)], np.int32)])
        self.add("place", lambda: [hvd.size_op(), hvd.rank_op(), hvd.local_size_op(), hvd.local_rank_op(),
                                   hvd.process_set_included_op(self.evens.process_set_id)],
                 [np.int32(v) for v in (n, me, hvd.local_size(), hvd.local_rank(), me % 2 == 0)])

    def on_process_sets(self):
        if not self.evens.included():
            return
        ranks, x = self.evens.ranks, value(self.me, tf.float32)
        everyone = np.stack([value(r, tf.float32) for r in ranks])
        self.add("of a set", lambda: hvd.allreduce(tf.constant(x), process_set=self.evens), everyone.mean(0))
        self.add("gathered by a set", lambda: hvd.allgather(tf.constant(x), process_set=self.evens),
                 np.concatenate(list(everyone)))
        self.add("broadcast in a set", lambda: hvd.broadcast(tf.constant(x), ranks[-1], process_set=self.evens),
                 everyone[-1])
        self.add("size of a set", lambda: hvd.size_op(self.evens.process_set_id), np.int32(len(ranks)))
        rows = np.array_split(np.arange(2), len(ranks))[self.evens.rank()]
        self.add("scattered in a set", lambda: hvd.reducescatter(tf.constant(x), process_set=self.evens),
                 everyone.mean(0)[rows])

    def sparse(self):
        n, me = self.n, self.me
        dense = np.zeros([n + 1, 2], np.float32)
        for r in range(n):
            dense[r] += r + 1
            dense[n] += r + 1

        def slices():
            return tf.IndexedSlices(tf.fill([2, 2], me + 1.0), tf.constant([me, n]), tf.constant([n + 1, 2]))

        def densely(s):
            return tf.math.unsorted_segment_sum(s.values, s.indices, n + 1)

        self.add("slices", lambda: densely(hvd.allreduce(slices(), op=hvd.Sum)), dense)
        self.add("average of slices", lambda: densely(hvd.allreduce(slices())), dense / n)

        def integers(**kwargs):
            s = slices()
            return densely(hvd.allreduce(tf.IndexedSlices(tf.cast(s.values, tf.int64), s.indices, s.dense_shape), **kwargs))

        scaled = [int(2.5 * (r + 1)) for r in range(n)]
        self.add("slices times factors", lambda: densely(hvd.allreduce(
            slices(), op=hvd.Sum, prescale_factor=0.5, postscale_factor=3.0)), dense * 1.5)
        self.add("slices of integers times a factor", lambda: integers(op=hvd.Sum, prescale_factor=2.5),
                 np.array([[each] * 2 for each in scaled + [sum(scaled)]], np.int64))
        for op in (hvd.Min, hvd.Max, hvd.Product, hvd.Adasum):
            try:
                hvd.allreduce(slices(), op=op)
                raise AssertionError("no error")
            except NotImplementedError as error:
                assert "sparse_as_dense=True" in str(error), error

        def mixed():
            first, second, third = hvd.grouped_allreduce([tf.constant(1.0), slices(), tf.constant(2.0)], op=hvd.Sum)
            return [first, densely(second), third]

        self.add("slices in a group", mixed, [np.float32(n), dense, np.float32(2 * n)])

    def gradients(self):
        """Of sum(weight * collective(x)); each rank has its own weight."""
        n, me = self.n, self.me
        weight = float(me + 1)
        mean, rows = (n + 1) / 2, 2 * n
        x = np.ones([rows, 3], np.float32)
        for name, collective, expected in (
                ("allreduce", lambda t: hvd.allreduce(t, op=hvd.Sum), n * mean),
                ("average", hvd.allreduce, mean),
                ("scaled", lambda t: hvd.allreduce(t, prescale_factor=2.0, postscale_factor=3.0), 6 * mean),
                ("group", lambda t: hvd.grouped_allreduce([t, tf.constant([1]), 2 * t])[2], 2 * mean),
                ("allgather", hvd.allgather, mean),
                ("gathered group", lambda t: hvd.grouped_allgather([t, 3 * t])[1], 3 * mean),
                ("broadcast", lambda t: hvd.broadcast(t, n - 1), mean if me == n - 1 else 0.0),
                ("reducescatter", lambda t: hvd.reducescatter(t, op=hvd.Sum), None),
                ("alltoall", hvd.alltoall, None),
                ("fp16", lambda t: hvd.allreduce(t, compression=hvd.Compression.fp16), mean)):
            # From these each row comes back with the weight of the rank that had got it.
            scale = {"reducescatter": n, "alltoall": 1}.get(name)
            value_ = np.full([rows, 3], expected) if scale is None else np.repeat(scale * (np.arange(n) + 1.0), 2)[
                :, None] * np.ones([1, 3])
            self.add("gradient of " + name, lambda c=collective: self.gradient(x, c, weight), value_.astype(np.float32))

    @staticmethod
    def gradient(x, collective, weight):
        x = tf.constant(x)
        if tf.executing_eagerly() or tf.inside_function():
            with tf.GradientTape() as tape:
                tape.watch(x)
                loss = tf.reduce_sum(collective(x)) * weight
            return tape.gradient(loss, x)
        return tf.gradients(tf.reduce_sum(collective(x)) * weight, x)[0]


def compare(cases, found, way):
    for (name, _, expected), got in zip(cases, found):
        wanted = expected if isinstance(expected, list) else [expected]
        got = list(got) if isinstance(expected, list) else [got]
        assert len(got) == len(wanted), (way, name, got)
        for a, b in zip(got, wanted):
            a = np.asarray(a)
            assert a.dtype == b.dtype and a.shape == b.shape, (way, name, a.dtype, a.shape, b.dtype, b.shape)
            close = 2e-2 if a.dtype.itemsize == 2 and a.dtype.kind not in "iu" else 1e-6
            np.testing.assert_allclose(a.astype(np.float64), b.astype(np.float64), close, close, err_msg=way + name)
    return len(cases)


def in_session(cases):
    with tf.Graph().as_default():
        check_shapes()
        with _nodes.together():  # before TensorFlow 2.13 needed for so many
            fetches = [function() for _, function, _ in cases]
        with tf.compat.v1.train.MonitoredTrainingSession() as session:
            return [session.run(fetches) for _ in range(2)][1]


def check_shapes():
    """What a graph knows of the outputs' shapes."""
    x, y = tf.zeros([4, 3]), tf.zeros([5])
    outputs = [*hvd.grouped_allreduce([x, y]), hvd.broadcast(x, 0), *hvd.grouped_allgather([x, y]),
               hvd.reducescatter(x), hvd.allgather(1.0), *hvd.alltoall(x, splits=[0]), hvd.join(), hvd.size_op()]
    shapes = [output.shape.as_list() for output in outputs]
    assert shapes == [[4, 3], [5], [4, 3], [None, 3], [None], [None, 3], [None], [None, 3], [None], [], []], shapes


def variables():
    """Broadcasts in place, of all kinds of variables; objects."""
    me, n = hvd.rank(), hvd.size()
    ours = [tf.Variable(tf.fill([3], float(me))), tf.Variable(me, dtype=tf.int64),
            tf.Variable([me + 0.5], dtype=tf.float64)]
    hvd.broadcast_variables(ours, n - 1)
    found = [v.numpy().tolist() for v in ours]
    assert found == [[n - 1.0] * 3, n - 1, [n - 0.5]], found
    hvd.broadcast_variables([ours[0]], 0, inplace=True)
    steps = tf.Variable(1.0)

    @tf.function
    def two_steps():  # the second operation needs what the first has changed
        for name in ("first", "second"):
            steps.assign_add(hvd.allreduce(steps.read_value(), op=hvd.Sum, name=name))
        return steps.read_value()

    assert float(two_steps()) == (1 + n) ** 2

    @tf.function
    def branches(x):  # at the same time, and without names
        once = [hvd.allreduce(x, op=hvd.Sum), tf.cond(x > 0, lambda: hvd.allreduce(2 * x, op=hvd.Sum), lambda: x)]
        return once + [tf.while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, hvd.allreduce(y)), [0, x])[1]]

    assert [float(t) for t in branches(tf.constant(1.0))] == [n, 2 * n, 1.0]
    dense = tf.keras.layers.Dense(2)
    dense.build([None, 3])
    hvd.broadcast_variables(dense.weights, n - 1)
    sums = [np.asarray(w).tolist() for w in dense.weights]
    assert sums == hvd.broadcast_object(sums, n - 1), "Keras variables"
    for use_resource in (True, False):
        with tf.Graph().as_default():
            v = tf.compat.v1.get_variable("v", initializer=tf.constant([me, 7]), use_resource=use_resource)
            everything = hvd.broadcast_global_variables(n - 1)
            with tf.compat.v1.Session() as session:
                session.run(tf.compat.v1.global_variables_initializer())
                session.run(everything)
                assert session.run(v).tolist() == [n - 1, 7], use_resource
                assert hvd.broadcast_object_fn(0)(["x", me]) == ["x", 0]
    assert hvd.allgather_object({"rank": me}) == [{"rank": r} for r in range(n)]


def refused(kind, text, function):
    try:
        function()
    except kind as error:
        assert text in str(error), (text, str(error))
        return
    raise AssertionError("no error: " + text)


def errors():
    """Each says what happened; the job goes on."""
    me, failed = hvd.rank(), tf.errors.FailedPreconditionError
    refused(failed, "mismatched shapes", lambda: hvd.allreduce(tf.zeros([me + 1]), name="shapes"))
    refused(failed, "mismatched dtypes",
            lambda: hvd.allreduce(tf.zeros([2], tf.int32 if me else tf.float32), name="dtypes"))
    refused(failed, "mismatched", tf.function(lambda: hvd.allgather(tf.zeros([1, me + 1]), name="rows")))
    refused(failed, "root", lambda: hvd.broadcast(tf.zeros([2]), 0 if me == 0 else 1, name="roots"))
    refused(tf.errors.InvalidArgumentError, "root", lambda: hvd.broadcast(tf.zeros([2]), 99))
    refused(tf.errors.InvalidArgumentError, "splits", lambda: hvd.alltoall(tf.zeros([2]), splits=[1]))
    refused(tf.errors.InvalidArgumentError, "dimensions", lambda: hvd.allreduce(tf.zeros([1] * 9)))
    refused(failed, "there is no process set 77", lambda: hvd.size_op(77))
    refused(ValueError, "has not been added", lambda: hvd.allreduce(tf.zeros([2]), process_set=hvd.ProcessSet([0])))
    refused(ValueError, "both average and op", lambda: hvd.allreduce(tf.zeros([2]), average=True, op=hvd.Sum))
    for call in (lambda f: f, tf.function):
        refused(TypeError, "name=5, expected a string", call(lambda: hvd.allgather(tf.zeros([2]), name=5)))
        refused(ValueError, "contains a NUL character", call(lambda: hvd.allreduce(tf.zeros([2]), name="a\0b")))
        refused(TypeError, "name=5, expected a string", call(lambda: hvd.grouped_allreduce(
            [tf.IndexedSlices(tf.ones([1]), tf.constant([0]), tf.constant([2]))], name=5)))
        refused(TypeError, "prescale_factor='x', expected a number",
                call(lambda: hvd.allreduce(tf.zeros([2]), prescale_factor="x")))
        refused(TypeError, "postscale_factor='x', expected a number",
                call(lambda: hvd.reducescatter(tf.zeros([2], tf.int32), postscale_factor="x")))
        refused(TypeError, "root_rank='0', expected an integer", call(lambda: hvd.broadcast(tf.zeros([2]), "0")))
    refused(ValueError, "Adasum needs a floating", lambda: hvd.allreduce(tf.zeros([2], tf.int32), op=hvd.Adasum))
    np.testing.assert_allclose(hvd.allreduce(tf.constant(1.0), name="shapes"), 1.0)


def uneven():
    """Rank r has r more batches; then it joins."""
    me, n = hvd.rank(), hvd.size()
    for step in range(me + 1):
        total = hvd.allreduce(tf.constant(1.0), op=hvd.Sum, name="step.%d" % step)
        assert float(total) == n - step, (step, float(total))
    assert int(hvd.join()) in range(n)
    hvd.barrier()


def main():
    hvd.init()
    cases = Cases().all
    count = compare(cases, [function() for _, function, _ in cases], "eager")
    in_function = tf.function(lambda: [function() for _, function, _ in cases])
    in_function()
    count += compare(cases, in_function(), "function")
    count += compare(cases, in_session(cases), "session")
    variables()
    errors()
    uneven()
    rank.record(version=tf.__version__, compared=count)
    hvd.shutdown()
    refused(tf.errors.FailedPreconditionError, "not been initialized", hvd.rank_op)
    refused(tf.errors.FailedPreconditionError, "not been initialized", lambda: hvd.allreduce(tf.zeros([2])))


main()
