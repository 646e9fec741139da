"""Runs all checks of maypole.jax on every rank, in the same order."""

import os
import sys
import time

# Two devices, for the check that pmap is refused.
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"

import jax
import jax.numpy as jnp
import numpy as np

import maypole.jax as hvd
import programs
import rank
import transforms
import values
from expect import equal, raises

raises(ValueError, "has not been initialized", hvd.allreduce, 1.0)
hvd.init()
hvd.init()
done = {}
for module in (values, transforms, programs):
    for name, check in vars(module).items():
        if name.startswith("check_") and (len(sys.argv) < 2 or sys.argv[1] in name):
            began = time.monotonic()
            try:
                check()
            except BaseException:
                print("%s failed on rank %d" % (name, hvd.rank()), file=sys.stderr, flush=True)
                raise
            done[name] = round(time.monotonic() - began, 3)
rank.record(checks=done, version=jax.__version__, size=hvd.size())
compiled = jax.jit(lambda x: hvd.allreduce(x)).lower(1.0).compile()
# shutdown() waits for programs that have been dispatched.
square = jax.jit(lambda x: hvd.allreduce(x @ x / 500))
x = jnp.ones((500, 500))
for _ in range(5):
    x = square(x)
if hvd.rank() == 0:
    x.block_until_ready()
hvd.shutdown()
equal(x, np.ones((500, 500)), 1e-3)
raises(RuntimeError, "maypole: ", compiled, 1.0)
raises(ValueError, "has not been initialized", jax.jit(hvd.allreduce), 1.0)
# Last, because it ends the epoch: trees that differ are an error, and no sum of different leaves.
hvd.init()
raises(RuntimeError, "allreduce.tree['a']", hvd.allreduce,
       {"a": 1.0, "b": 2.0} if hvd.rank() == 0 else {"b": 2.0, "c": 3.0})
