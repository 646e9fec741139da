"""Compares training on all ranks with that of one process that sees the batches of all."""

import numpy as np
from setting import (BACKEND, BATCH, KERAS3, MINE, RANK, SIZE, X, Y, check, close, compiled, fit, hvd,
                     keras, model, path, standard_callbacks)

ALL = np.arange(len(X))


def same(make, epochs=1, relative=1e-4, reference=None, batch=BATCH, options=None, **kwargs):
    """Trains with make()'s optimizer on all ranks, and on rank 0 alone. options: for compile()."""
    mine = compiled(model(7 + RANK), hvd.DistributedOptimizer(make(), **kwargs), **(options or {}))
    losses = fit(mine, MINE, BATCH // SIZE, standard_callbacks(), epochs)
    if RANK == 0:
        alone = compiled(model(7), (reference or make)())
        close(losses, fit(alone, ALL, batch, epochs=epochs), relative)
        close(mine.get_weights(), alone.get_weights(), relative * 10)
    total = sum(float(np.sum(w)) for w in mine.get_weights())
    gathered = hvd.allgather(total, name="total")
    check(np.all(gathered == gathered[0]), gathered)
    return mine


def optimizers():
    """Clipping acts on the reduced gradients; momentum and moments are as in one process."""
    opt = keras.optimizers
    same(lambda: opt.Adam(0.01, clipnorm=0.05), epochs=2)
    same(lambda: opt.SGD(0.05, momentum=0.9, nesterov=True, global_clipnorm=0.1),
         gradient_predivide_factor=2.0)
    same(lambda: opt.RMSprop(0.005, clipvalue=0.01))
    same(lambda: opt.SGD(0.05), reference=lambda: opt.SGD(0.05 * SIZE), op=hvd.Sum)
    same(lambda: opt.SGD(0.05), relative=1e-2, compression=hvd.Compression.fp16)


def other_steps():
    """Steps that are not compiled, several that are compiled together, and Keras' older optimizers."""
    opt = keras.optimizers
    same(lambda: opt.Adam(0.01), options={"run_eagerly": True})
    if BACKEND == "tensorflow":
        same(lambda: opt.Adam(0.01), options={"steps_per_execution": 2})
    old = getattr(opt, "legacy", None)
    if not KERAS3 and old is not None:
        same(lambda: old.Adam(0.01, clipnorm=0.05))
        same(lambda: old.SGD(0.05, momentum=0.9), batch=2 * BATCH, backward_passes_per_step=2,
             average_aggregated_gradients=True)


def adasum():
    """The combination of equal gradients is that gradient."""
    mine = compiled(model(7), hvd.DistributedOptimizer(keras.optimizers.SGD(0.05), op=hvd.Adasum))
    fit(mine, ALL, BATCH)
    alone = compiled(model(7), keras.optimizers.SGD(0.05))
    fit(alone, ALL, BATCH)
    close(mine.get_weights(), alone.get_weights())


def passes():
    """Gradients are summed over two passes, and reduced in the second."""
    opt = keras.optimizers
    same(lambda: opt.SGD(0.05, momentum=0.9), epochs=2, batch=2 * BATCH, backward_passes_per_step=2,
         average_aggregated_gradients=True)
    same(lambda: opt.SGD(0.05), reference=lambda: opt.SGD(0.1), batch=2 * BATCH,
         backward_passes_per_step=2)
    if KERAS3:
        same(lambda: opt.Adam(0.01, gradient_accumulation_steps=2, clipnorm=0.05),
             reference=lambda: opt.Adam(0.01, clipnorm=0.05), batch=2 * BATCH)


class Halved(keras.optimizers.SGD):
    """An optimizer that is not one of Keras'."""


def saving():
    """fit, save, load, fit: as one process; and the file is one of the plain optimizer."""
    suffixes = [".keras", ".h5"] if KERAS3 else [".h5", ""]
    alone = compiled(model(7), keras.optimizers.Adam(0.01))
    expected = fit(alone, ALL, BATCH) + fit(alone, ALL, BATCH)
    for suffix in suffixes:
        mine = compiled(model(7 + RANK), hvd.DistributedOptimizer(keras.optimizers.Adam(0.01)))
        losses = fit(mine, MINE, BATCH // SIZE, standard_callbacks())
        if RANK == 0:
            mine.save(path("saved" + suffix))
        hvd.broadcast(0, 0, name="saved")
        loaded = hvd.load_model(path("saved" + suffix))
        check(int(np.asarray(loaded.optimizer.iterations)) == 4, suffix)
        losses += fit(loaded, MINE, BATCH // SIZE, standard_callbacks())
        close(losses, expected)
    if RANK == 0:
        # For a process without Maypole.
        np.savez(path("predicted.npz"), x=X, y=mine.predict(X, verbose=0))
    if KERAS3:
        saving_of_passes()
    custom = compiled(model(7), hvd.DistributedOptimizer(Halved(0.01, momentum=0.9)))
    fit(custom, MINE, BATCH // SIZE)
    file = path(f"custom{RANK}" + suffixes[0])
    custom.save(file)
    loaded = hvd.load_model(file, custom_optimizers=[Halved])
    check(isinstance(loaded.optimizer, Halved))
    close(fit(custom, MINE, BATCH // SIZE), fit(loaded, MINE, BATCH // SIZE), 1e-6)


def saving_of_passes():
    """A file does not say whether a step uses the sum of its passes' gradients or the average."""
    mine = compiled(model(7), hvd.DistributedOptimizer(keras.optimizers.SGD(0.05), backward_passes_per_step=2))
    fit(mine, MINE, BATCH // SIZE)
    file = path(f"passes{RANK}.keras")
    mine.save(file)
    try:
        check(hvd.load_model(file) is None)
    except ValueError as error:
        check("give average_aggregated_gradients=False for the sum" in str(error), error)
    loaded = hvd.load_model(file, average_aggregated_gradients=False)
    close(fit(loaded, MINE, BATCH // SIZE), fit(mine, MINE, BATCH // SIZE), 1e-6)
    close(loaded.get_weights(), mine.get_weights(), 1e-6)


def partial():
    """The gradients of a local layer stay on their rank, divided by the number of ranks."""
    for scale in (True, False):
        mine = model(7)
        local, shared = mine.layers[1], mine.layers[2]
        before = [w.copy() for w in local.get_weights()]
        compiled(mine, hvd.PartialDistributedOptimizer(
            keras.optimizers.SGD(0.1), local_layers=[local], scale_local_gradients=scale))
        rows = MINE[:BATCH // SIZE]
        fit(mine, rows, len(rows))
        alone = compiled(model(7), keras.optimizers.SGD(0.1 / (SIZE if scale else 1)))
        fit(alone, rows, len(rows))
        close(local.get_weights(), alone.layers[1].get_weights())
        check(not np.allclose(before[0], local.get_weights()[0]))
        kernels = hvd.allgather(shared.get_weights()[0][None], name="kernels")
        check(np.all(kernels == kernels[0]))
        check(SIZE == 1 or not np.allclose(*hvd.allgather(local.get_weights()[0][None],
                                                          name="locals")[:2]))


def scale_of(optimizer):
    return float(np.asarray(optimizer.loss_scale if hasattr(optimizer, "loss_scale")
                            else optimizer.dynamic_scale))


def mixed_precision():
    """One rank's gradients overflow in one step: all ranks drop it, and none waits for ever."""
    y = Y[MINE].copy()
    if RANK == SIZE - 1:
        y[BATCH // SIZE:2 * BATCH // SIZE] = 60000.0  # float16 ends at 65504
    before = keras.mixed_precision.global_policy().name if not KERAS3 else \
        keras.config.dtype_policy().name

    def train(make):
        keras.mixed_precision.set_global_policy("mixed_float16")
        mine = model(7)
        compiled(mine, make())
        optimizer = mine.optimizer
        mine.fit(X[MINE], y, batch_size=BATCH // SIZE, shuffle=False, verbose=0,
                 callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)])
        keras.mixed_precision.set_global_policy(before)
        weights = np.concatenate([w.ravel() for w in mine.get_weights()])
        check(np.all(np.isfinite(weights)))
        everyones = hvd.allgather(weights[None], name="weights")
        check(np.all(everyones == everyones[0]), everyones)
        scales = hvd.allgather(scale_of(optimizer), name="scales")
        # Halved in one step or two: TensorFlow also adds up in float16.
        check(np.all(scales == scales[0]) and scales[0] in (2.0**13, 2.0**14), scales)
        return weights

    sgd = keras.optimizers.SGD
    loss_scale = keras.mixed_precision.LossScaleOptimizer
    first = train(lambda: hvd.DistributedOptimizer(sgd(0.05)))
    close(train(lambda: hvd.DistributedOptimizer(loss_scale(sgd(0.05)))), first, 1e-6)
    # compile() puts its LossScaleOptimizer around ours.
    keras.mixed_precision.set_global_policy(before)
    inner = hvd.DistributedOptimizer(sgd(0.05))
    close(train(lambda: inner), first, 1e-6)
    without_callbacks(before)


def without_callbacks(before):
    """Nothing but compile() sees the optimizer."""
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.05))
    keras.mixed_precision.set_global_policy("mixed_float16")
    mine = compiled(model(7), optimizer)
    fit(mine, MINE, BATCH // SIZE)
    everyones = hvd.allgather(np.concatenate([w.ravel() for w in mine.get_weights()])[None])
    check(np.all(everyones == everyones[0]), everyones)
    keras.mixed_precision.set_global_policy(before)


def sparse():
    """Gradients of an embedding, gathered and as dense ones."""
    if BACKEND != "tensorflow":
        return
    ids = (np.arange(len(X))[:, None] * 7 + np.arange(2)) % 11

    def embedding():
        keras.utils.set_random_seed(5)
        inputs = keras.Input((2,), dtype="int32")
        found = keras.layers.Flatten()(keras.layers.Embedding(11, 3)(inputs))
        return keras.Model(inputs, keras.layers.Dense(1)(found))

    alone = compiled(embedding(), keras.optimizers.SGD(0.1))
    alone.fit(ids, Y, batch_size=BATCH, shuffle=False, verbose=0)
    for dense in (False, True):
        mine = compiled(embedding(), hvd.DistributedOptimizer(keras.optimizers.SGD(0.1),
                                                              sparse_as_dense=dense))
        mine.fit(ids[MINE], Y[MINE], batch_size=BATCH // SIZE, shuffle=False, verbose=0)
        close(mine.get_weights(), alone.get_weights())


CASES = [optimizers, other_steps, adasum, passes, saving, partial, mixed_precision, sparse]
