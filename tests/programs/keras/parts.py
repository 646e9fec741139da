"""Callbacks, values, states, and the errors of wrong arguments."""

import copy
import os
import pickle

import numpy as np
from setting import (BACKEND, BATCH, KERAS3, MINE, RANK, SIZE, STEPS, X, Y, check, close, compiled, fit, hvd,
                     keras, model, path)


def values():
    check(hvd.allreduce(RANK + 1.0, name="v") == (SIZE + 1) / 2)
    check(hvd.allreduce(np.arange(3) + RANK, name="s", average=False).tolist() ==
          [SIZE * i + SIZE * (SIZE - 1) // 2 for i in range(3)])
    check(hvd.allreduce(np.float32([RANK, 1]), op=hvd.Max, name="m").tolist() == [SIZE - 1, 1])
    check(hvd.allgather(np.full((RANK + 1, 2), RANK), name="g").shape == (SIZE * (SIZE + 1) // 2, 2))
    check(hvd.broadcast([RANK + 5, 7], 0, name="b").tolist() == [5, 7])
    check(hvd.reducescatter(np.ones((2 * SIZE, 3)), op=hvd.Sum, name="r").tolist() ==
          [[SIZE] * 3] * 2)
    variable = model().trainable_variables[0]
    close([hvd.allreduce(variable, name="variable")], [np.asarray(variable)])


def broadcast_and_average():
    mine = compiled(model(7 + RANK), hvd.DistributedOptimizer(keras.optimizers.Adam(0.01 + RANK)))
    logs = {"loss": float(RANK), "other": 2.0 * RANK}
    average = hvd.callbacks.MetricAverageCallback()
    average.on_epoch_end(0, logs)
    check(logs == {"loss": (SIZE - 1) / 2, "other": float(SIZE - 1)}, logs)
    local = mine.layers[2].trainable_variables
    callback = hvd.callbacks.BroadcastGlobalVariablesCallback(0, local_variables=local)
    callback.set_model(mine)
    callback.on_train_begin()
    expected = model(7)
    close(mine.layers[1].get_weights(), expected.layers[1].get_weights(), 0)
    check(RANK == 0 or not np.allclose(mine.layers[2].get_weights()[0],
                                       expected.layers[2].get_weights()[0]))
    close([np.asarray(mine.optimizer.learning_rate)], [0.01], 1e-6)
    different = compiled(keras.Sequential([keras.layers.Dense(2 + RANK)]), "sgd")
    different.build((None, 3))
    callback = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
    callback.set_model(different)
    refused(ValueError, "all ranks must create and build the same model", callback.on_train_begin)


def built_on_some_ranks():
    """Rank 0 may have loaded its model, and the others build theirs in the first step: all wait until all have."""
    mine = compiled(keras.Sequential([keras.layers.Dense(1)]), hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)))
    if RANK == 0:
        mine.build((None, 6))
    callback = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
    callback.set_model(mine)
    callback.on_train_begin()
    check(not callback.broadcast_done)
    hvd.allreduce(0.0, name="first step")
    if RANK != 0:
        mine.build((None, 6))
    callback.on_train_batch_end(0)
    kernels = hvd.allgather(mine.get_weights()[0][None], name="built")
    check(callback.broadcast_done and np.all(kernels == kernels[0]))


class Rates(keras.callbacks.Callback):
    """The learning rate of each batch."""

    def __init__(self):
        super().__init__()
        self.rates = []

    def on_train_batch_begin(self, batch, logs=None):
        if hasattr(self.model, "jax_state_sync"):
            self.model.jax_state_sync()
        self.rates.append(float(np.asarray(self.model.optimizer.learning_rate)))


def rates_of(callback, epochs, momentum=0.0):
    rates = Rates()
    mine = compiled(model(7), hvd.DistributedOptimizer(
        keras.optimizers.SGD(0.1 * SIZE, momentum=momentum)))
    history = mine.fit(X[MINE], Y[MINE], batch_size=BATCH // SIZE, epochs=epochs, shuffle=False,
                       verbose=0, callbacks=[callback, rates]).history
    return rates.rates, history, mine


def schedules():
    top = 0.1 * SIZE
    rates, history, _ = rates_of(
        hvd.callbacks.LearningRateScheduleCallback(top, 0.5, start_epoch=1, end_epoch=3), 4)
    close(rates[::4], [top, top, top / 2, top / 2], 1e-6)
    close(history["lr"], [top, top, top / 2, top / 2], 1e-6)
    rates, _, mine = rates_of(
        hvd.callbacks.LearningRateWarmupCallback(top, warmup_epochs=2, verbose=1), 3, momentum=0.9)
    expected = [(1 + (e + b / 4 + 1 / 4) * (SIZE - 1) / 2) * top / SIZE
                for e in range(2) for b in range(4)] + [top] * 4
    close(rates, expected, 1e-6)
    # Momentum correction: the sum of gradients is multiplied when the rate changes.
    close(mine.get_weights(), corrected(expected, top), 1e-3)


def refuses_a_schedule():
    """An optimizer with a schedule of its own has no rate that a callback can set."""
    rates = keras.optimizers.schedules.ExponentialDecay(0.1, 100, 0.9)
    mine = compiled(model(7), hvd.DistributedOptimizer(keras.optimizers.SGD(rates)))
    callback = hvd.callbacks.LearningRateWarmupCallback(0.1, steps_per_epoch=4)
    callback.set_model(mine)
    refused(ValueError, "that has a ExponentialDecay", lambda: callback.on_train_batch_begin(0))


def corrected(rates, first):
    """The weights after these rates, of one process that multiplies the momentum by itself."""
    alone = compiled(model(7), keras.optimizers.SGD(first, momentum=0.9))
    weights = alone.get_weights()
    momentum = [np.zeros_like(w) for w in weights]
    last = first
    for step, rate in enumerate(rates):
        rows = slice(step % 4 * BATCH, (step % 4 + 1) * BATCH)
        gradients = gradients_of(weights, X[rows], Y[rows])
        momentum = [0.9 * m * rate / last - rate * g for m, g in zip(momentum, gradients)]
        weights = [w + m for w, m in zip(weights, momentum)]
        last = rate
    return weights


def gradients_of(weights, x, y):
    """Of the mean squared error of model()."""
    w1, b1, w2, b2 = weights
    hidden = np.tanh(x @ w1 + b1)
    error = 2 * (hidden @ w2 + b2 - y) / len(x)
    inner = error @ w2.T * (1 - hidden**2)
    return x.T @ inner, inner.sum(0), hidden.T @ error, error.sum(0)


def best_checkpoint():
    suffix = ".keras" if KERAS3 else ".h5"
    best = hvd.callbacks.BestModelCheckpoint(monitor="loss",
                                             filepath=path(f"best{RANK}") + suffix)
    mine = compiled(model(7), hvd.DistributedOptimizer(keras.optimizers.SGD(0.05)))
    fit(mine, MINE, BATCH // SIZE, [hvd.callbacks.MetricAverageCallback(), best], epochs=2)
    check(os.path.exists(path("best0") + suffix) if RANK == 0 else
          not os.path.exists(path(f"best{RANK}") + suffix))
    refused(ValueError, "filepath", lambda: fit(
        mine, MINE, len(MINE), [hvd.callbacks.BestModelCheckpoint(monitor="loss")]))


def elastic_state():
    mine = compiled(model(7 + RANK), hvd.DistributedOptimizer(keras.optimizers.Adam(0.01)))
    state = hvd.elastic.KerasState(mine, epoch=0, batch=0)
    state.sync()
    close(mine.get_weights(), model(7).get_weights(), 0)
    callbacks = [hvd.elastic.UpdateEpochStateCallback(state),
                 hvd.elastic.UpdateBatchStateCallback(state),
                 hvd.elastic.CommitStateCallback(state, batches_per_commit=3)]
    fit(mine, MINE, BATCH // SIZE, callbacks)
    check((state.epoch, state.batch) == (1, 0))
    kept = mine.get_weights()
    close([fit(mine, MINE, BATCH // SIZE)], [fit_again(state, mine, kept)], 1e-6)


def fit_again(state, mine, kept):
    state.epoch = 5
    state.restore()
    check(state.epoch == 1)
    close(mine.get_weights(), kept, 0)
    return fit(mine, MINE, BATCH // SIZE)


def process_sets():
    alone = hvd.add_process_set([0])
    mine = compiled(model(7), hvd.DistributedOptimizer(keras.optimizers.SGD(0.1),
                                                       process_set=alone))
    fit(mine, MINE, BATCH // SIZE)
    plain = compiled(model(7), keras.optimizers.SGD(0.1))
    fit(plain, MINE, BATCH // SIZE)
    close(mine.get_weights(), plain.get_weights(), 1e-5)
    hvd.remove_process_set(alone)


def refused(kind, text, call):
    try:
        call()
    except kind as error:
        check(text in str(error), error)
    else:
        check(False, text)


def wrong_arguments():
    sgd = keras.optimizers.SGD
    distributed = hvd.DistributedOptimizer
    refused(ValueError, "expected Average, Sum or Adasum", lambda: distributed(sgd(), op=hvd.Max))
    refused(ValueError, "needs op=Average",
            lambda: distributed(sgd(), op=hvd.Sum, gradient_predivide_factor=2.0))
    refused(ValueError, "positive integer", lambda: distributed(sgd(), backward_passes_per_step=0))
    refused(ValueError, "expected an optimizer", lambda: distributed("sgd"))
    refused(ValueError, "groups must be", lambda: distributed(sgd(), groups="x"))
    optimizer = distributed(sgd())
    check(distributed(optimizer, op=hvd.Sum) is optimizer)
    check(type(optimizer).__name__ == "SGD" and isinstance(optimizer, sgd))
    if KERAS3:
        refused(ValueError, "pass one of them", lambda: distributed(
            sgd(gradient_accumulation_steps=3), backward_passes_per_step=2))
        again = distributed(sgd(), backward_passes_per_step=2)
        for passes in (1, 3, 1):
            distributed(again, backward_passes_per_step=passes)
            check(again.gradient_accumulation_steps == (passes if passes > 1 else None))
        check(distributed(sgd(gradient_accumulation_steps=2)).gradient_accumulation_steps == 2)
        distributed(again, backward_passes_per_step=2).build(model().trainable_variables)
        refused(ValueError, "which is built already, with gradient_accumulation_steps=2", lambda: distributed(again))
        refused(RuntimeError, "BroadcastGlobalVariablesCallback",
                lambda: hvd.broadcast_global_variables(0))


def compiled_by_xla():
    """The step is compiled with its collectives, or jit_compile is switched off."""
    if BACKEND != "tensorflow":
        return
    from maypole.tensorflow import _xla
    if _xla.why_not() is None:
        weights = []
        for jit in (True, False):
            mine = compiled(model(7), hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), jit_compile=jit)
            fit(mine, MINE, BATCH // SIZE, [hvd.callbacks.BroadcastGlobalVariablesCallback(0)])
            check(not KERAS3 or bool(mine.jit_compile) is jit)
            weights.append(mine.get_weights())
        for with_xla, without in zip(*weights):
            check(np.allclose(with_xla, without, rtol=1e-4, atol=1e-6))
        return
    mine = compiled(model(7), hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)),
                    jit_compile=True)
    fit(mine, MINE, BATCH // SIZE, [hvd.callbacks.BroadcastGlobalVariablesCallback(0)])
    if KERAS3:
        check(mine.jit_compile is False)
    mine = compiled(model(7), hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)),
                    jit_compile=True)
    refused(Exception, "jit_compile=False", lambda: fit(mine, MINE, BATCH // SIZE))


def missing_gradients():
    """A rank whose loss does not depend on a variable contributes zeros; what no rank has is not touched. (JAX has
    zeros itself.)"""
    if BACKEND == "jax":
        return
    for run_eagerly in (True, False):
        for passes in (1, 2):
            mine = model(7)
            optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), backward_passes_per_step=passes)
            variables = mine.trainable_variables[:3]
            before = [np.array(v) for v in variables]
            if hasattr(optimizer, "build"):
                optimizer.build(variables)

            def step():
                ones = [1.0 + 0.0 * v for v in variables]
                optimizer.apply_gradients(zip([ones[0], ones[1] if RANK == 0 else None, None], variables))

            if BACKEND == "tensorflow" and not run_eagerly:
                import tensorflow as tf
                step = tf.function(step)
            for _ in range(passes):
                step()
            after = [np.array(v) for v in variables]
            close(after, [before[0] - passes, before[1] - passes / SIZE, before[2]], 1e-4)
    if BACKEND == "tensorflow":
        other = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), name="other")
        count = 2 if RANK == 0 else 1
        refused(ValueError, "gradients of different variables",
                lambda: other.apply_gradients(zip(ones_of(variables[:count]), variables[:count])))


def ones_of(variables):
    return [1.0 + 0.0 * v for v in variables]


def other_metrics():
    """Ranks with different metrics end with an error that names them: none waits, and none is taken for another."""
    average = hvd.callbacks.MetricAverageCallback()
    for others, text in (({"a": 1.0, "b": 2.0}, "'c' on rank 0 but not on rank 1, 'b' on rank 1 but not on rank 0"),
                         ({"c": 2.0}, "'a' on rank 0 but not on rank 1"), ({}, "'a', 'c' on rank 0 but not on rank 1")):
        logs = {"a": 1.0, "c": 2.0} if RANK == 0 else dict(others)
        refused(ValueError, text, lambda logs=logs: average.on_epoch_end(0, logs))
    logs = {"c": float(RANK), "a": 1.0} if RANK == 0 else {"a": 1.0, "c": float(RANK)}
    average.on_epoch_end(0, logs)
    check(logs == {"a": 1.0, "c": (SIZE - 1) / 2}, logs)


def copies():
    """Whatever copies the plain optimizer copies the distributed one, which stays what it is."""
    for trained in (False, True):
        mine = compiled(model(7), hvd.DistributedOptimizer(keras.optimizers.Adam(0.01), op=hvd.Sum))
        plain = compiled(model(7), keras.optimizers.Adam(0.01))
        if trained:
            fit(mine, MINE, BATCH // SIZE)
            fit(plain, MINE, BATCH // SIZE)
        for way in (copy.copy, copy.deepcopy, lambda o: pickle.loads(pickle.dumps(o))):
            try:
                way(plain.optimizer)
            except Exception:  # pylint: disable=broad-except
                continue  # Keras 2 has no deep copies
            copied = way(mine.optimizer)
            check(copied is not mine.optimizer and type(copied).__name__ == "Adam")
            reduces(copied, way is not copy.copy)
        reduces(mine.optimizer, False)
    if KERAS3:
        local = hvd.PartialDistributedOptimizer(keras.optimizers.Adam(), local_layers=mine.layers[1])
        refused(pickle.PicklingError, "with local layers", lambda: pickle.dumps(local))
        check(copy.deepcopy(local).__dict__["_maypole_state"].local_layers == [mine.layers[1]])


def reduces(optimizer, steps):
    """Checks that it is distributed, and reduces the gradients of new variables if it has no others."""
    check(optimizer.__dict__["_maypole_state"] is not None)
    if not KERAS3 or not steps or BACKEND == "jax":
        return
    reduced = optimizer._maypole_state.gradients.reduce(
        optimizer._maypole_state, [keras.ops.ones(2) * (RANK + 1.0)], "copied", [0], False, 1.0)
    check(np.allclose(np.asarray(reduced[0]), SIZE * (SIZE + 1) / 2), reduced)


def own_loops():
    """_compute_gradients() and _aggregate_gradients(), as Horovod's optimizers have them: what they return is reduced,
    and apply_gradients() does not reduce it again."""
    if BACKEND != "tensorflow":
        refused(NotImplementedError, "needs Keras' TensorFlow backend",
                lambda: hvd.DistributedOptimizer(keras.optimizers.SGD())._compute_gradients(lambda: 0, []))
    else:
        import tensorflow as tf
        total = SIZE * (SIZE + 1) / 2
        for way in ("tape", "function", "aggregate", "clipped", "plain"):
            for run in (lambda f: f, tf.function):
                weights = keras.Variable(np.ones(2, np.float32)) if KERAS3 else tf.Variable([1.0, 1.0])
                optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), op=hvd.Sum)
                if hasattr(optimizer, "build"):
                    optimizer.build([weights])

                def loss():
                    return tf.reduce_sum(tf.convert_to_tensor(weights)) * (RANK + 1.0)

                def step():
                    with tf.GradientTape() as tape:
                        value = loss()
                    if way == "tape":
                        pairs = optimizer._compute_gradients(value, [weights], tape=tape)
                    elif way == "function":
                        pairs = optimizer._compute_gradients(loss, [weights])
                    else:
                        pairs = list(zip(tape.gradient(value, [weights]), [weights]))
                    if way in ("aggregate", "clipped"):
                        pairs = optimizer._aggregate_gradients(pairs)
                    seen = tf.identity(pairs[0][0])
                    if way == "clipped":
                        pairs = [(tf.clip_by_norm(g, 0.1), v) for g, v in pairs]
                    optimizer.apply_gradients(pairs)
                    return seen

                seen = run(step)().numpy()
                check(np.allclose(seen, total if way != "plain" else RANK + 1.0), way, seen)
                moved = 0.1 / 2**0.5 if way == "clipped" else total
                close([np.array(weights)], [np.full(2, 1.0 - moved)], 1e-5)


def same_on_all(of):
    """Checks that the model's weights are equal on all ranks."""
    everyones = hvd.allgather(np.concatenate([np.ravel(w) for w in of.get_weights()])[None], name="same")
    check(bool((everyones == everyones[0]).all()), everyones)


def different_beginnings():
    """Ranks that begin with other weights, states or settings than others get an error, if nothing broadcasts them."""
    sgd = keras.optimizers.SGD

    def trained(seed, optimizer, iterations=0):
        mine = compiled(model(seed), hvd.DistributedOptimizer(optimizer))
        if iterations:
            mine.optimizer.iterations.assign(iterations)
        fit(mine, MINE, BATCH // SIZE)
        return mine

    for text, train in (("different weights of parameter", lambda: trained(7 + RANK, sgd(0.1))),
                        ("BroadcastGlobalVariablesCallback(root_rank=0)", lambda: trained(7, sgd(0.1 + RANK))),
                        ("0 on rank 0 and 5 on rank 1", lambda: trained(7, sgd(0.1), 5 * RANK)),
                        ("clipnorm: 1.0 on rank 0 and 2.0 on rank 1", lambda: trained(7, sgd(0.1, clipnorm=1.0 + RANK)))):
        refused(Exception, text, train)
    if RANK > 0:
        os.environ["MAYPOLE_CHECK_START"] = "0"
    trained(7, sgd(0.1 + RANK))
    os.environ.pop("MAYPOLE_CHECK_START", None)
    same_on_all(trained(7, sgd(0.1)))


def loops_that_differ():
    """As different_beginnings(), in loops of the program's own, which may broadcast after their first step."""
    if BACKEND == "jax":
        return loops_that_differ_on_jax()
    wrap = [lambda f: f]
    if BACKEND == "tensorflow":
        import tensorflow as tf
        wrap.append(tf.function)
    sgd = keras.optimizers.SGD

    def trained(run, seed, make, iterations=0, broadcast_after=None, skipped=None, steps=5):
        mine, optimizer = model(seed), hvd.DistributedOptimizer(make(), name="loops")
        optimizer.iterations.assign(iterations)
        weights = mine.trainable_variables

        @run
        def step(factor):
            optimizer.apply_gradients(zip([(0.1 * v + RANK) * factor for v in weights], weights))

        for i in range(steps):
            step(1.0)
            if i == broadcast_after:
                variables = weights + list(optimizer.variables() if callable(optimizer.variables) else optimizer.variables)
                for place, variable in enumerate(variables):
                    variable.assign(hvd.broadcast(variable, 0, name=f"loops.{place}"))
            if i == skipped and RANK == 0:
                weights[1].assign(weights[1] + 1.0)
        return mine

    for run in wrap:
        refused(Exception, "0.1 on rank 0 and 1.1 on rank 1", lambda: trained(run, 7, lambda: sgd(0.1 + RANK)))
        same_on_all(trained(run, 7 + RANK, lambda: keras.optimizers.Adam(0.1), 3 * RANK, broadcast_after=0))
    for text, train in (("different weights of parameter", lambda: trained(wrap[0], 7 + RANK, lambda: sgd(0.1))),
                        ("1 on rank 0 and 6 on rank 1", lambda: trained(wrap[0], 7, lambda: sgd(0.1), 5 * RANK)),
                        ("were equal before", lambda: trained(wrap[0], 7, lambda: sgd(0.1), skipped=2))):
        refused(ValueError, text, train)


def loops_that_differ_on_jax():
    """As loops_that_differ(), in compiled steps and others; these must be equal from the first step on."""
    import jax
    sgd = keras.optimizers.SGD

    def trained(run, seed, make, changes_in=None):
        mine, optimizer = model(seed), hvd.DistributedOptimizer(make(), name="loops")
        optimizer.build(mine.trainable_variables)

        def step(weights, state):
            return optimizer.stateless_apply(state, [0.1 * w + RANK for w in weights], weights)

        weights, state = ([v.value for v in variables] for variables in (mine.trainable_variables, optimizer.variables))
        step = run(step)
        for i in range(5):
            if i == changes_in and RANK == 0:
                weights = [w + 1.0 for w in weights]
            weights, state = jax.block_until_ready(step(weights, state))
        for variable, value in zip(mine.trainable_variables, weights):
            variable.assign(value)
        return mine

    for run in (jax.jit, lambda f: f):
        for text, train in (("DistributedOptimizer: the ranks have different weights at", lambda: trained(run, 7 + RANK, lambda: sgd(0.1))),
                            ("the ranks have different optimizer state at", lambda: trained(run, 7, lambda: sgd(0.1 + RANK))),
                            ("the ranks have different weights at", lambda: trained(run, 7, lambda: sgd(0.1), changes_in=3))):
            refused(Exception, text, train)
        same_on_all(trained(run, 7, lambda: keras.optimizers.Adam(0.1)))
        same_on_all(trained(run, 7, lambda: keras.optimizers.LossScaleOptimizer(sgd(0.1))))
        trained(run, 7, lambda: sgd(0.1, gradient_accumulation_steps=2))


def gradients_that_are_only_looked_at():
    """What _compute_gradients() or _aggregate_gradients() has reduced is not taken for what is applied next."""
    if BACKEND == "jax":
        return
    alone = compiled(model(7), keras.optimizers.SGD(0.1))
    fit(alone, slice(0, len(X)), BATCH)
    mine = compiled(model(7), hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), run_eagerly=True)
    weights = mine.trainable_variables
    mine.optimizer._aggregate_gradients(zip([1.0 + RANK + 0.0 * v for v in weights], weights))
    fit(mine, MINE, BATCH // SIZE)
    close(mine.get_weights(), alone.get_weights())
    if BACKEND == "tensorflow":
        import tensorflow as tf
        optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0))
        pair = [tf.Variable([1.0, 1.0]), tf.Variable([1.0])]
        if hasattr(optimizer, "build"):
            optimizer.build(pair)

        @tf.function
        def step(own):
            optimizer._aggregate_gradients([(own * tf.ones_like(v), v) for v in pair])
            optimizer.apply_gradients([(2.0 * own * tf.ones_like(v), v) for v in pair])

        step(tf.constant(RANK + 1.0))
        close([np.array(v) for v in pair], [np.full(2, -float(SIZE)), np.full(1, -float(SIZE))], 1e-5)


def batch_norm_of_each_rank():
    """One line says that Keras' own synchronized=True does not mean the ranks."""
    if not KERAS3 or BACKEND != "tensorflow":
        return
    import logging
    said = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())
    logging.getLogger("maypole.keras").addHandler(handler)
    for synchronized in (False, True, True):
        mine = compiled(keras.Sequential([keras.Input((6,)), keras.layers.BatchNormalization(synchronized=synchronized),
                                          keras.layers.Dense(1)]), hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)))
        callback = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
        callback.set_model(mine)
        check(len(said) == (synchronized and RANK == 0), said)
    logging.getLogger("maypole.keras").removeHandler(handler)
    check(RANK != 0 or "use maypole.tensorflow.SyncBatchNormalization" in said[0], said)


def trained_before():
    """DistributedOptimizer() after fit(): the next fit() compiles its step again."""
    mine = compiled(model(7), keras.optimizers.SGD(0.1))
    fit(mine, slice(0, 8), 8)
    mine.optimizer = hvd.DistributedOptimizer(mine.optimizer)
    fit(mine, MINE, BATCH // SIZE)
    same_on_all(mine)


def layers_in_another_order():
    """Layers of equal shape that the ranks create in another order are not taken for each other."""
    if BACKEND != "tensorflow":
        return
    layers = [keras.layers.Dense(2, name=name) for name in (("left", "right") if RANK == 0 else ("right", "left"))]
    for layer in layers:
        layer(np.ones((1, 2), np.float32))
    kernels = [layer.kernel for layer in layers]
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0))
    refused(ValueError, "variable 0 'left/kernel'", lambda: optimizer.apply_gradients(zip(ones_of(kernels), kernels)))


