"""Derivatives, vmap, scan, cond and checkpoint of collectives, by value."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import maypole.jax as hvd
from expect import BOTH, equal, raises


def check_gradients():
    n, rank = hvd.size(), hvd.rank()
    mean = sum(range(n)) / n
    x = jnp.full((2 * n,), float(rank))
    for run in BOTH:
        # Of a loss that is sum(y * y) on each rank: dy = 2 y.
        def gradient(function):
            return run(jax.grad(lambda x: jnp.sum(function(x) ** 2)))(x)

        equal(gradient(lambda x: hvd.allreduce(x, op=hvd.Sum, name="g0")), np.full(2 * n, 2 * n * n * mean))
        equal(gradient(lambda x: hvd.allreduce(x, name="g1")), np.full(2 * n, 2 * mean))
        equal(gradient(lambda x: hvd.allgather(x, name="g2")), np.full(2 * n, 2.0 * rank))
        equal(gradient(lambda x: hvd.broadcast(x, 1, name="g3")), np.full(2 * n, 2.0 if rank == 1 else 0.0))
        equal(gradient(lambda x: hvd.alltoall(x, name="g4")), np.full(2 * n, 2.0 * rank))
        equal(gradient(lambda x: hvd.reducescatter(x, name="g5")), np.full(2 * n, 2 * mean))
        equal(gradient(lambda x: hvd.reducescatter(x, op=hvd.Sum, prescale_factor=0.5, name="g6")),
              np.full(2 * n, 0.5 * n * 2 * (0.5 * n * mean)))
        equal(gradient(lambda x: hvd.allreduce(x, prescale_factor=3.0, name="g7")), np.full(2 * n, 18 * mean))
        equal(gradient(lambda x: hvd.allreduce(x, compression=hvd.Compression.bf16, name="g8")),
              np.full(2 * n, 2 * mean))
    # Second derivatives, and leaves without one.
    equal(jax.jit(jax.grad(jax.grad(lambda x: hvd.allreduce(x, op=hvd.Sum) ** 3)))(jnp.float32(1)),
          np.float32(6 * n * n * n))
    got = jax.jit(jax.grad(lambda t: jnp.sum(hvd.allreduce(t)["x"] ** 2), allow_int=True))(
        {"n": jnp.int32(1), "x": x})
    equal(got["x"], np.full(2 * n, 2 * mean))
    assert got["n"].dtype == jax.dtypes.float0


def check_forward_mode():
    """Tangents go through the same collective; those of a reduction that is not linear are refused."""
    n, rank = hvd.size(), hvd.rank()
    mean = sum(range(n)) / n
    x, t = jnp.full((2 * n,), 1.0 + rank), jnp.full((2 * n,), float(rank))
    for run in BOTH:
        def tangent(function):
            results, tangents = run(lambda x, t: jax.jvp(function, (x,), (t,)))(x, t)
            equal(results, run(function)(x))
            return tangents

        equal(tangent(lambda x: hvd.allreduce(x, op=hvd.Sum, name="f0")), np.full(2 * n, n * mean))
        equal(tangent(lambda x: hvd.allreduce(x, name="f1") ** 2), np.full(2 * n, 2 * (1 + mean) * mean))
        equal(tangent(lambda x: hvd.allreduce(x, prescale_factor=3.0, name="f2")), np.full(2 * n, 3 * mean))
        equal(tangent(lambda x: hvd.allgather(x, name="f3")), np.repeat(np.arange(float(n)), 2 * n))
        equal(tangent(lambda x: hvd.broadcast(x, 1, name="f4")), np.ones(2 * n))
        equal(tangent(lambda x: hvd.alltoall(x, name="f5")), np.repeat(np.arange(float(n)), 2))
        equal(tangent(lambda x: hvd.reducescatter(x, name="f6")), np.full(2, mean))
        raises(NotImplementedError, "has no derivative in forward mode", tangent,
               lambda x: hvd.allreduce(x, op=hvd.Max, name="f7"))
    equal(jax.jit(jax.vmap(lambda x, t: jax.jvp(hvd.allreduce, (x,), (t,))[1]))(x[None], t[None]), [np.full(2 * n, mean)])
    # Of one leaf of three; through scan; forward over reverse; the whole Jacobian.
    moved = jax.jit(lambda x: jax.jvp(lambda y: hvd.allreduce({"x": y, "i": jnp.int32(1), "z": x}), (x,), (t,))[1])(x)
    equal(moved["x"], np.full(2 * n, mean))
    equal(moved["z"], np.zeros(2 * n))
    equal(jax.jit(lambda x, t: jax.jvp(lambda x: lax.scan(
        lambda c, _: (hvd.allreduce(c, op=hvd.Sum), None), x, None, length=3)[0], (x,), (t,))[1])(x, t),
          np.full(2 * n, n**3 * mean))
    cube = lambda x: jnp.sum(hvd.allreduce(x, op=hvd.Sum) ** 3)
    equal(jax.jit(lambda x, t: jax.jvp(jax.grad(cube), (x,), (t,))[1])(x, t), np.full(2 * n, 6 * n**3 * (1 + mean) * mean))
    equal(jax.jit(jax.jacfwd(lambda x: hvd.allreduce(x, op=hvd.Sum)))(jnp.ones(2)), n * np.eye(2))
    linear = jax.linearize(lambda x: hvd.allreduce(x, op=hvd.Sum, name="linear"), x)[1]
    equal(linear(t), np.full(2 * n, n * mean))


def check_vmap():
    n, rank = hvd.size(), hvd.rank()
    x = np.arange(3 * 2 * n, dtype=np.float32).reshape(3, 2 * n) + 100 * rank
    all_ranks = [x + 100 * (r - rank) for r in range(n)]
    for run in BOTH:
        equal(run(jax.vmap(lambda x: hvd.allreduce(x, op=hvd.Sum)))(x), np.sum(all_ranks, 0))
        equal(run(jax.vmap(lambda x: hvd.allreduce(x, op=hvd.Sum), in_axes=1, out_axes=1))(x), np.sum(all_ranks, 0))
        equal(run(jax.vmap(lambda x: hvd.broadcast(x, 1)))(x), all_ranks[1])
        equal(run(jax.vmap(hvd.allgather))(x), np.concatenate(all_ranks, 1))
        total = np.sum(all_ranks, 0)
        equal(run(jax.vmap(lambda x: hvd.reducescatter(x, op=hvd.Sum)))(x), total[:, 2 * rank:2 * rank + 2])
        equal(run(jax.vmap(hvd.alltoall))(x), np.concatenate([a[:, 2 * rank:2 * rank + 2] for a in all_ranks], 1))
        both = run(jax.vmap(lambda x, y: hvd.allreduce((x, y), op=hvd.Sum), in_axes=(0, None), out_axes=(0, None)))
        equal(both(x, jnp.float32(1))[1], np.float32(n))
        per_example = run(jax.vmap(jax.grad(lambda x: jnp.sum(hvd.allgather(x) ** 2))))(x)
        equal(per_example, 2 * x, 1e-6)
    twice = jax.jit(jax.vmap(jax.vmap(hvd.allgather)))(x.reshape(3, n, 2))
    equal(twice, np.concatenate([a.reshape(3, n, 2) for a in all_ranks], 2))


def check_control_flow():
    n, rank = hvd.size(), hvd.rank()

    def body(carry, x):
        carry = hvd.allreduce(carry + x)
        return carry, hvd.allreduce(x * rank, op=hvd.Sum)

    last, each = jax.jit(lambda c, xs: lax.scan(body, c, xs))(jnp.float32(rank), jnp.arange(50.0))
    equal(last, np.float32((n - 1) / 2 + 49 * 50 / 2))
    equal(each, np.arange(50.0) * n * (n - 1) / 2)
    gradient = jax.jit(jax.grad(lambda c: lax.scan(body, c, jnp.arange(5.0))[0] ** 2))(jnp.float32(rank))
    equal(gradient, np.float32(2 * ((n - 1) / 2 + 10)))
    counted = jax.jit(lambda x: lax.while_loop(
        lambda v: v[1] < 3, lambda v: (hvd.allreduce(v[0], op=hvd.Sum), v[1] + 1), (x, 0)))(jnp.float32(1))
    equal(counted[0], np.float32(n**3))
    # The branch may depend on data that all ranks have.
    chosen = jax.jit(lambda p, x: lax.cond(p, lambda x: hvd.allreduce(x, op=hvd.Sum), lambda x: x, x))
    equal(chosen(True, jnp.ones(2)), np.full(2, float(n)))
    equal(chosen(False, jnp.ones(2)), np.ones(2))


def check_checkpoint():
    layer = jax.checkpoint(lambda x: jnp.sin(hvd.allreduce(jnp.sin(x))))
    plain = jax.grad(lambda x: jnp.sum(jnp.sin(jnp.sin(jnp.sin(jnp.sin(x))))))
    x = jnp.arange(3.0)
    equal(jax.jit(jax.grad(lambda x: jnp.sum(layer(layer(x)))))(x), plain(x), 1e-6)


def check_unused_results_stay():
    """Rank 0 uses the results, in another order, the others do not: all must run the operations in one order."""

    def step(x):
        means = [hvd.allreduce(x + i) for i in range(20)]
        again = jax.checkpoint(lambda x: hvd.allreduce(jnp.sin(x)))(means[-1])
        return (again, means[::-1]) if hvd.rank() == 0 else x

    jax.block_until_ready(jax.jit(step)(jnp.ones(3)))


def check_on_host():
    """The way of programs for another device than the CPU."""
    default, jax.default_backend = jax.default_backend, lambda: "another"
    try:
        x = jnp.full((2,), float(hvd.rank()))
        gradient = jax.jit(jax.grad(lambda x: jnp.sum(hvd.allreduce(x, op=hvd.Sum, name="on host") ** 2)))(x)
        total = hvd.size() * (hvd.size() - 1) / 2
        equal(gradient, np.full(2, 2 * hvd.size() * total))
        equal(jax.jit(jax.vmap(hvd.allgather))(x.reshape(2, 1)), [np.arange(hvd.size())] * 2)
        raises(RuntimeError, "the same first dimension", jax.jit(hvd.allgather), jnp.ones(hvd.rank() + 1))
    finally:
        jax.default_backend = default
