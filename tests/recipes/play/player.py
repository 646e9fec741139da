"""A process that plays recipes for the test: a rank of a job, or (`alone`) the one process that computes references.

It connects to the unix socket in the environment's RECIPES_SOCKET and then answers lines of JSON:

    {"hello": rank}                                         what it says first; -1: alone
    {"play": differences, "mutant": name or null}           a rank answers its end
    {"play": differences, "members": [0, 1], "sizes": null} the one process answers the end of these ranks together; or
                                                            of an elastic job that had so many ranks in its steps
    {"reset": true}                                         a rank leaves the job and joins it again: nothing is pending

An end is {"moments": [[label, values, digest], ...], "error": null or {"kind", "text", "ours", "trace"}}. ours: Maypole
raised it on purpose, or passed it on.

After an error a rank leaves the job, like a script that an exception ends, so the other ranks do not wait for it.

Thread contract: one thread.
"""

import json
import os
import socket
import sys
import traceback
import warnings

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(os.path.dirname(HERE), "spec")]

# pylint: disable=wrong-import-position
import torch

import adasum
from recipe import Recipe
from training import Training, elastic_moments
from worlds import Alone, Together

# What Python and torch raise by themselves where a program met something that nobody had thought of.
_ACCIDENTS = (AttributeError, KeyError, IndexError, TypeError, UnboundLocalError, NameError, ZeroDivisionError)


def _error(error):
    frames = traceback.extract_tb(error.__traceback__)
    package = os.path.join("python", "maypole") + os.sep
    raised_by_us = package in frames[-1].filename
    name = type(error).__name__
    ours = not isinstance(error, _ACCIDENTS) and (raised_by_us or name == "HorovodInternalError")
    return {"kind": name, "text": str(error), "ours": ours,
            "trace": ["%s:%d %s" % (os.path.relpath(f.filename, HERE), f.lineno, f.name) for f in frames[-6:]]}


def end_of(moments):
    """Runs a training to its end."""
    done, error = [], None
    try:
        for moment in moments:
            done.append(moment)
    except Exception as e:  # pylint: disable=broad-except
        error = _error(e)
    return {"moments": done, "error": error}


def alone(recipe, members, sizes=None):
    if sizes is not None:
        play = adasum.elastic_moments if recipe.op == "Adasum" else elastic_moments
        return end_of(play(recipe, sizes))
    if recipe.op == "Adasum" and len(members) > 1:
        return end_of(adasum.moments(recipe, members))
    return end_of(Training(recipe, Alone(members)).moments())


class Rank:
    def __init__(self):
        import maypole.torch as hvd  # pylint: disable=import-outside-toplevel
        self.hvd = hvd
        hvd.init()

    def play(self, recipe, mutant):
        if mutant is None:
            end = end_of(self._moments(recipe))
        else:
            import mutants  # pylint: disable=import-outside-toplevel
            with mutants.applied(mutant, self.hvd.rank()):
                end = end_of(self._moments(recipe))
        if end["error"] is not None:
            self.hvd.shutdown()
        return end

    def _moments(self, recipe):
        world = Together(self.hvd, recipe.subset)
        yield from Training(recipe, world).moments()
        world.close()

    def reset(self):
        self.hvd.shutdown()
        self.hvd.init()
        return {}


def main():
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    is_rank = "MAYPOLE_RANK" in os.environ
    rank = Rank() if is_rank else None
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(os.environ["RECIPES_SOCKET"])
    with connection.makefile("rw") as stream:

        def say(value):
            stream.write(json.dumps(value) + "\n")
            stream.flush()

        say({"hello": rank.hvd.rank() if is_rank else -1})
        for line in stream:
            order = json.loads(line)
            if "reset" in order:
                say(rank.reset())
                continue
            recipe = Recipe.of(order["play"])
            Alone.nudged = order.get("nudged", False)
            say(rank.play(recipe, order["mutant"]) if is_rank else alone(
                recipe, order["members"], order["sizes"]))
    if is_rank:
        rank.hvd.shutdown()


if __name__ == "__main__":
    main()
