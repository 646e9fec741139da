"""Operations of all kinds on CUDA tensors, compared with NumPy.

Rank r uses the GPU r // RANKS_PER_GPU. In each round all operations are
submitted one after the other, with the same names as in the other rounds; then
once more, all at once, each rank in an order of its own; then as one group.
Records, for each round, which of those submitted one by one ran on the GPUs.

usage: kinds.py ROUNDS SEED RANKS_PER_GPU
"""

import os
import random
import sys

import numpy

import device
import rank
from maypole import _native
from maypole.common import basics, exceptions, operations
from planned import AVERAGE, Planned


def plan(size):
    """The operations of a round: each has more than 64 KiB on some rank."""
    many, all_ = 9001, list(range(size))
    all_kinds = []
    for dtype in (numpy.float32, numpy.int16):
        kind = numpy.dtype(dtype).name
        even = [many] * size
        all_kinds += [
            Planned("broadcast." + kind, _native.BROADCAST, dtype, even, all_, root=size - 1),
            Planned("reducescatter." + kind, _native.REDUCESCATTER, dtype, even, all_),
            Planned("allgather." + kind, _native.ALLGATHER, dtype, even, all_),
            Planned("alltoall." + kind, _native.ALLTOALL, dtype, [[many // size + 1] * size] * size, all_),
            # The first rank has nearly all, the last one nothing.
            Planned("ragged_allgather." + kind, _native.ALLGATHER, dtype,
                    [many if of == 0 else 10 * (size - 1 - of) for of in all_], all_),
            # All send to the first rank, which sends nothing.
            Planned("ragged_alltoall." + kind, _native.ALLTOALL, dtype,
                    [[many if of > 0 and to == 0 else 0 for to in all_] for of in all_], all_),
        ]
    all_kinds.append(Planned("average", _native.REDUCESCATTER, numpy.float32, [many] * size, all_, op=AVERAGE))
    all_kinds.append(Planned("allreduce", _native.ALLREDUCE, numpy.float32, [many] * size, all_))
    return all_kinds


def main():
    rank.started()
    rounds, seed, ranks_per_gpu = (int(a) for a in sys.argv[1:4])
    basics.init()
    me, size = basics.rank(), basics.size()
    gpu = device.Gpu(me // ranks_per_gpu)
    by_ranks = os.environ.get("MAYPOLE_GPU_SITE") == "client"
    # The memory that is shared with the executor exists then.
    filler = None if by_ranks else gpu.shared_array(numpy.zeros(1, numpy.uint8))
    # Without NCCL a rank must know that all use the same GPU. With NCCL in the
    # ranks all must have told the executor of theirs.
    if by_ranks:
        device.reduce_until_on_gpu(gpu)
    else:
        device.allreduce(gpu.array(numpy.ones(30000, numpy.float32)), "first").wait()
    own = random.Random(seed * 1000 + me)
    on_gpu, error = [], None
    try:
        for _ in range(rounds):
            ran = {}
            for p in plan(size):
                before = basics.counter("gpu_operations")
                p.check(p.start(gpu, me).wait(), me)
                ran[p.name] = basics.counter("gpu_operations") - before
            on_gpu.append(ran)
            planned = plan(size)
            own.shuffle(planned)
            works = [p.start(gpu, me) for p in planned]
            for p, work in zip(planned, works):
                p.check(work.wait(), me)
            planned = plan(size)
            members = [p.start(gpu, me, begin=operations.prepare) for p in planned]
            operations.start_group(members)
            for p, work in zip(planned, members):
                p.check(work.wait(), me)
    except exceptions.HorovodInternalError as e:
        error = str(e)
    if filler is not None:
        filler.free_shared()
    gpu.synchronize()
    rank.record(error=error, on_gpu=on_gpu)
    basics.shutdown()


main()
