"""What a commit, a restore and a broadcast of a training's state cost: milliseconds for a GB (10^9 bytes).

    maypolerun -np 2 --min-np 2 python3 tests/bench/state_bench.py              # one node
    maypolerun -np 2 --min-np 2 -H localhost:1,OTHER:1 python3 tests/bench/state_bench.py

Prints one JSON line: the medians of each kind, over rounds in which the kinds take turns, and the load of the machine.
"wall" is elapsed time; "cpu" is the CPU time of the ranks (of both for a broadcast; without that of executors), which
says more on a machine that is not idle.

    memcpy      one thread copies between two memories that it has used before: the limit
    commit      TorchState(keep=True).save() on rank 0, which leaves the state with its executor
    private     the same without keep: a copy in the process
    restore     rank 1 gets the memory from its executor and copies it to its model, as a new process does
    broadcast   broadcast_parameters() from rank 0, until rank 1 has them

On two nodes rank 1's executor has the state that rank 1 has committed itself. Settings: STATE_MB (256), STATE_ROUNDS
(15).
"""

import ctypes
import json
import os
import statistics
import time

import torch

import maypole.torch as hvd

MB = int(os.environ.get("STATE_MB", "256"))
ROUNDS = int(os.environ.get("STATE_ROUNDS", "15"))
TENSORS = 16


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        each = MB * 10**6 // 4 // TENSORS
        self.parts = torch.nn.ParameterList([torch.nn.Parameter(torch.rand(each)) for _ in range(TENSORS)])


def measured(function):
    """(elapsed, CPU) seconds"""
    begin = time.perf_counter(), time.process_time()
    function()
    return time.perf_counter() - begin[0], time.process_time() - begin[1]


def main():
    torch.set_num_threads(1)
    hvd.init()
    kept = hvd.elastic.TorchState(Model(), keep=True)
    private = hvd.elastic.TorchState(Model(), keep=False)
    kept.sync()
    private.sync()
    size = sum(t.numel() * t.element_size() for t in kept.model.state_dict().values())
    source, target = bytearray(size), bytearray(size)
    addresses = [ctypes.addressof((ctypes.c_char * size).from_buffer(b)) for b in (target, source)]
    weights = kept.model.state_dict()
    kinds = {
        "memcpy": (0, lambda: ctypes.memmove(*addresses, size)),
        "commit": (0, kept.save),
        "private": (0, private.save),
        "restore": (1, kept._keeper.load_newest),
    }
    took = {kind: [] for kind in [*kinds, "broadcast"]}
    for _ in range(ROUNDS):
        for kind, (rank, function) in kinds.items():
            hvd.barrier()  # the other rank rests
            if hvd.rank() == rank:
                took[kind].append(measured(function))
        if hvd.cross_size() > 1 and hvd.rank() == 1:
            kept.save()
        hvd.barrier()
        took["broadcast"].append(measured(lambda: hvd.broadcast_parameters(weights, 0)))
    zero, one = hvd.allgather_object(took)
    both = {kind: zero[kind] or one[kind] for kind in kinds}
    # The last to have it counts, and the work of both.
    both["broadcast"] = [(max(a, b), c + d) for (a, c), (b, d) in zip(zero["broadcast"], one["broadcast"])]
    if hvd.rank() == 0:
        report = {"bytes": size, "rounds": ROUNDS, "nodes": hvd.cross_size(),
                  "load": [round(x, 1) for x in os.getloadavg()]}
        for column, name in enumerate(("wall", "cpu")):
            report[name] = {kind: round(statistics.median(t[column] for t in times) * 1e12 / size, 1)
                            for kind, times in both.items()}
        print(json.dumps(report))
    hvd.shutdown()


main()
