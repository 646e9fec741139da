"""Maypole in JAX beside JAX's own collectives on CPUs (jax.distributed with Gloo), in the same processes.

    maypolerun -np 2 PYTHON tests/bench/jax_bench.py [--rounds 7] [--json FILE]

PYTHON: an interpreter with jax (tests/frameworks/environments.py makes one). Each rank is one process with one device.
All sum float32 tensors over the ranks, in a jitted function, and wait for the result:

  maypole        maypole.jax.allreduce of a pytree
  maypole eager  the same outside jit
  jax            jax.lax.psum in shard_map over a mesh of all processes

The rounds of the ways take turns; the table has the median of the rounds' mean times. The results are compared first.
"""

import argparse
import json
import os
import socket
import statistics
import time

import jax
import jax.numpy as jnp
import numpy as np

import maypole.jax as hvd
import resnet50

MESH, AXIS = None, "ranks"


def connect():
    """Starts JAX's distributed runtime; rank 0 is its coordinator."""
    port = None
    if hvd.rank() == 0:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
    port = hvd.broadcast_object(port)
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize("127.0.0.1:%d" % port, hvd.size(), hvd.rank())
    return jax.sharding.Mesh(np.array(jax.devices()), (AXIS,))


def shard_map(function, mesh, spec):
    found = getattr(jax, "shard_map", None)
    if found is None:
        from jax.experimental.shard_map import shard_map as found
    return found(function, mesh=mesh, in_specs=spec, out_specs=spec)


def ways(tensors, mesh):
    """{name: function that reduces the tensors once}, and their results as NumPy arrays."""
    spec = jax.sharding.PartitionSpec(AXIS)
    sharding = jax.sharding.NamedSharding(mesh, spec)
    shared = [
        jax.make_array_from_single_device_arrays((hvd.size() * t.shape[0],) + t.shape[1:], sharding, [jnp.asarray(t)])
        for t in tensors
    ]
    theirs = jax.jit(shard_map(lambda t: jax.lax.psum(t, AXIS), mesh, spec))
    local = [jnp.asarray(t) for t in tensors]
    ours = jax.jit(lambda t: hvd.allreduce(t, op=hvd.Sum, name="bench"))
    found = {
        "maypole": lambda: jax.block_until_ready(ours(local)),
        "maypole eager": lambda: jax.block_until_ready(hvd.allreduce(local, op=hvd.Sum, name="bench")),
        "jax": lambda: jax.block_until_ready(theirs(shared)),
    }
    for name, function in found.items():
        for result, tensor in zip(function(), tensors):
            if name == "jax":
                result = result.addressable_shards[0].data
            np.testing.assert_allclose(np.asarray(result), tensor * hvd.size(), rtol=1e-6)
    return found


def seconds(function, calls):
    """The mean time of a call; all ranks begin together."""
    hvd.barrier()
    start = time.perf_counter()
    for _ in range(calls):
        function()
    return (time.perf_counter() - start) / calls


def measure(case, tensors, calls, rounds, mesh):
    functions = ways(tensors, mesh)
    times = {name: [] for name in functions}
    for _ in range(rounds):
        for name, function in functions.items():
            times[name].append(seconds(function, calls))
    return {"case": case, "tensors": len(tensors), "bytes": sum(t.nbytes for t in tensors),
            "us": {name: 1e6 * statistics.median(each) for name, each in times.items()},
            "lowest us": {name: 1e6 * min(each) for name, each in times.items()}}


def table(rows):
    print("jax %s, jaxlib %s, %d ranks, load %.1f" % (jax.__version__, jax.lib.__version__, hvd.size(),
                                                     os.getloadavg()[0]))
    print("| a call of | µs maypole | µs maypole eager | µs jax | jax / maypole |")
    print("|---|---|---|---|---|")
    for row in rows:
        us = row["us"]
        print("| %s (%d tensors, %d bytes) | %.0f | %.0f | %.0f | %.1f |" % (
            row["case"], row["tensors"], row["bytes"], us["maypole"], us["maypole eager"], us["jax"],
            us["jax"] / us["maypole"]), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", help="where rank 0 writes the figures")
    arguments = parser.parse_args()
    hvd.init()
    mesh = connect()
    gradients = [np.full(shape, 1.0, np.float32) for _, shape in resnet50.parameters()]
    rows = [
        measure("16 bytes", [np.ones(4, np.float32)], 200, arguments.rounds, mesh),
        measure("64 tensors of 16 bytes", [np.full(4, i, np.float32) for i in range(64)], 10, arguments.rounds, mesh),
        measure("ResNet-50's gradients", gradients, 3, arguments.rounds, mesh),
    ]
    if hvd.rank() == 0:
        table(rows)
        if arguments.json:
            with open(arguments.json, "w", encoding="utf-8") as f:
                json.dump({"jax": jax.__version__, "ranks": hvd.size(), "rows": rows}, f)
    hvd.barrier()
    hvd.shutdown()


if __name__ == "__main__":
    main()
