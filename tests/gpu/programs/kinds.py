"""Operations of all kinds on CUDA tensors, compared with NumPy.

Rank r uses the GPU r // RANKS_PER_GPU. In each round all operations are
submitted one after the other, with the same names as in the other rounds; then
once more, all at once, each rank in an order of its own. Records, for each
round, which of the first ones ran on the GPUs.

usage: kinds.py ROUNDS SEED RANKS_PER_GPU
"""

import random
import sys

import numpy

import device
import rank
from maypole import _native
from maypole.common import basics, exceptions

ROW = 5
SUM, AVERAGE = 1, 0


class Planned:

    def __init__(self, name, kind, dtype, rows, op=SUM, root=0):
        """rows: of each rank; for an alltoall the matrix of what each sends to each."""
        self.name, self.kind, self.dtype, self.rows, self.op, self.root = name, kind, dtype, rows, op, root

    def input(self, of):
        rows = sum(self.rows[of]) if self.kind == _native.ALLTOALL else self.rows[of]
        count = rows * ROW
        return ((numpy.arange(count) * 7 + of * 3) % 4 + 1).astype(self.dtype).reshape(rows, ROW)

    def expected(self, me, size):
        inputs = [self.input(of) for of in range(size)]
        if self.kind == _native.BROADCAST:
            return inputs[self.root]
        if self.kind == _native.ALLGATHER:
            return numpy.concatenate(inputs)
        if self.kind == _native.ALLTOALL:
            parts = [numpy.split(x, numpy.cumsum(self.rows[of])[:-1]) for of, x in enumerate(inputs)]
            return numpy.concatenate([part[me] for part in parts])
        total = sum(inputs) / size if self.op == AVERAGE else sum(inputs)
        total = total.astype(self.dtype)
        if self.kind == _native.REDUCESCATTER:
            return numpy.array_split(total, size)[me]
        return total

    def start(self, gpu, me, size):
        self.arrays = [gpu.array(self.input(me))]
        array = self.arrays[0]
        if self.kind == _native.ALLGATHER:
            return device.gather(array, self.kind, self.name)
        if self.kind == _native.ALLTOALL:
            return device.gather(array, self.kind, self.name, splits=[int(n) for n in self.rows[me]])
        self.arrays.append(gpu.array(numpy.zeros_like(self.expected(me, size))))
        return device.into(array, self.arrays[1], self.kind, self.name, op=self.op, root=self.root)

    def check(self, result, me, size):
        got, expected = result.read(), self.expected(me, size)
        for array in {result, *self.arrays}:
            array.free()
        if got.tobytes() != expected.tobytes():
            raise AssertionError("rank %d: %s: %s, expected %s" % (me, self.name, got, expected))


def plan(size):
    """The operations of a round: each has more than 64 KiB on some rank."""
    many, all_ = 9001, range(size)
    operations = []
    for dtype in (numpy.float32, numpy.int16):
        kind = numpy.dtype(dtype).name
        even = [many] * size
        operations += [
            Planned("broadcast." + kind, _native.BROADCAST, dtype, even, root=size - 1),
            Planned("reducescatter." + kind, _native.REDUCESCATTER, dtype, even),
            Planned("allgather." + kind, _native.ALLGATHER, dtype, even),
            Planned("alltoall." + kind, _native.ALLTOALL, dtype, [[many // size + 1] * size] * size),
            # The first rank has nearly all, the last one nothing.
            Planned("ragged_allgather." + kind, _native.ALLGATHER, dtype,
                    [many if of == 0 else 10 * (size - 1 - of) for of in all_]),
            # All send to the first rank, which sends nothing.
            Planned("ragged_alltoall." + kind, _native.ALLTOALL, dtype,
                    [[many if of > 0 and to == 0 else 0 for to in all_] for of in all_]),
        ]
    operations.append(Planned("average", _native.REDUCESCATTER, numpy.float32, [many] * size, op=AVERAGE))
    operations.append(Planned("allreduce", _native.ALLREDUCE, numpy.float32, [many] * size))
    return operations


def main():
    rank.started()
    rounds, seed, ranks_per_gpu = (int(a) for a in sys.argv[1:4])
    basics.init()
    me, size = basics.rank(), basics.size()
    gpu = device.Gpu(me // ranks_per_gpu)
    # The memory that is shared with the executor exists then.
    filler = gpu.shared_array(numpy.zeros(1, numpy.uint8))
    # Without NCCL a rank must know that all use the same GPU.
    device.allreduce(gpu.array(numpy.ones(30000, numpy.float32)), "first").wait()
    own = random.Random(seed * 1000 + me)
    on_gpu, error = [], None
    try:
        for _ in range(rounds):
            ran = {}
            for p in plan(size):
                before = basics.counter("gpu_operations")
                p.check(p.start(gpu, me, size).wait(), me, size)
                ran[p.name] = basics.counter("gpu_operations") - before
            on_gpu.append(ran)
            planned = plan(size)
            own.shuffle(planned)
            works = [p.start(gpu, me, size) for p in planned]
            for p, work in zip(planned, works):
                p.check(work.wait(), me, size)
    except exceptions.HorovodInternalError as e:
        error = str(e)
    filler.free_shared()
    gpu.synchronize()
    rank.record(error=error, on_gpu=on_gpu)
    basics.shutdown()


main()
