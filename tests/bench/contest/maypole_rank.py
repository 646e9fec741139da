"""maypole.torch, as a contestant; see rank_loop.py."""

import torch

import maypole.torch as hvd
from contest import rank_loop
from maypole.common import basics


class MaypoleReducer:

    storages = ("private", "arena")

    def __init__(self):
        hvd.init()
        self.rank = hvd.rank()
        self.size = hvd.size()

    def make(self, storage, shapes):
        empty = hvd.empty if storage == "arena" else torch.empty
        return [empty(shape) for shape in shapes]

    def arena_operations(self):
        return basics.counter("arena_operations") or 0

    def allreduce(self, names, tensors):
        if len(tensors) == 1:
            hvd.allreduce_(tensors[0], name=names[0], op=hvd.Sum)
            return
        handles = [
            hvd.allreduce_async_(tensor, name=name, op=hvd.Sum)
            for name, tensor in zip(reversed(names), reversed(tensors))
        ]
        for handle in handles:
            hvd.synchronize(handle)


if __name__ == "__main__":
    torch.set_num_threads(1)
    rank_loop.run(MaypoleReducer())
