"""Names and order of operations in programs; errors; training's helpers."""

import os
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax

import maypole.jax as hvd
from expect import BOTH, equal, raises
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


def check_earlier_traces_make_no_difference():
    """A jitted function is called by another one, and has been traced for something else on rank 0."""
    mean = (hvd.size() - 1) / 2
    inner = jax.jit(lambda x: hvd.allreduce(x))
    first, second = jax.jit(lambda x: inner(x) + 1), jax.jit(lambda x: inner(x) + 2)
    x = jnp.full(2, float(hvd.rank()))
    if hvd.rank() == 0:
        jax.make_jaxpr(second)(x)
    equal(first(x), np.full(2, mean + 1))
    equal(second(x), np.full(2, mean + 2))
    loss = jax.jit(lambda w, x: jnp.mean((x * w - hvd.allreduce(x.mean()))**2))
    if hvd.rank() == 0:
        jax.make_jaxpr(loss)(x, x)
    equal(jax.jit(lambda w, x: hvd.allreduce(jax.grad(loss)(w, x)))(jnp.ones(2), jnp.ones(2)), np.zeros(2))


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
        raises(NotImplementedError, "Adasum", run(jax.vmap(lambda x: hvd.allreduce(x, op=hvd.Adasum))), jnp.ones((2, 2)))
        raises(ValueError, "is not a reduction", run(lambda x: hvd.allreduce(x, op=9)), jnp.ones(2))
        raises(TypeError, "name=5, expected a string", run(lambda x: hvd.allreduce(x, name=5)), jnp.ones(2))
        raises(ValueError, "contains a NUL character", run(lambda x: hvd.allgather(x, name="a\0b")), jnp.ones(2))
        raises(TypeError, "prescale_factor='x', expected a number",
               run(lambda x: hvd.allreduce(x, prescale_factor="x")), jnp.ones(2))
        raises(TypeError, "root_rank='0', expected an integer", run(lambda x: hvd.broadcast(x, "0")), jnp.ones(2))
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
        # Between two passes an elastic commit is put off.
        within = hvd.elastic.JaxState(optimizer=[state])._passes_if_within_step()
        assert within == (2 if i % 2 == 0 else 0), (i, within)
    plain = hvd.DistributedOptimizer(optax.sgd(1.0), compression=hvd.Compression.fp16, op=hvd.Sum)
    updates, _ = plain.update({"w": jnp.ones(2)}, plain.init(params))
    equal(updates["w"], np.full(2, -float(n)))
    raises(ValueError, "expected a positive integer", hvd.DistributedOptimizer, optax.sgd(1.0),
           backward_passes_per_step=0)
    raises(ValueError, "op=Average", hvd.reduce_gradients, op=hvd.Sum, gradient_predivide_factor=2.0)


def check_optimizers_are_not_mixed_up():
    """Two of one factory, which rank 0 calls in another order."""

    def make():
        optimizer = hvd.DistributedOptimizer(optax.sgd(0.1))
        return optimizer, lambda g: optimizer.update(g, optimizer.init(g))[0]

    (_, first), (_, second) = make(), make()
    for run in BOTH:
        for update in (first, second):
            equal(run(update)(jnp.ones(2)), np.full(2, -0.1, np.float32))
        raises((ValueError, RuntimeError), "the ranks use different optimizers here",
               run(first if hvd.rank() == 0 else second), jnp.ones(2))


def check_unequal_ranks():
    """Other weights, another learning rate, missed steps: an error on all ranks, in place of different models."""
    rank = hvd.rank()

    def train(run, start, rate, steps, missed=0, later=None):
        """later: the learning rate, which is in the state, from the third step on."""
        kind = optax.sgd if later is None else optax.inject_hyperparams(optax.sgd)
        optimizer = hvd.DistributedOptimizer(kind(learning_rate=rate, momentum=0.9))
        params = {"a": jnp.ones(3), "b": jnp.full(2, start, jnp.bfloat16), "key": jax.random.PRNGKey(1)}
        state = optimizer.init({"a": params["a"], "b": params["b"]})
        if missed:
            state = jax.tree_util.tree_map(lambda s: s, (state[0]._replace(steps=state[0].steps + missed), state[1]))

        def step(params, state):
            weights = {"a": params["a"], "b": params["b"]}
            updates, state = optimizer.update({"a": weights["a"] + rank, "b": weights["b"]}, state, weights)
            return {**optax.apply_updates(weights, updates), "key": params["key"]}, state

        step = run(step)
        for i in range(steps):
            if later is not None and i == 2:
                inner = state[1]._replace(hyperparams={**state[1].hyperparams, "learning_rate": jnp.float32(later)})
                state = (state[0], inner)
            params, state = jax.block_until_ready(step(params, state))
        return params

    either = (ValueError, RuntimeError)
    for run in BOTH:
        train(run, 1.0, 0.1, 9)
        raises(either, "different weights at ['b']", train, run, 1.0 + rank % 2, 0.1, 1)
        raises(either, "different weights at ['a']", train, run, 1.0, 0.1 * (1 + rank % 2), 2)
        raises(either, "different optimizer state at .hyperparams['learning_rate']", train, run, 1.0, 0.1, 5, 0,
               0.1 + rank % 2)
        raises(either, "different numbers of steps", train, run, 1.0, 0.1, 1, rank % 2)
        os.environ["MAYPOLE_CHECK_START"] = "0"
        train(run, 1.0 + rank % 2, 0.1 * (1 + rank % 2), 2)
        del os.environ["MAYPOLE_CHECK_START"]


