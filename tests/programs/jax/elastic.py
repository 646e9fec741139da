"""An elastic training with jitted steps. One process dies in the middle of the training, once in the job.

    elastic.py DIRECTORY

Each process writes DIRECTORY/end.PID.json: its weights, and how far they are from a training without ranks.
"""

import enum
import json
import os
import signal
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np

import maypole.jax as hvd

DIRECTORY = sys.argv[1]
STEPS, COMMIT, DIES_AT = 40, 3, 17


class Phase(enum.Enum):
    WARM = 1
    FULL = 2


@jax.jit
def step(weights, number):
    # The mean over the ranks does not depend on their number.
    gradient = jnp.cos(weights + number) + (hvd.rank() - (hvd.size() - 1) / 2)
    return weights - 0.1 * hvd.allreduce(gradient, name="gradient")


# XLA runs a step in the background only if it must wait for an input. Then the error is that of another program, which
# has Maypole's in its text.
busy = jnp.zeros((600, 600))
late = jax.jit(lambda weights, busy: weights + (busy @ busy)[0, 0])
moved = jax.jit(lambda weights, by: weights + by)


def die_once():
    try:
        os.close(os.open(os.path.join(DIRECTORY, "died"), os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return
    os.kill(os.getpid(), signal.SIGKILL)


@hvd.elastic.run
def train(state):
    assert jax.random.key_data(state.key).tolist() == [0, 7], state.key
    assert state.phase is Phase.FULL  # of this program's class, also on ranks that got it from another one
    while state.number < STEPS:
        if state.number == DIES_AT and hvd.rank() == hvd.size() - 1:
            die_once()
        weights = step(late(state.params["w"], busy), state.number)
        if state.number == DIES_AT:
            # If it has failed here, jaxlib 0.4.38 drops the error: the commit must not save the result.
            while not weights.is_ready():
                time.sleep(0.01)
        state.params = {"w": moved(weights, 0.0)}
        state.number += 1
        made.append(state.number)
        if state.number % COMMIT == 0:
            state.commit()
    return state.params["w"]


def alone():
    weights = np.arange(4, dtype=np.float32)
    for number in range(STEPS):
        weights = weights - np.float32(0.1) * np.cos(weights + np.float32(number))
    return weights


hvd.init()
made, sizes = [], []
first = hvd.rank() == 0 and not os.path.exists(os.path.join(DIRECTORY, "died"))
state = hvd.elastic.JaxState(params={"w": jnp.arange(4.0) + (0 if first else os.getpid())}, number=0,
                             key=jax.random.key(7 if first else 1), phase=Phase.FULL if first else Phase.WARM)
state.register_reset_callbacks([lambda: sizes.append(hvd.size())])
weights = np.asarray(train(state))
with open(os.path.join(DIRECTORY, "end.%d.json" % os.getpid()), "w") as f:
    json.dump({"weights": weights.tolist(), "apart": float(np.max(np.abs(weights - alone()))), "steps": len(made),
               "resets": len(sizes)}, f)
