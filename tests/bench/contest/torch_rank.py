"""torch.distributed with Gloo, as a contestant; see rank_loop.py.

Storages: private (tensor by tensor) and buckets (flat ones of 25 MiB, as
DistributedDataParallel keeps gradients with gradient_as_bucket_view).
"""

import math
import os

import torch
import torch.distributed as dist

from contest import rank_loop

_BUCKET_ELEMENTS = (25 << 20) // 4


class TorchReducer:

    storages = ("private", "buckets")

    def __init__(self):
        self.rank = int(os.environ["BENCH_RANK"])
        self.size = int(os.environ["BENCH_SIZE"])
        dist.init_process_group(
            "gloo", init_method="file://" + os.environ["BENCH_STORE"] + "/torch",
            rank=self.rank, world_size=self.size)

    def make(self, storage, shapes):
        if storage == "private":
            return [torch.empty(shape) for shape in shapes]
        total = sum(math.prod(shape) for shape in shapes)
        return [
            torch.empty(min(_BUCKET_ELEMENTS, total - at))
            for at in range(0, total, _BUCKET_ELEMENTS)
        ]

    def arena_operations(self):
        return 0

    def allreduce(self, names, tensors):
        if len(tensors) == 1:
            dist.all_reduce(tensors[0])
            return
        works = [dist.all_reduce(t, async_op=True) for t in reversed(tensors)]
        for work in works:
            work.wait()


if __name__ == "__main__":
    torch.set_num_threads(1)
    rank_loop.run(TorchReducer())
