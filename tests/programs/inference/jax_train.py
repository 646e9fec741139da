"""As torch_train.py, with JAX and Optax: parameters and the optimizer's state, pickled."""

import os
import pickle

import jax
import jax.numpy as jnp
import maypole.jax as hvd
import numpy as np
import optax
import rank

hvd.init()
key = jax.random.PRNGKey(hvd.rank())
params = hvd.broadcast_parameters({"w": jax.random.normal(key, (4, 1)), "b": jnp.zeros(1)}, root_rank=0)
optimizer = hvd.DistributedOptimizer(optax.adam(0.1))
state = optimizer.init(params)


def predict(params, x):
    return x @ params["w"] + params["b"]


@jax.jit
def step(params, state, x):
    def loss(params):
        return jnp.mean((predict(params, x) - x.sum(1, keepdims=True)) ** 2)

    value, gradients = jax.value_and_grad(loss)(params)
    updates, state = optimizer.update(gradients, state, params)
    return optax.apply_updates(params, updates), state, value


losses = []
for _ in range(20):
    key, part = jax.random.split(key)
    params, state, value = step(params, state, jax.random.normal(part, (8, 4)))
    losses.append(float(value))

if hvd.rank() == 0:
    x = jax.random.normal(key, (16, 4))
    with open(os.path.join(rank.DIR, "saved.pickle"), "wb") as f:
        pickle.dump({"params": params, "state": state, "x": np.asarray(x), "y": np.asarray(predict(params, x))}, f)
rank.record(losses=losses)
hvd.shutdown()
