"""Calls maypole.run() as its argument says, and prints the result as one line of JSON on stdout.

The functions that ranks run are here, in __main__, as in a user's script.
"""

import io
import json
import os
import signal
import sys
import threading
import time

import maypole
from maypole.common import basics


class Thing:
    """Of __main__, in the result."""

    def __init__(self, value):
        self.value = value


SCALE = 3


def add(start, factor=1):
    import where  # the module beside this script
    basics.init()
    print("rank", basics.rank(), "of", basics.size(), "on", basics.cross_rank())
    total = where.summed("sum", basics.rank() + start)
    return Thing([basics.rank(), basics.size(), basics.cross_size(), factor * SCALE, total])


def values(**where):
    things = maypole.run(add, (1,), {"factor": 2}, **where)
    return [thing.value for thing in things if isinstance(thing, Thing)]


def meet(do):
    """All ranks meet, then rank 1 alone calls do(), and the others wait for it."""
    import where
    basics.init()
    where.summed("before", 1)
    if basics.rank() == 1:
        return do()
    where.summed("after", 1)


def error_of(func, *args):
    try:
        return {"result": str(maypole.run(func, args, np=2))}
    except RuntimeError as error:
        return {"type": type(error).__name__, "rank": getattr(error, "rank", None), "text": str(error),
                "cause": repr(error.__cause__)}


def fail():
    raise KeyError("on purpose")


def errors():
    return {"raises": error_of(meet, fail),
            "exits": error_of(meet, lambda: sys.exit(3)),
            "returns what cannot be pickled": error_of(meet, lambda: (i for i in ())),
            "dies": error_of(meet, lambda: os.kill(os.getpid(), signal.SIGKILL)),
            "exits well": error_of(lambda: sys.exit(0)),
            "cannot start": error_of(len, *[])}


class Shown(io.StringIO):
    """As a notebook's: no descriptor is behind it."""


def notebook():
    """What ranks print appears in sys.stdout, whatever that is; a lambda and a closure."""
    out, err, shown, said = sys.stdout, sys.stderr, Shown(), Shown()
    sys.stdout, sys.stderr = shown, said
    try:
        offset = 5

        def rank_of(argument):
            print("grüße", argument + offset)
            print("oh", file=sys.stderr)
            return argument + offset

        results = maypole.run(rank_of, (1,), np=2) + maypole.run(lambda: os.environ.get("MAYPOLE_FUNCTION", "unset"))
    finally:
        sys.stdout, sys.stderr = out, err
    return {"results": results, "out": sorted(shown.getvalue().splitlines()), "err": sorted(said.getvalue().splitlines())}


def large():
    return [[len(result), result[:1].decode(), result.count(result[:1])]
            for result in maypole.run(lambda letter: letter * 5000000, (b"x" * 1,), np=2)]


def stand(directory):
    with open(os.path.join(directory, "rank.%d" % os.getpid()), "w"):
        pass
    time.sleep(1000)


def interrupted(directory):
    """Ctrl-C once both ranks run."""

    def press():
        while len(os.listdir(directory)) < 2:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=press, daemon=True).start()
    try:
        maypole.run(stand, (directory,), np=2)
    except KeyboardInterrupt:
        return "interrupted"
    return "not interrupted"


def killed(directory):
    maypole.run(stand, (directory,), np=2)


def elastic():
    def train():
        import maypole.torch as hvd
        import torch
        hvd.init()

        @hvd.elastic.run
        def steps(state):
            while state.step < 5:
                state.step += int(hvd.allreduce(torch.ones(1), name="step").item())
                state.commit()
            return state.step

        return hvd.rank(), steps(hvd.elastic.ObjectState(hvd.broadcast_object, hvd.rank, step=0))

    return maypole.run(train, min_np=2, max_np=2)


def horovod():
    import horovod

    def rank():
        import horovod.torch as hvd  # not there without the shim
        hvd.init()
        return hvd.rank(), hvd.size(), horovod.__version__

    return horovod.run(rank, num_proc=2, use_gloo=True, disable_cache=True)


def two_hosts(hosts):
    return values(np=None, hosts=hosts)


def one_node():
    return values(np=2)


if __name__ == "__main__":
    print("JSON" + json.dumps(globals()[sys.argv[1]](*sys.argv[2:])))
