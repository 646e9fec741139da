"""Recipes of JAX: gradients and optimizers on pytrees, through JAX's transformations; see whole_batch.py."""

import os
import random

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"

import jax
import jax.numpy as jnp
import numpy as np
import optax

import maypole.jax as hvd
import whole_batch

hvd.init()
ROWS, STEPS = 4 * hvd.size(), 4


def data(seed):
    numbers = np.random.RandomState(seed)
    params = {"w": [numbers.randn(6, 4).astype(np.float32)], "b": numbers.randn(4).astype(np.float32),
              "scale": np.float32(1.5)}
    return params, numbers.randn(STEPS, ROWS, 6).astype(np.float32)


def row_loss(params, row):
    return jnp.mean((jnp.tanh(row @ params["w"][0] + params["b"]) * params["scale"]) ** 2)


def plain_gradient(params, x):
    return jax.grad(lambda p: jnp.mean(jax.vmap(lambda row: row_loss(p, row))(x)))(params)


def per_row(params, x):
    """Gradients of each row, clipped, and their mean."""
    each = jax.vmap(lambda row: jax.tree_util.tree_map(lambda g: jnp.clip(g, -0.05, 0.05),
                                                       jax.grad(row_loss)(params, row)))(x)
    return jax.tree_util.tree_map(lambda g: g.mean(0), each)


def rematerialized(params, x):
    return jax.grad(lambda p: jnp.mean(jax.vmap(jax.checkpoint(lambda row: row_loss(p, row)))(x)))(params)


def in_loss(params, x):
    """The loss itself is averaged over the ranks, whose gradient then is."""
    return jax.grad(lambda p: hvd.allreduce(jnp.mean(jax.vmap(lambda row: row_loss(p, row))(x))))(params)


def forward(params, x):
    """By columns of the Jacobian, of the averaged loss."""
    return jax.jacfwd(lambda p: hvd.allreduce(jnp.mean(jax.vmap(lambda row: row_loss(p, row))(x))))(params)


def optimizers(choose):
    return choose([("sgd", lambda: optax.sgd(0.1)), ("momentum", lambda: optax.sgd(0.1, momentum=0.9)),
                   ("adam", lambda: optax.adam(0.01)),
                   ("clipped", lambda: optax.chain(optax.clip_by_global_norm(0.05), optax.sgd(0.1))),
                   ("adamw", lambda: optax.adamw(0.01, weight_decay=0.1))])


def make(seed):
    choose = random.Random(seed).choice
    text, optimizer_of = optimizers(choose)
    gradient = choose([plain_gradient, per_row, rematerialized, in_loss, forward])
    mode = choose(["eager", "jit", "jit", "scan", "devices"])
    passes = choose([1, 1, 1, 2])
    reduced = gradient in (in_loss, forward)  # by itself: all ranks have the mean
    options = {"backward_passes_per_step": passes, "average_aggregated_gradients": True,
               "gradient_predivide_factor": choose([1.0, 1.0, 2.0])}
    half = choose([False, False, True])

    def train(rows):
        params, batches = data(seed)
        if half:
            params["b"] = jnp.asarray(params["b"], jnp.bfloat16)
        batches = jnp.asarray(np.stack([rows.of(batch) for batch in batches]))
        if mode == "devices":
            mesh = jax.sharding.Mesh(np.array(jax.devices()), ("d",))
            batches = jax.device_put(batches, jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(None, "d")))
        optimizer = optimizer_of()
        if rows.distributed:
            optimizer = hvd.DistributedOptimizer(optimizer, **options)
        elif passes > 1:
            batches = batches.reshape(STEPS // passes, passes * ROWS, 6)
        state = optimizer.init(params)

        def step(carry, x):
            params, state = carry
            compute = plain_gradient if reduced and not rows.distributed else gradient
            updates, state = optimizer.update(compute(params, x), state, params)
            return (optax.apply_updates(params, updates), state), None

        params = jax.tree_util.tree_map(jnp.asarray, params)
        if mode == "scan":
            (params, state), _ = jax.jit(lambda c, xs: jax.lax.scan(step, c, xs))((params, state), batches)
        else:
            run = step if mode == "eager" else jax.jit(step)
            for x in batches:
                (params, state), _ = run((params, state), x)
        leaves, _ = jax.tree_util.tree_flatten_with_path(params)
        return {jax.tree_util.keystr(path): np.asarray(leaf, np.float32) for path, leaf in leaves}

    return f"{text} {gradient.__name__} {mode} {options} half={half}", train, 3e-2 if half else 1e-3


whole_batch.main(make)
