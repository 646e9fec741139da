"""Random collectives on several GPUs, in several process sets at once.

Each rank uses the GPU rank // RANKS_PER_GPU. All ranks submit the same
operations, each rank in an order of its own, and compare the results with NumPy's.

usage: several.py ROUNDS SEED [kill RANK ROUND | wait_at ROUND | epochs N | crowded RANK]

wait_at ROUND: waits before this round for the file `go`, and plays one round after it.
epochs N: plays the rounds N times, each time between init() and shutdown().
crowded RANK: this rank has GPU memory for some of a round's operations only; the
memory of all ranks is allocated before the first round.
ON_GPU=1 in the environment: the rounds begin when operations run on GPUs.
"""

import hashlib
import os
import random
import signal
import sys
import time

import numpy

import device
import planned
import rank
from maypole import _native
from maypole.common import basics, exceptions, process_sets

RANKS_PER_GPU = int(os.environ.get("RANKS_PER_GPU", "2"))
EAGER_BYTES = 64 << 10  # smaller operations run on the host
SEGMENT_BYTES = 2 << 20  # the smallest
ALIKE = (_native.ALLREDUCE, _native.BROADCAST, _native.ALLGATHER)  # results, on all ranks
ROOM_BYTES = 400 << 10  # of a crowded rank: about as much as the largest operation


def play_round(gpu, operations, me, own):
    mine = [p for p in operations if me in p.ranks]
    own.shuffle(mine)
    works = [p.start(gpu, me) for p in mine]
    arrays = [work.wait() for work in works]
    return {p.name: p.check(array, me) for p, array in zip(mine, arrays)}


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


def start_rounds(gpu):
    """The process sets; see ON_GPU above."""
    if os.environ.get("ON_GPU") == "1":
        device.reduce_until_on_gpu(gpu)
    return make_sets()


def main():
    rank.started()
    rounds, seed, rest = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
    crowded = int(rest[1]) if rest[:1] == ["crowded"] else None
    if rank.RANK == crowded:
        os.environ["MAYPOLE_GPU_MEMORY_BYTES"] = str(SEGMENT_BYTES)
    basics.init()
    me, on_gpu = basics.rank(), []
    gpu = device.Gpu(me // RANKS_PER_GPU)
    sets = start_rounds(gpu)
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
                sets = start_rounds(gpu)
            if rest[:1] == ["wait_at"] and round_ == int(rest[1]):
                rank.touch("rank.%d.waits" % me)
                rank.await_file("go")
            operations = [
                planned.random_operation(r, "%d.%d" % (round_, number), sets) for number in range(r.randrange(1, 12))
            ]
            if rest[:1] == ["kill"] and me == int(rest[1]) and round_ == int(rest[2]):
                for p in operations[::2]:
                    if me in p.ranks:
                        p.start(gpu, me)
                rank.touch("killed")
                os.kill(os.getpid(), signal.SIGKILL)
            results = play_round(gpu, operations, me, own)
            if rest[:1] == ["wait_at"] and round_ == int(rest[1]):
                rank.touch("rank.%d.goes_on" % me)
            compared += len(results)
            for p in operations:
                on_gpus = me in p.ranks and p.largest() > EAGER_BYTES
                large += on_gpus
                # The room for a gathered result is a guess.
                roomy += on_gpus and crowded not in p.ranks and p.kind not in planned.GATHERS
                if p.set == 0 and p.kind in ALIKE:
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
