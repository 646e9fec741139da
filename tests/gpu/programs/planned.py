"""Collectives on CUDA arrays whose results NumPy knows.

The numbers are small integers, so that every order of a reduction gives the same
bits.
"""

import numpy

import device
from maypole import _native
from maypole.common import operations

ROW = 5  # elements
AVERAGE, SUM, MIN, MAX, PRODUCT = 0, 1, 3, 4, 5
REDUCE = {
    AVERAGE: lambda inputs: sum(inputs) / len(inputs),
    SUM: sum,
    MIN: lambda inputs: numpy.minimum.reduce(inputs),
    MAX: lambda inputs: numpy.maximum.reduce(inputs),
    PRODUCT: lambda inputs: numpy.multiply.reduce(inputs),
}
REDUCTIONS = (_native.ALLREDUCE, _native.REDUCESCATTER)
GATHERS = (_native.ALLGATHER, _native.ALLTOALL)


class Planned:
    """One operation of a process set, as all its ranks know it.

    ranks: those of the set. rows: of each of them, in this order; of an alltoall
    the matrix of what each sends to each. root: a rank of the job.
    """

    def __init__(self, name, kind, dtype, rows, ranks, process_set=0, op=SUM, root=0, scales=(1.0, 1.0), salt=0):
        self.name, self.kind, self.dtype, self.rows, self.ranks = name, kind, numpy.dtype(dtype), rows, ranks
        self.set, self.op, self.root, self.salt = process_set, op, root, salt
        self.prescale, self.postscale = scales
        self.arrays = []

    def bytes(self, of):
        rows = sum(self.rows[of]) if self.kind == _native.ALLTOALL else self.rows[of]
        return rows * ROW * self.dtype.itemsize

    def largest(self):
        return max(self.bytes(of) for of in range(len(self.ranks)))

    def input(self, of):
        count = self.bytes(of) // self.dtype.itemsize
        numbers = (numpy.arange(count) * 7 + of * 3 + self.salt) % 4 + 1
        return numbers.astype(self.dtype).reshape(count // ROW, ROW)

    def expected(self, me):
        inputs, place = [self.input(of) for of in range(len(self.ranks))], self.ranks.index(me)
        if self.kind == _native.BROADCAST:
            return inputs[self.ranks.index(self.root)]
        if self.kind == _native.ALLGATHER:
            return numpy.concatenate(inputs)
        if self.kind == _native.ALLTOALL:
            parts = [numpy.split(x, numpy.cumsum(self.rows[of])[:-1]) for of, x in enumerate(inputs)]
            return numpy.concatenate([part[place] for part in parts])
        scaled = [x * self.dtype.type(self.prescale) for x in inputs]
        total = (REDUCE[self.op](scaled) * self.postscale).astype(self.dtype)
        return numpy.array_split(total, len(inputs))[place] if self.kind == _native.REDUCESCATTER else total

    def start(self, gpu, me, begin=operations.submit):
        """begin: see device.into()."""
        place = self.ranks.index(me)
        array = gpu.array(self.input(place))
        self.arrays = [array]
        if self.kind in GATHERS:
            splits = [int(n) for n in self.rows[place]] if self.kind == _native.ALLTOALL else None
            return device.gather(array, self.kind, self.name, splits=splits, process_set=self.set, begin=begin)
        target = array
        if self.kind != _native.ALLREDUCE:
            target = gpu.array(numpy.zeros_like(self.expected(me)))
            self.arrays.append(target)
        return device.into(array, target, self.kind, self.name, op=self.op, root=self.root, process_set=self.set,
                           prescale=self.prescale, postscale=self.postscale, begin=begin)

    def check(self, array, me):
        """Frees the arrays, and returns the bytes of the result, which are right."""
        result, expected = array.read(), self.expected(me)
        for a in {array, *self.arrays}:
            a.free()
        if result.tobytes() != expected.tobytes():
            wrong = numpy.flatnonzero(result != expected) if result.shape == expected.shape else []
            raise AssertionError("rank %d: %s (kind %d, op %d, of ranks %s): shape %s, expected %s; %d elements are "
                                 "wrong, first %s: %s, expected %s" % (me, self.name, self.kind, self.op, self.ranks,
                                 result.shape, expected.shape, len(wrong), wrong[:1], result.flat[wrong[:1]],
                                 expected.flat[wrong[:1]]))
        return result.tobytes()


def random_operation(r, name, sets):
    """One operation of a set of `sets`, which has pairs: id and ranks."""
    process_set, ranks = r.choice(sets)
    kind = r.choice([_native.ALLREDUCE] * 3 + [_native.BROADCAST, _native.REDUCESCATTER, *GATHERS])
    dtype = r.choice([numpy.float32, numpy.float64, numpy.int32])
    whole, n = dtype == numpy.int32, len(ranks)
    op = r.choice([SUM, MIN, MAX, PRODUCT] if whole else list(REDUCE)) if kind == _native.ALLREDUCE else SUM
    scales = (1.0, 1.0)
    if not whole and kind in REDUCTIONS:
        scales = (r.choice([1.0, 2.0]), r.choice([1.0, 0.5]))
    # One in four is below the eager limit.
    rows = r.randrange(1, 600) if r.randrange(4) == 0 else r.randrange(3400, 12000)
    each = [rows] * n
    if kind == _native.ALLGATHER:
        each = [r.randrange(2 * rows // n + 1) for _ in ranks]
    if kind == _native.ALLTOALL:
        each = [[r.randrange(2 * rows // n**2 + 1) for _ in ranks] for _ in ranks]
    return Planned(name, kind, dtype, each, ranks, process_set, op, r.choice(ranks), scales, r.randrange(1000))