def what_else_is_broadcast():
    """A model's second optimizer, what Normalization computes; words must be equal; a build() may build nothing."""
    if not KERAS3:
        return
    normalize = keras.layers.Normalization(axis=-1)
    normalize.adapt(np.float32([[1.0], [3.0]]) * (1 + RANK))
    mine = compiled(keras.Sequential([keras.Input((1,)), normalize, keras.layers.Dense(1)]), "sgd")
    mine.second = keras.optimizers.SGD(0.5 + RANK)
    callback = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
    callback.set_model(mine)
    callback.on_train_begin()
    close([np.asarray(mine.second.learning_rate)], [0.5], 1e-6)
    close([mine.predict(np.ones((1, 1)), verbose=0)], [hvd.broadcast(mine.predict(np.ones((1, 1)), verbose=0), 0)], 0)

    class BuildsNothing(keras.Model):

        def __init__(self):
            super().__init__()
            self.dense = keras.layers.Dense(1)

        def build(self, shape):
            self.built = True

        def call(self, x):
            return self.dense(x)

    later = BuildsNothing()
    later.build((None, 6))
    compiled(later, hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)))
    fit(later, MINE, BATCH // SIZE, [hvd.callbacks.BroadcastGlobalVariablesCallback(0)])
    same_on_all(later)
    if BACKEND == "tensorflow":
        words = keras.layers.StringLookup()
        words.adapt(["a", "a", "b"] if RANK == 0 else ["b", "b", "a"])
        other = compiled(keras.Sequential([keras.Input((), dtype="string"), words, keras.layers.Embedding(3, 1)]), "sgd")
        callback = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
        callback.set_model(other)
        refused(ValueError, "'vocabulary of StringLookup 0: 3 words", callback.on_train_begin)


def refused_in_fit(text, change, epochs=2, callbacks=(), make=lambda: keras.optimizers.SGD(0.1)):
    """change: a function of the model, on one rank at the end of its first epoch."""
    at_end = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: change(mine) if epoch == 0 and RANK == 0 else None)
    mine = compiled(model(7), hvd.DistributedOptimizer(make()))
    refused(ValueError, text, lambda: fit(mine, MINE, BATCH // SIZE, [*callbacks, at_end], epochs=epochs))


def places_of_training():
    """Ranks that have made other steps, or are in another epoch or fit(), end with an error that says so."""
    steps = lambda of: of.optimizer.iterations.assign(of.optimizer.iterations + 1)
    refused_in_fit("5 on rank 0 and 4 on rank 1", steps)
    refused_in_fit("'the end of fit()' on rank 0 but not on rank 1, 'the beginning of epoch 1 of fit()' on rank 1",
                   lambda of: setattr(of, "stop_training", True))


def fits_after_each_other():
    """Each fit() broadcasts, and compares at the beginning of each epoch and at its end."""
    callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0)]
    for seed in (7, 100):  # models of a cross-validation, and one list of callbacks
        mine = compiled(model(seed + RANK), hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)))
        for _ in range(2):
            fit(mine, MINE, BATCH // SIZE, callbacks)
            same_on_all(mine)
            mine.set_weights([w + RANK for w in mine.get_weights()])
    refused(ValueError, "at the beginning of epoch 0 of fit() the ranks have different weights",
            lambda: fit(mine, MINE, BATCH // SIZE))
    doubles = lambda of: of.set_weights([2 * w for w in of.get_weights()])
    refused_in_fit("at the beginning of epoch 1 of fit() the ranks have different weights", doubles)
    refused_in_fit("at the end of fit() the ranks have different weights", doubles, 1, callbacks)
    decay = keras.optimizers.schedules.ExponentialDecay
    refused_in_fit("different settings of the optimizer, learning_rate: ExponentialDecay", lambda of: None, 1,
                   callbacks, lambda: keras.optimizers.SGD(decay(0.1, 10 + RANK, 0.9)))

    class OwnFit(keras.Model):

        def fit(self, run):  # pylint: disable=arguments-differ
            run()

    if BACKEND != "jax":
        own, optimizer = OwnFit(mine.inputs, mine.outputs), hvd.DistributedOptimizer(keras.optimizers.SGD(0.1))
        weights = own.trainable_variables
        refused(ValueError, "the ranks begin with different weights", lambda: own.fit(lambda: [
            optimizer.apply_gradients(zip([0.1 * v for v in weights], weights)) for _ in range(3)]))


def passes_of_each_rank():
    """The sums of a step's first passes are each rank's own: nothing compares them, and no fit() overwrites them."""
    if not KERAS3:
        return
    optimizer = lambda passes: hvd.DistributedOptimizer(
        keras.optimizers.SGD(0.1), backward_passes_per_step=passes, average_aggregated_gradients=True)
    rows, each = MINE[:3 * BATCH // SIZE], BATCH // SIZE
    mine = compiled(model(7), optimizer(2))
    alone = compiled(model(7), keras.optimizers.SGD(0.1, gradient_accumulation_steps=2))
    for _ in range(2):  # three passes
        fit(mine, rows, each, [hvd.callbacks.BroadcastGlobalVariablesCallback(0)])
        fit(alone, slice(0, 3 * BATCH), BATCH)
    close(mine.get_weights(), alone.get_weights())
    mine = compiled(model(7), optimizer(3))
    for i in range(6):
        part = MINE[i % STEPS * each:][:each]
        mine.train_on_batch(X[part], Y[part])
    same_on_all(mine)


CASES = [values, broadcast_and_average, built_on_some_ranks, schedules, best_checkpoint, elastic_state, process_sets,
         wrong_arguments, compiled_by_xla, missing_gradients, other_metrics, copies, own_loops, different_beginnings,
         loops_that_differ, gradients_that_are_only_looked_at, batch_norm_of_each_rank, trained_before,
         layers_in_another_order, what_else_is_broadcast, places_of_training, fits_after_each_other,
         passes_of_each_rank, refuses_a_schedule]
