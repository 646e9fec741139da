"""Random allreduces on several GPUs, in several process sets at once.

Each rank uses the GPU rank // RANKS_PER_GPU. All ranks submit the same
operations, each rank in an order of its own. The numbers are small integers, so
that every order of the reduction gives the same bits, which are compared with
NumPy's.

usage: several.py ROUNDS SEED [kill RANK ROUND | wait_at ROUND | epochs N | crowded RANK]

wait_at ROUND: waits before this round for the file `go`, and makes one after it.
epochs N: plays the rounds N times, each time between init() and shutdown().
crowded RANK: this rank has GPU memory for some of a round's operations only; the
memory of all ranks is there before the first round.
"""

import hashlib
import os
import random
import signal
import sys
import time

import numpy

import device
import rank
from maypole.common import basics, exceptions, process_sets

RANKS_PER_GPU = int(os.environ.get("RANKS_PER_GPU", "2"))
EAGER_BYTES = 64 << 10  # smaller operations run on the host
SEGMENT_BYTES = 2 << 20  # the smallest
ROOM_BYTES = 400 << 10  # of a crowded rank: about as much as the largest operation
AVERAGE, SUM, MIN, MAX, PRODUCT = 0, 1, 3, 4, 5
REDUCE = {
    AVERAGE: lambda inputs: sum(inputs) / len(inputs),
    SUM: sum,
    MIN: lambda inputs: numpy.minimum.reduce(inputs),
    MAX: lambda inputs: numpy.maximum.reduce(inputs),
    PRODUCT: lambda inputs: numpy.multiply.reduce(inputs),
}


class Planned:

    def __init__(self, r, round_, number, sets):
        self.name = "%d.%d" % (round_, number)
        self.set, self.ranks = r.choice(sets)
        self.dtype = r.choice([numpy.float32, numpy.float64, numpy.int32])
        whole = self.dtype == numpy.int32
        self.op = r.choice([SUM, MIN, MAX, PRODUCT] if whole else list(REDUCE))
        self.prescale = 1.0 if whole else r.choice([1.0, 2.0])
        self.postscale = 1.0 if whole else r.choice([1.0, 0.5])
        # One in four is below the eager limit.
        self.elements = r.randrange(1, 3000) if r.randrange(4) == 0 else r.randrange(17000, 60000)
        self.salt = r.randrange(1000)
        self.large = self.elements * numpy.dtype(self.dtype).itemsize > EAGER_BYTES

    def input(self, of):
        return ((numpy.arange(self.elements) * 7 + of * 3 + self.salt) % 4 + 1).astype(self.dtype)

    def expected(self):
        inputs = [self.input(of) * self.dtype(self.prescale) for of in self.ranks]
        return (REDUCE[self.op](inputs) * self.postscale).astype(self.dtype)


def play_round(gpu, planned, me, own):
    mine = [p for p in planned if me in p.ranks]
    own.shuffle(mine)
    arrays = [gpu.array(p.input(me)) for p in mine]
    works = [
        device.allreduce(a, p.name, p.op, p.set, p.prescale, p.postscale) for a, p in zip(arrays, mine)
    ]
    for work in works:
        work.wait()
    results = {}
    for a, p in zip(arrays, mine):
        result = a.read()
        if result.tobytes() != p.expected().tobytes():
            wrong = numpy.flatnonzero(result != p.expected())
            raise AssertionError("rank %d: allreduce %s (op %d of ranks %s): %d of %d elements are wrong, first %d: %s, "
                                 "expected %s" % (me, p.name, p.op, p.ranks, len(wrong), p.elements, wrong[0],
                                                  result[wrong[0]], p.expected()[wrong[0]]))
        results[p.name] = result.tobytes()
        a.free()
    return results


def fill_memory(gpu, crowded):
    """Allocates in the memory that is shared with the executor, which exists then."""
    taken = SEGMENT_BYTES - ROOM_BYTES if crowded else 1
    return gpu.shared_array(numpy.zeros(taken, numpy.uint8))


def make_sets():
    size = basics.size()
    groups = [range(size // 2), range(size // 2, size), range(0, size, 2), range(1, size, 2)]
    sets = [(0, list(range(size)))] * 3
    for group in groups:
        sets.append((process_sets.add_process_set(list(group)).process_set_id, list(group)))
    return sets


def main():
    rank.started()
    rounds, seed, rest = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
    crowded = int(rest[1]) if rest[:1] == ["crowded"] else None
    if rank.RANK == crowded:
        os.environ["MAYPOLE_GPU_MEMORY_BYTES"] = str(SEGMENT_BYTES)
    basics.init()
    me, sets, on_gpu = basics.rank(), make_sets(), []
    gpu = device.Gpu(me // RANKS_PER_GPU)
    filler = fill_memory(gpu, me == crowded) if crowded is not None else None
    epochs = int(rest[1]) if rest[:1] == ["epochs"] else 1
    r, own = random.Random(seed), random.Random(seed * 1000 + me)
    digest = hashlib.sha256()
    error = None
    compared = large = roomy = 0
    try:
        for round_ in range(rounds * epochs):
            if round_ > 0 and round_ % rounds == 0:
                on_gpu.append(basics.counter("gpu_operations"))
                basics.shutdown()
                basics.init()
                assert basics.counter("gpu_operations") == 0
                sets = make_sets()
            if rest[:1] == ["wait_at"] and round_ == int(rest[1]):
                rank.touch("rank.%d.waits" % me)
                rank.await_file("go")
            planned = [Planned(r, round_, number, sets) for number in range(r.randrange(1, 12))]
            if rest[:1] == ["kill"] and me == int(rest[1]) and round_ == int(rest[2]):
                for p in planned[::2]:
                    if me in p.ranks:
                        device.allreduce(gpu.array(p.input(me)), p.name, p.op, p.set, p.prescale, p.postscale)
                rank.touch("killed")
                os.kill(os.getpid(), signal.SIGKILL)
            results = play_round(gpu, planned, me, own)
            if rest[:1] == ["wait_at"] and round_ == int(rest[1]):
                rank.touch("rank.%d.goes_on" % me)
            compared += len(results)
            for p in planned:
                large += p.large and me in p.ranks
                roomy += p.large and me in p.ranks and crowded not in p.ranks
                if p.set == 0:
                    digest.update(results[p.name])
    except exceptions.HorovodInternalError as e:
        error = (str(e), time.time())
    if filler is not None:
        filler.free_shared()
    gpu.synchronize()  # returns: the deaths of others have left no stuck stream
    rank.record(error=error, compared=compared, digest=digest.hexdigest(), large=large, roomy=roomy,
                on_gpu=basics.counter("gpu_operations"), on_gpu_before=on_gpu)
    basics.shutdown()


main()
