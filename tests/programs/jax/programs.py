"""Names and order of operations in programs; errors; training's helpers."""

import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax

import maypole.jax as hvd
from expect import equal, raises
from maypole.common.basics import counter
from maypole.common import xla_header
from maypole.jax import _ffi, _names

OPERATIONS = 100


def check_two_functions_in_another_order():
    """200 operations of two functions: each rank starts with another function, and each function's are in another
    order on each rank. The functions run in two threads, because XLA runs one thread's programs one by one."""
    n, rank = hvd.size(), hvd.rank()

    def total(kind, x):
        order = range(OPERATIONS) if rank % 2 else reversed(range(OPERATIONS))
        return hvd.allreduce({"%s%d" % (kind, i): x + i for i in order}, op=hvd.Sum, name=kind)

    functions = [jax.jit(lambda x: total("f", x)), jax.jit(lambda x: total("g", 2 * x))]
    results = {}

    def call(which):
        results[which] = jax.block_until_ready(functions[which](jnp.float32(1)))

    threads = [threading.Thread(target=call, args=(which,)) for which in ((0, 1) if rank % 2 else (1, 0))]
    threads[0].start()
    while counter("pending") < OPERATIONS:  # they wait for the ranks that begin with the other function
        time.sleep(0.001)
    threads[1].start()
    for thread in threads:
        thread.join()
    for i in range(OPERATIONS):
        equal(results[0]["f%d" % i], np.float32(n * (1 + i)))
        equal(results[1]["g%d" % i], np.float32(n * (2 + i)))


def check_one_function_many_times():
    """Calls that do not depend on each other, before any result is there."""
    f = jax.jit(lambda x: hvd.allreduce({"a": x, "b": -x}, op=hvd.Sum))
    results = [f(jnp.full((1000,), float(i + hvd.rank()))) for i in range(30)]
    for i, result in enumerate(results):
        total = hvd.size() * i + sum(range(hvd.size()))
        equal(result["a"], np.full(1000, float(total)))
        equal(result["b"], np.full(1000, -float(total)))


def check_names():
    names = []
    of_leaves, _names.of_leaves = _names.of_leaves, lambda *args: names.append(of_leaves(*args)) or names[-1]
    try:
        def helper(x):
            return hvd.allreduce(x, op=hvd.Sum)

        @jax.jit
        def step(x):
            y = helper(x)
            z = helper(x)
            for _ in range(2):
                z = helper(z)
            return y + z, hvd.allreduce({"p": [x]}, name="mine")

        step(jnp.ones(2))
        first, names[:] = list(names), []
        assert len({name for group in first for name in group}) == 5, first
        assert first[-1] == ("mine['p'][0]",), first
        assert first[0][0].startswith("allreduce.helper:"), first
        if hvd.rank() == 0:  # traces again, alone: the names are the same
            step.lower(jnp.ones(3))
            assert names == first, (names, first)
    finally:
        _names.of_leaves = of_leaves
    structure = jax.tree_util.tree_structure(1)
    long = _names.of_leaves("x" * 600, structure)[0]
    assert len(long) == 511 and long != _names.of_leaves("x" * 601, structure)[0]


def check_retracing_on_one_rank():
    """A last batch of another size on one rank only."""

    @jax.jit
    def step(w, batch):
        return hvd.allreduce(jax.grad(lambda w: jnp.mean(batch) * w)(w), op=hvd.Sum)

    for rows in (4, 4 - hvd.rank() % 2):
        equal(step(jnp.float32(1), jnp.ones(rows)), np.float32(hvd.size()))


def check_errors():
    for run in (lambda f: f, jax.jit):
        raises(RuntimeError, "maypole: " if run is jax.jit else "mismatch",
               run(lambda x: hvd.allreduce(x, name="mismatch")), jnp.ones(2 + hvd.rank() % 2))
        raises(NotImplementedError, "Adasum", run(lambda x: hvd.allreduce(x, op=hvd.Adasum)), jnp.ones(2))
        raises(ValueError, "is not a reduction", run(lambda x: hvd.allreduce(x, op=9)), jnp.ones(2))
        raises(ValueError, "both average and op", run(lambda x: hvd.allreduce(x, True, op=hvd.Sum)), jnp.ones(2))
        raises(ValueError, "it has not been added",
               run(lambda x: hvd.allreduce(x, process_set=hvd.ProcessSet([0]))), jnp.ones(2))
    raises(ValueError, "inside pmap or shard_map over i", jax.pmap(hvd.allreduce, axis_name="i"),
           jnp.ones((jax.local_device_count(), 2)))
    equal(jax.vmap(lambda x: hvd.allreduce(x, op=hvd.Sum), axis_name="i")(jnp.ones((3, 2))),
          np.full((3, 2), float(hvd.size())))
    raises(ImportError, "needs jaxlib 0.4.38", _ffi.check_version, "0.4.37")
    raises(ImportError, "lacks", xla_header.layout, "", "jaxlib")


def check_optimizer():
    n = hvd.size()
    optimizer = hvd.DistributedOptimizer(optax.chain(optax.clip_by_global_norm(1e9), optax.sgd(1.0)),
                                         backward_passes_per_step=2, gradient_predivide_factor=2.0)
    params = {"w": jnp.zeros(2), "b": jnp.zeros(())}
    state = optimizer.init(params)

    @jax.jit
    def step(params, state):
        gradients = jax.tree_util.tree_map(lambda p: jnp.full(p.shape, 1.0 + hvd.rank()), params)
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state

    for i in range(4):
        params, state = step(params, state)
        equal(params["w"], np.full(2, -(n + 1.0) * ((i + 1) // 2)), 1e-6)
    plain = hvd.DistributedOptimizer(optax.sgd(1.0), compression=hvd.Compression.fp16, op=hvd.Sum)
    updates, _ = plain.update({"w": jnp.ones(2)}, plain.init(params))
    equal(updates["w"], np.full(2, -float(n)))
    raises(ValueError, "expected a positive integer", hvd.DistributedOptimizer, optax.sgd(1.0),
           backward_passes_per_step=0)
    raises(ValueError, "op=Average", hvd.reduce_gradients, op=hvd.Sum, gradient_predivide_factor=2.0)


def check_join():
    if hvd.rank() > 0:
        hvd.join()
        return
    f = jax.jit(lambda x: hvd.allreduce(x, op=hvd.Sum))
    equal(f(jnp.ones(2)), np.ones(2))
    hvd.join()