def check_unusual_arguments():
    """Their errors say what is wrong."""
    long = "k" * 600
    for run in BOTH:
        raises(ValueError, "a scalar cannot be scattered", run(hvd.reducescatter), jnp.float32(1))
        raises(ValueError, "9 dimensions, expected at most 8", run(hvd.allreduce), jnp.ones((1,) * 9))
        raises(ValueError, "a key of jax.random", run(lambda x: hvd.broadcast(x, 0)), jax.random.key(1))
        equal(run(jax.grad(lambda x: hvd.allreduce({long: x})[long].sum()))(jnp.ones(2)), np.ones(2))
    raises(TypeError, "['name']", hvd.broadcast_parameters, {"w": jnp.ones(2), "name": "abc"})
    integers = jax.grad(lambda x: x["a"].sum() * 2., allow_int=True)({"a": jnp.ones(2), "i": jnp.ones(2, int)})
    raises(ValueError, "float0", hvd.allreduce, integers)
    alone = hvd.add_process_set([0])
    outside = jax.jit(jax.grad(lambda x: hvd.allgather(x, process_set=alone).sum()))
    if hvd.rank() > 0:
        raises((ValueError, RuntimeError), "is not in it; its ranks are [0]", outside, jnp.ones(2))
    hvd.barrier()
    hvd.remove_process_set(alone)


def check_optimizer_of_mixed_types():
    """Parameters, gradients and the optimizer's state of several types; the sums are not shortened."""
    n = hvd.size()
    params = {"half": jnp.zeros(2, jnp.bfloat16), "single": jnp.zeros(2), "short": jnp.zeros((), jnp.float16)}
    types = {"half": jnp.float32, "single": jnp.bfloat16, "short": jnp.float16}
    for make in (lambda: optax.sgd(1.0), lambda: optax.adam(1.0)):
        optimizer = hvd.DistributedOptimizer(make(), backward_passes_per_step=2, average_aggregated_gradients=True)
        state = optimizer.init(params)

        def step(state):
            gradients = {k: jnp.full(p.shape, 1.0 + hvd.rank(), types[k]) for k, p in params.items()}
            return optimizer.update(gradients, state, params)

        plain = make()
        mean = {k: jnp.full(p.shape, (n + 1) / 2, types[k]) for k, p in params.items()}
        wanted, _ = plain.update(mean, plain.init(params), params)
        for run in BOTH:
            state = optimizer.init(params)
            for last in (False, True):
                updates, state = run(step)(state)
                for key, update in updates.items():
                    assert update.dtype == wanted[key].dtype, (key, update.dtype, wanted[key].dtype)
                    equal(update, wanted[key] if last else np.zeros(update.shape), 1e-2)


def check_several_devices():
    """A program over arrays of two devices runs the collective once, on whole arrays."""
    mesh = jax.sharding.Mesh(np.array(jax.devices()), ("d",))
    mean = (hvd.size() + 1) / 2
    for spec in (jax.sharding.PartitionSpec("d"), jax.sharding.PartitionSpec()):
        sharding = jax.sharding.NamedSharding(mesh, spec)
        x = jax.device_put(jnp.arange(4.0) * (hvd.rank() + 1), sharding)
        got = jax.jit(lambda x: hvd.allreduce({"x": x, "sum": x.sum()}),
                      out_shardings={"x": sharding, "sum": None})(x)
        equal(got["x"], np.arange(4.0) * mean)
        equal(got["sum"], 6 * mean)
        equal(jax.jit(lambda x: hvd.allgather(hvd.broadcast(x, 1)))(x), np.tile(np.arange(4.0) * 2, hvd.size()))
        equal(jax.jit(jax.grad(lambda x: jnp.sum(hvd.allreduce(x, op=hvd.Sum) ** 2)))(x),
              2 * np.arange(4.0) * mean * hvd.size() ** 2)
        equal(jax.jit(lambda x: jax.lax.scan(lambda c, i: (hvd.allreduce(c + i), None), x, jnp.arange(3.0))[0])(x),
              np.arange(4.0) * mean + 3)
        again = hvd.allreduce(x)  # not in a program: placed as it was
        assert again.sharding == x.sharding
        equal(again, np.arange(4.0) * mean)


def check_where_results_are():
    """A result is committed to a device if its input is, as those of JAX's functions."""
    other = jax.devices()[1]
    free, bound = jnp.ones(2), jax.device_put(jnp.ones(2), other)
    for collective in (hvd.allreduce, hvd.allgather, lambda x: hvd.broadcast(x, 0)):
        assert not collective(free).committed and not collective(np.ones(2)).committed
        result = collective(bound)
        assert result.committed and result.devices() == {other}
    equal(hvd.allreduce(free) + bound, np.full(2, 2.0))


def check_errors_name_the_leaf():
    tree = {"a": jnp.ones(2), "b": [jnp.ones(2 + hvd.rank() % 2)]}
    raises(RuntimeError, "allreduce.tree['b'][0]", hvd.allreduce, tree)
    raises(RuntimeError, "named['b'][0]", lambda: hvd.allreduce(tree, name="named"))
    raises(RuntimeError, "['b'][0]", jax.jit(hvd.allreduce), tree)
    raises(ValueError, "['b'][0]\": dtype complex64", hvd.allreduce, {"a": 1.0, "b": [jnp.ones(2, jnp.complex64)]})


def check_join():
    if hvd.rank() > 0:
        hvd.join()
        return
    f = jax.jit(lambda x: hvd.allreduce(x, op=hvd.Sum))
    equal(f(jnp.ones(2)), np.ones(2))
    hvd.join()
