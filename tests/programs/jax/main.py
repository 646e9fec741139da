"""Runs all checks of maypole.jax on every rank, in the same order."""

import os
import sys
import time

# Two devices, for the check that pmap is refused.
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"

import jax

import maypole.jax as hvd
import programs
import rank
import transforms
import values
from expect import raises

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
hvd.shutdown()
raises(RuntimeError, "maypole: ", compiled, 1.0)
raises(ValueError, "has not been initialized", jax.jit(hvd.allreduce), 1.0)
