"""The rank program of the tests of mpirun, torchrun and plain python3.

place_program.py MODE: `sum` works and ends; `twice` does so in two epochs;
`notebook` calls init() again and again; `hold` stays until it is killed or told
to end; `early`: node 0 ends before the other; `following` starts when the service
ends; `restart` exits once; `fail` reports what init() has raised. Each reports its
results in $MAYPOLE_TEST_DIR/rank.<rank>.json.
"""

import glob
import json
import os
import sys
import time

import torch

import maypole.torch as hvd

DIR = os.environ["MAYPOLE_TEST_DIR"]


def tell(name, **values):
    path = os.path.join(DIR, name)
    with open(path + ".new", "w") as f:
        json.dump(values, f)
    os.rename(path + ".new", path)


def work():
    """The sums of a small and a large tensor: right only if all ranks are in."""
    small = hvd.allreduce(torch.tensor([hvd.rank() + 1.0]), op=hvd.Sum, name="small")
    large = hvd.allreduce(torch.full((300001,), float(hvd.rank())), op=hvd.Sum, name="large")
    ranks = hvd.allgather(torch.tensor([hvd.rank()]), name="ranks")
    return [small.item(), large.min().item(), large.max().item(), ranks.tolist()]


def place():
    return dict(rank=hvd.rank(), size=hvd.size(), local_rank=hvd.local_rank(), local_size=hvd.local_size(),
                cross_rank=hvd.cross_rank(), cross_size=hvd.cross_size(), homogeneous=hvd.is_homogeneous(),
                pid=os.getpid(), python=sys.version_info[:2])


def join():
    hvd.init()
    return dict(place(), sums=work())


def twice():
    first = join()
    hvd.shutdown()
    second = join()
    tell("rank.%d.json" % first["rank"], first=first, second=second)


def notebook():
    began = time.monotonic()
    hvd.init()
    first = time.monotonic() - began
    hvd.init()
    again = join()
    if os.environ.get("FORK"):
        child = os.fork()
        if child == 0:
            # A data loader: outlives the rank, and is no part of the job.
            os.closerange(0, 3)
            time.sleep(60)
            os._exit(0)
        again["child"] = child
    tell("rank.%d.json" % again["rank"], seconds=first, **again)


def hold():
    seen = join()
    tell("rank.%d.json" % seen["rank"], **seen)
    try:
        while not os.path.exists(os.path.join(DIR, "go")):
            hvd.allreduce(torch.ones(10), name="step")
            time.sleep(0.05)
    except hvd.HorovodInternalError as error:
        tell("rank.%d.error.json" % seen["rank"], text=str(error), after=time.time())
        raise


def early():
    """The ranks of node 0 end; the others continue without them."""
    seen = join()
    others = hvd.add_process_set([2, 3])
    if seen["cross_rank"] == 1:
        for _ in range(100):
            hvd.allreduce(torch.ones(100000), name="step", process_set=others)
            time.sleep(0.05)
    hvd.shutdown()
    tell("rank.%d.json" % seen["rank"], ended=time.time(), **seen)


def following():
    """Joins while the service of the previous job is ending."""
    tell("waits.%s.json" % os.environ["MAYPOLE_RANK"])
    while glob.glob(os.path.join(os.environ["MAYPOLE_RUNTIME_DIR"], "*", "service.sock")):
        time.sleep(0.0005)
    seen = join()
    tell("rank.%d.json" % seen["rank"], **seen)


def restart():
    seen = join()
    if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        sys.exit(3)
    tell("rank.%d.json" % seen["rank"], **seen)


def fail():
    rank = os.environ.get("OMPI_COMM_WORLD_RANK") or os.environ.get("RANK") or os.environ.get("MAYPOLE_RANK", "0")
    try:
        hvd.init()
    except (hvd.HorovodInternalError, ValueError) as error:
        tell("rank.%s.json" % rank, text=str(error))
        return
    raise AssertionError("init() went well")


def main():
    mode = sys.argv[1]
    if mode == "sum":
        seen = join()
        tell("rank.%d.json" % seen["rank"], **seen)
    else:
        {"twice": twice, "notebook": notebook, "hold": hold, "early": early, "following": following,
         "restart": restart, "fail": fail}[mode]()


if __name__ == "__main__":
    main()
