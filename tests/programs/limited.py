"""A rank under a limit of address space: how much of an arena it has, and that
the arena works."""

import torch

import maypole.torch as hvd
import rank
from maypole import _native
from maypole.common import basics


def main():
    torch.set_num_threads(1)
    hvd.init()
    limit = basics.counter("arena_limit")
    tensor = hvd.empty(1 << 20)
    tensor.fill_(float(hvd.rank() + 1))
    hvd.allreduce_(tensor, name="x", op=hvd.Sum)
    text = ""
    try:
        _native.library().allocate(limit + 1)
    except _native.StatusError as error:
        text = str(error)
    rank.record(limit=limit, sum=float(tensor[-1]), text=text,
                in_arena=basics.counter("arena_operations"))
    hvd.shutdown()


if __name__ == "__main__":
    main()
