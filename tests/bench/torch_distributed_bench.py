"""torch.distributed on Maypole beside Gloo, in the same processes.

    maypolerun -np 2 PYTHON tests/bench/torch_distributed_bench.py [--rounds 9] [--json FILE]

PYTHON: an interpreter with torch 2.1 or newer. Each rank computes on one thread. The rounds of the ways take turns:

  maypole   init_process_group("maypole")
  gloo      new_group(backend="gloo")
  library   maypole.torch.allreduce_, which the backend is built on (of all_reduce only)

A way's time is the median, over the rounds, of the slowest rank's time. The table has only ratios: on a busy machine,
and with more ranks than cores, they say more than times. Results are compared first.
"""

import argparse
import json
import os
import statistics
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import cases
import resnet50

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "examples"))

import pytorch_fashion_mnist as example  # noqa: E402

import maypole.torch as hvd  # noqa: E402
import maypole.torch.distributed  # noqa: E402, F401 - torch before 2.15 does not find the backend itself

SIZES = "4,1KiB,64KiB,1MiB,16MiB,64MiB"
_BYTES_PER_ROUND = 64 << 20
_MAX_CALLS = 50


class Gradients(torch.nn.Module):
    """ResNet-50's parameters, and next to no computation: a step is communication."""

    def __init__(self):
        super().__init__()
        self.all = torch.nn.ParameterList([torch.full(shape, 0.5) for _, shape in resnet50.parameters()])

    def forward(self, x):
        return sum(p.reshape(-1)[0] for p in self.all) * x.mean()


def slowest(seconds):
    """The longest of the ranks' times."""
    time_of = torch.tensor([seconds], dtype=torch.float64)
    dist.all_reduce(time_of, op=dist.ReduceOp.MAX)
    return time_of.item()


def measure(case, ways, calls, rounds):
    times = {name: [] for name in ways}
    for turn in range(rounds + 1):
        for name, function in ways.items():
            dist.barrier()
            start = time.perf_counter()
            for _ in range(calls):
                function()
            took = slowest((time.perf_counter() - start) / calls)
            if turn > 0:  # the first warms up
                times[name].append(took)
    return {"case": case, "rounds": rounds, "calls": calls, "load": os.getloadavg()[0],
            "us": {name: 1e6 * statistics.median(each) for name, each in times.items()}}


def all_reduce(size, gloo, rounds):
    count = size // cases.FLOAT_BYTES
    tensors = {name: torch.empty(count) for name in ("maypole", "gloo", "library")}
    ways = {
        "maypole": lambda: dist.all_reduce(tensors["maypole"]),
        "gloo": lambda: dist.all_reduce(tensors["gloo"], group=gloo),
        "library": lambda: hvd.allreduce_(tensors["library"], name=f"bench.{size}", op=hvd.Sum),
    }
    for name, function in ways.items():
        tensors[name].fill_(dist.get_rank() + 1.0)
        function()
        expected = sum(range(1, dist.get_world_size() + 1))
        assert torch.equal(tensors[name], torch.full((count,), float(expected))), name
        tensors[name].zero_()
    calls = max(1, min(_MAX_CALLS, _BYTES_PER_ROUND // size))
    return measure(f"all_reduce, {cases.bytes_text(size)}", ways, calls, rounds)


def step_of_ddp(case, make, x, loss_of, gloo, calls, rounds):
    ways, models = {}, []
    for name, group in (("maypole", None), ("gloo", gloo)):
        torch.manual_seed(0)
        model = DistributedDataParallel(make(), process_group=group, gradient_as_bucket_view=True)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

        def step(model=model, optimizer=optimizer):
            optimizer.zero_grad()
            loss_of(model(x)).backward()
            optimizer.step()

        step()
        ways[name] = step
        models.append(model)
    for ours, theirs in zip(*(model.parameters() for model in models)):
        torch.testing.assert_close(ours, theirs)
    return measure(case, ways, calls, rounds)


def table(rows):
    size = dist.get_world_size()
    print(f"torch {torch.__version__}, {size} ranks, {size // hvd.local_size()} nodes, {os.cpu_count()} cores")
    print("| case | gloo / maypole | maypole / library | load |")
    print("|---|---|---|---|")
    for row in rows:
        us = row["us"]
        beside = f"{us['maypole'] / us['library']:.2f}" if "library" in us else ""
        print(f"| {row['case']} | {us['gloo'] / us['maypole']:.2f} | {beside} | {row['load']:.0f} |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--sizes", default=SIZES, help="of all_reduce's tensors, for example 4,64KiB")
    parser.add_argument("--json", help="where rank 0 writes the figures")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("maypole")
    gloo = dist.new_group(backend="gloo")
    rows = [all_reduce(cases.parse_bytes(size), gloo, arguments.rounds) for size in arguments.sizes.split(",")]
    rows.append(step_of_ddp("DDP, ResNet-50's gradients", Gradients, torch.ones(4), lambda y: y, gloo, 1,
                            arguments.rounds))
    rows.append(step_of_ddp("DDP, a step of the Fashion-MNIST example", example.Net, torch.rand(64, 1, 28, 28),
                            lambda y: torch.nn.functional.cross_entropy(y, torch.arange(64) % 10), gloo, 3,
                            arguments.rounds))
    if dist.get_rank() == 0:
        table(rows)
        if arguments.json:
            with open(arguments.json, "w", encoding="utf-8") as f:
                json.dump({"torch": torch.__version__, "ranks": dist.get_world_size(), "rows": rows}, f)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
