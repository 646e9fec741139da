"""Equal steps over several nodes, which the nodes come to execute without the coordinator.

usage: frozen.py steady|changing|endless

"steady" makes the steps of a file's phases: "settle" until the test goes on,
"count" for COUNTED steps, then a call that is in no step, then steps for which
one rank is late. "changing" changes the graph every 40 steps, with process sets,
gathers and joins in between. "endless" goes on until it fails.
"""

import random
import sys
import time

import torch

import maypole.torch as hvd
import rank

COUNTED = 200
TENSORS = 10


def submit(step, names, shape, process_set):
    order = list(names)
    random.Random(hvd.rank() * 1000 + step).shuffle(order)
    handles = {}
    for i in order:
        tensor = torch.full(shape, float(hvd.rank() + i + step))
        where = process_set if i % 3 == 2 else None
        if where is not None and not where.included():
            continue
        extra = {} if where is None else {"process_set": where}
        handles[i] = hvd.allreduce_async(tensor, op=hvd.Sum, name="t%d" % i, **extra)
    return handles


def check(step, i, result, members):
    want = float(sum(members) + len(members) * (i + step))
    if not torch.equal(result, torch.full(result.shape, want)):
        raise AssertionError("step %d: t%d is %s, not %s" % (step, i, result.flatten()[:3], want))


def one(step, names, shape=(1000,), process_set=None):
    handles = submit(step, names, shape, process_set)
    for i, handle in sorted(handles.items()):
        members = process_set.ranks if process_set is not None and i % 3 == 2 else range(hvd.size())
        check(step, i, hvd.synchronize(handle), members)


def steady():
    step = 0
    go_on = 1.0
    while go_on > 0:  # all ranks see the file in the same step
        one(step, range(TENSORS))
        step += 1
        mine = 0.0 if rank.is_there("settled") else 1.0
        go_on = float(hvd.allreduce(torch.tensor([mine]), op=hvd.Min, name="go_on"))
    rank.touch("settled.%d" % hvd.rank())
    rank.await_file("count")
    for step in range(40):
        one(step, range(TENSORS))
    rank.touch("warm.%d" % hvd.rank())
    rank.await_file("counting")
    for step in range(COUNTED):
        one(step, range(TENSORS))
    rank.touch("counted.%d" % hvd.rank())
    rank.await_file("other")
    hvd.broadcast(torch.ones(3), 0, name="other")
    rank.touch("other.%d" % hvd.rank())
    rank.await_file("late")
    for step in range(60):
        if step == 50 and hvd.rank() == hvd.size() - 1:
            time.sleep(0.5)
        one(step, range(TENSORS))
    rank.touch("late.%d" % hvd.rank())
    rank.await_file("end")


def changing():
    pairs = hvd.add_process_set([0, hvd.size() - 1])
    for phase in range(6):
        names = range(1 + 3 * phase % 8)
        shape = (1 + 700 * phase,)
        for step in range(40):
            one(step, names, shape, pairs if phase % 2 else None)
        if phase % 3 == 1:
            rows = hvd.allgather(torch.ones(hvd.rank() + 1), name="rows")
            if len(rows) != sum(range(hvd.size() + 1)):
                raise AssertionError("%d rows" % len(rows))
        if phase == 2:
            # The first rank has fewer steps.
            for step in range(20 if hvd.rank() == 0 else 30):
                hvd.allreduce(torch.ones(5), op=hvd.Sum, name="t0")
            hvd.join()
        if phase == 3:
            hvd.remove_process_set(pairs)
            pairs = hvd.add_process_set([1, hvd.size() - 1])


def endless():
    for step in range(10**9):
        try:
            one(step, range(TENSORS))
        except hvd.HorovodInternalError as e:
            rank.record(error=str(e), step=step)
            return
        if step == 200:
            rank.touch("running.%d" % hvd.rank())


def main():
    rank.started()
    hvd.init()
    {"steady": steady, "changing": changing, "endless": endless}[sys.argv[1]]()
    hvd.shutdown()


if __name__ == "__main__":
    main()
