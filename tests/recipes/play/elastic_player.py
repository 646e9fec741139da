"""A rank of an elastic job that plays one recipe, in the environment's RECIPE (JSON).

The state has model, optimizer, scheduler and the sizes of the job in the steps that count. Every second step is
committed. The rank with the highest number dies once, in the middle of a step between two commits; with
elastic="replaced" the others wait, some steps later, until there are as many ranks as at the start.

At the end each process writes an end (player.py) with one moment, 'end after SIZES', as RECIPES_DIR/end.PID.

Thread contract: one thread.
"""

import json
import os
import signal
import sys
import time
import warnings

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(os.path.dirname(HERE), "spec")]

# pylint: disable=wrong-import-position
import torch

import maypole.torch as hvd
import mutants
from player import end_of
from recipe import EPOCHS, STEPS, Recipe
from training import Training, elastic_step, end_moment
from worlds import Together

DIR = os.environ["RECIPES_DIR"]
DIES_AT, WAITS_AT = 3, 6


def die_once():
    try:
        os.close(os.open(os.path.join(DIR, "died"), os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return
    os.kill(os.getpid(), signal.SIGKILL)


def moments(recipe):
    at_start = int(os.environ["RECIPES_SIZE"])
    training = Training(recipe, Together(hvd, False))
    trainee = training.begin()

    @hvd.elastic.run
    def train(state):
        while len(state.sizes) < EPOCHS * STEPS:
            step = len(state.sizes)
            training.world.refresh()
            trainee.model, trainee.optimizer = state.model, state.optimizer
            trainee.scheduler = getattr(state, "scheduler", None)
            trainee.scaler = getattr(state, "scaler", None)
            # A job may start before all its processes are there.
            waits = step == 0 or step == WAITS_AT and recipe.elastic == "replaced"
            if waits and hvd.size() < at_start:
                time.sleep(0.02)
                state.commit()
                continue
            dies = step == DIES_AT and hvd.rank() == at_start - 1
            elastic_step(trainee, step, die_once if dies else lambda: None)
            state.sizes = state.sizes + [hvd.size()]
            if len(state.sizes) % 2 == 0:
                state.commit()

    more = {"scheduler": trainee.scheduler, "scaler": trainee.scaler}
    more = {name: value for name, value in more.items() if value is not None}
    state = hvd.elastic.TorchState(trainee.model, trainee.optimizer, sizes=[], **more)
    train(state)
    yield end_moment(training, state.sizes)


def main():
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    recipe = Recipe.of(json.loads(os.environ["RECIPE"]))
    hvd.init()
    with mutants.applied(os.environ.get("RECIPES_MUTANT"), hvd.rank()):
        end = end_of(moments(recipe))
    path = os.path.join(DIR, f"end.{os.getpid()}")
    with open(path + ".new", "w", encoding="utf-8") as f:
        json.dump(end, f)
    os.rename(path + ".new", path)
    if end["error"] is None:
        hvd.shutdown()
    sys.exit(0 if end["error"] is None else 1)


if __name__ == "__main__":
    main()
