"""Rank 1 dies while an operation of rank 0's jitted function is pending: JAX's error says so."""

import os
import signal
import threading
import time

import jax
import jax.numpy as jnp

import maypole.jax as hvd
import rank
from maypole.common.basics import counter

hvd.init()
total = jax.jit(lambda x: hvd.allreduce({"a": x, "b": x}, name="waits"))
if hvd.rank() == 1:
    rank.await_file("pending")
    os.kill(os.getpid(), signal.SIGKILL)


def say_when_it_waits():
    while counter("pending") < 2:
        time.sleep(0.001)
    rank.touch("pending")


threading.Thread(target=say_when_it_waits).start()
try:
    jax.block_until_ready(total(jnp.ones(10)))
except jax.errors.JaxRuntimeError as error:
    internal = hvd.elastic.internal_error(error)
    rank.record(error=str(error), internal=str(internal), status=internal.status,
                other=hvd.elastic.internal_error(RuntimeError("ABORTED: another")))
