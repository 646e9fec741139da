"""Times allreduces of float32 tensors of $DAY_DEVICE by several libraries, in turns; records the times of each.

    torch_bench.py --libraries=staged,arena,gloo --sizes=4KiB,1MiB --seconds=20 [--resnet]

staged: maypole.torch on torch's own tensors; arena: on those of maypole.torch.empty(); gloo: torch.distributed's;
group: the same by the backend maypole; buckets: gloo on flat tensors of 25 MiB, as DistributedDataParallel has them
(ResNet-50 only); mpi: mpi4py on tensors in host memory, in a program that mpirun has started.

A round: each library, in an order that changes, reduces in place the tensors of the case, all of which are submitted
before the first wait. A time is that of the slowest rank, from the end of a barrier until the device is done. The first
and the last round of each library are checked, element by element. --seconds: for all cases together.
"""

import argparse
import json
import math
import os
import time

import torch

import cases
import pattern
import report

DEVICE = torch.device(os.environ.get("DAY_DEVICE", "cpu"))
BUCKET_ELEMENTS = (25 << 20) // 4
MIN_ROUNDS, MAX_ROUNDS = 3, 300
COPY_BYTES = 256 << 20


def synchronize():
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()


class Staged:

    def make(self, shapes):
        return [torch.empty(shape, device=DEVICE) for shape in shapes]

    def reduce(self, names, tensors):
        pairs = list(zip(names, tensors))[::-1]  # as a backward pass
        for handle in [hvd.allreduce_async_(tensor, name=name, op=hvd.Sum) for name, tensor in pairs]:
            hvd.synchronize(handle)


class Arena(Staged):

    def make(self, shapes):
        return [hvd.empty(shape, device=DEVICE) for shape in shapes]


class Gloo:

    group = None

    def make(self, shapes):
        return [torch.empty(shape, device=DEVICE) for shape in shapes]

    def reduce(self, names, tensors):
        for work in [torch.distributed.all_reduce(t, group=self.group, async_op=True) for t in reversed(tensors)]:
            work.wait()


class Group(Gloo):

    group = None  # the default one


class Buckets(Gloo):

    def make(self, shapes):
        total = sum(math.prod(shape) for shape in shapes)
        return [torch.empty(min(BUCKET_ELEMENTS, total - at), device=DEVICE) for at in range(0, total, BUCKET_ELEMENTS)]


class Mpi:

    def make(self, shapes):
        return [torch.empty(shape) for shape in shapes]

    def reduce(self, names, tensors):
        for tensor in reversed(tensors):
            MPI.COMM_WORLD.Allreduce(MPI.IN_PLACE, tensor.numpy(), op=MPI.SUM)


LIBRARIES = {"staged": Staged, "arena": Arena, "gloo": Gloo, "group": Group, "buckets": Buckets, "mpi": Mpi}


class Maypoles:
    """How the ranks agree, beside what is measured."""

    def __init__(self):
        self.rank, self.size = hvd.rank(), hvd.size()

    def barrier(self):
        hvd.barrier()

    def gather(self, numbers):
        return hvd.allgather(torch.tensor(numbers, dtype=torch.float64), name="day.gather").tolist()


class Mpis:

    def __init__(self):
        self.rank, self.size = MPI.COMM_WORLD.Get_rank(), MPI.COMM_WORLD.Get_size()

    def barrier(self):
        MPI.COMM_WORLD.Barrier()

    def gather(self, numbers):
        return [number for part in MPI.COMM_WORLD.allgather(list(numbers)) for number in part]


