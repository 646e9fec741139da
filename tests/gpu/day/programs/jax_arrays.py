"""maypole.jax on arrays of JAX's default device: eager calls, in jit, gradients, an optimizer's step by hand."""

import os

import rank

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # several ranks use one GPU

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy  # noqa: E402

import maypole.jax as hvd  # noqa: E402


def main():
    rank.started()
    hvd.init()
    me, size = hvd.rank(), hvd.size()
    total = size * (size + 1) / 2
    x = jnp.full((50000,), me + 1.0)
    eager = hvd.allreduce(x, op=hvd.Sum, name="eager")
    numpy.testing.assert_array_equal(numpy.asarray(eager), total)
    jitted = jax.jit(lambda a: hvd.allreduce(a * 2, op=hvd.Sum, name="jitted") + 1)(x)
    numpy.testing.assert_array_equal(numpy.asarray(jitted), 2 * total + 1)
    gathered = hvd.allgather(jnp.full((me + 1, 3), float(me)), name="gathered")
    assert gathered.shape == (int(total), 3), gathered.shape
    weights = hvd.broadcast(jnp.full((300, 300), float(me)), size - 1, name="weights")
    numpy.testing.assert_array_equal(numpy.asarray(weights), size - 1.0)

    def loss(w, data):
        return jnp.mean((data @ w) ** 2)

    data = jnp.asarray(numpy.random.RandomState(me).randn(64, 300).astype(numpy.float32))
    step = jax.jit(lambda w, d: w - 0.1 * hvd.allreduce(jax.grad(loss)(w, d), name="gradient"))
    for _ in range(20):
        weights = step(weights, data)
    rank.record(device=str(x.devices() if hasattr(x, "devices") else x.device()), version=jax.__version__,
                bits=numpy.asarray(weights).tobytes().hex()[:64], sum=float(jnp.sum(weights)))
    hvd.shutdown()


main()