class Bench:

    def __init__(self, ranks, libraries):
        self.ranks, self.libraries = ranks, libraries
        self.pattern = pattern.Pattern(ranks.size)
        self.turn = 0
        self.on_gpu = {name: 0 for name in libraries}

    def run(self, case, seconds):
        names = [name for name, _ in case.tensors]
        tensors = {name: library.make([shape for _, shape in case.tensors]) for name, library in self.libraries.items()}
        inputs = {name: [torch.empty(tensor.shape) for tensor in made] for name, made in tensors.items()}
        times = {name: [] for name in self.libraries}
        deadline = time.monotonic() + seconds
        going_on, turn = True, -1  # the first round warms up
        while going_on:
            order = list(self.libraries)[turn % len(self.libraries):] + list(self.libraries)[:turn % len(self.libraries)]
            last = turn + 1 >= MAX_ROUNDS
            for name in order:
                checks = turn < 0 or last
                took = self._turn(name, names, tensors[name], inputs[name], checks)
                if turn >= 0:
                    times[name].append(took)
            turn += 1
            late = float(time.monotonic() > deadline and turn >= MIN_ROUNDS)
            going_on = not last and max(self.ranks.gather([late])) == 0
        return {
            name: self._summary(case, report.slowest_rank(self.ranks.gather(mine), self.ranks.size))
            for name, mine in times.items()
        }

    def _turn(self, name, names, tensors, inputs, checks):
        self.turn += 1
        if checks:
            for number, (tensor, values) in enumerate(zip(tensors, inputs)):
                self.pattern.fill(self.ranks.rank, self.turn, number, values)
                tensor.copy_(values)
        else:
            for tensor in tensors:
                tensor.fill_(1.0)
        synchronize()
        before = on_gpu()
        self.ranks.barrier()
        began = time.perf_counter()
        self.libraries[name].reduce(["%s.%s" % (name, n) for n in names[:len(tensors)]], tensors)
        synchronize()
        took = (time.perf_counter() - began) * 1e6
        self.on_gpu[name] += on_gpu() - before
        for number, tensor in enumerate(tensors):
            wrong = self.pattern.check(self.turn, number, tensor.cpu()) if checks else None
            if wrong is not None:
                raise AssertionError("%s: tensor %d, element %d is %r, expected %r" % (name, number, *wrong))
            if not checks and float(tensor.view(-1)[-1]) != self.ranks.size:
                raise AssertionError("%s: the last element of tensor %d is wrong" % (name, number))
        return took

    @staticmethod
    def _summary(case, times):
        median = report.percentile(times, 50)
        return {"bytes": case.bytes, "rounds": len(times), "median_us": round(median, 1), "best_us": round(min(times), 1),
                "p90_us": round(report.percentile(times, 90), 1)}


def on_gpu():
    return 0 if hvd is None else basics.counter("gpu_operations")


def copy_rate():
    """Bytes a second, read and written, of copies within the device; of the best of ten."""
    size = COPY_BYTES if DEVICE.type == "cuda" else COPY_BYTES >> 3
    a, b = (torch.zeros(size, dtype=torch.uint8, device=DEVICE) for _ in range(2))
    best = 0.0
    for _ in range(10):
        synchronize()
        began = time.perf_counter()
        a.copy_(b)
        synchronize()
        best = max(best, 2 * size / (time.perf_counter() - began))
    return best


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--libraries", required=True)
    parser.add_argument("--sizes", required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--resnet", action="store_true")
    return parser.parse_args()


def main():
    global hvd, basics, MPI
    options = parse()
    wanted = options.libraries.split(",")
    torch.set_num_threads(1)
    if "mpi" in wanted:
        from mpi4py import MPI
        hvd, ranks = None, Mpis()
    else:
        import maypole.torch as hvd
        from maypole.common import basics
        hvd.init()
        ranks = Maypoles()
    if {"gloo", "buckets", "group"} & set(wanted):
        # Gloo looks the host's name up otherwise, which not every machine can.
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
        if "group" in wanted:
            import maypole.torch.distributed  # noqa: F401 - torch before 2.15 does not find the backend itself
        torch.distributed.init_process_group("maypole" if "group" in wanted else "gloo", rank=ranks.rank, world_size=ranks.size,
                                             init_method="file://%s/gloo" % os.environ["MAYPOLE_TEST_DIR"])
        if "group" in wanted:
            Gloo.group = torch.distributed.new_group(backend="gloo")
    found = cases.make_cases(options.sizes, resnet=options.resnet)
    rows, counts = {}, {}
    for case in found:
        names = [name for name in wanted if name != "buckets" or len(case.tensors) > 1]
        bench = Bench(ranks, {name: LIBRARIES[name]() for name in names})
        rows[case.label] = bench.run(case, options.seconds / len(found))
        counts[case.label] = bench.on_gpu
    if ranks.rank == 0:
        record = {"rows": rows, "on_gpu": counts, "copy_bytes_per_second": copy_rate(), "ranks": ranks.size,
                  "fallbacks": hvd.arena_statistics()["fallbacks"] if hvd else {}}
        with open(os.path.join(os.environ["MAYPOLE_TEST_DIR"], "bench.json"), "w", encoding="utf-8") as f:
            json.dump(record, f)
    ranks.barrier()
    if hvd is not None:
        hvd.shutdown()


main()
