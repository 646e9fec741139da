"""Training with DDP and FSDP2 on the backend maypole and on Gloo, in the same ranks: the same losses and weights.

With two ranks bit for bit (a sum of two is the same in either order), with more to rounding. Rank 0 prints 'equal: NAMES'.
Arguments are the names of programs; without one, all run.
"""

import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import maypole.torch.distributed  # noqa: F401 - torch before 2.15 does not find the backend itself

STEPS = 12


def model():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(32, 256), torch.nn.ReLU(), torch.nn.Linear(256, 64), torch.nn.ReLU(),
                               torch.nn.Linear(64, 10))


def train(wrapped, parameters, rank, optimizer=torch.optim.SGD, accumulate=1):
    optimizer = optimizer(parameters, lr=0.01)
    generator = torch.Generator().manual_seed(rank)
    losses = []
    for step in range(STEPS):
        x = torch.randn(16, 32, generator=generator)
        y = torch.randint(0, 10, (16,), generator=generator)
        if accumulate > 1 and step % accumulate:
            with wrapped.no_sync():
                torch.nn.functional.cross_entropy(wrapped(x), y).backward()
            continue
        loss = torch.nn.functional.cross_entropy(wrapped(x), y)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(wrapped.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach().clone())
    return losses


def ddp(group, rank, **options):
    accumulate = options.pop("accumulate", 1)
    wrapped = DistributedDataParallel(model(), process_group=group, **options)
    losses = train(wrapped, wrapped.parameters(), rank, accumulate=accumulate)
    return losses + [p.detach() for p in wrapped.parameters()]


def ddp_with_hook(group, rank):
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
    wrapped = DistributedDataParallel(model(), process_group=group)
    wrapped.register_comm_hook(group, fp16_compress_hook)
    losses = train(wrapped, wrapped.parameters(), rank)
    return losses + [p.detach() for p in wrapped.parameters()]


def fsdp2(group, rank):
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import fully_shard
    sharded = model()
    mesh = DeviceMesh.from_group(group, "cpu", mesh_dim_names=("dp",))
    for layer in sharded:
        if list(layer.parameters()):
            fully_shard(layer, mesh=mesh)
    fully_shard(sharded, mesh=mesh)
    # Adam divides by the gradients' size, so the rounding of a sum of many can become a step of its own.
    optimizer = torch.optim.Adam if dist.get_world_size() == 2 else torch.optim.SGD
    losses = train(sharded, sharded.parameters(), rank, optimizer)
    return losses + [p.full_tensor().detach() for p in sharded.parameters()]


def uneven(group, rank):
    """DDP's join context: rank r has r batches more."""
    wrapped = DistributedDataParallel(model(), process_group=group)
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.01)
    generator = torch.Generator().manual_seed(rank)
    with wrapped.join():
        for _ in range(3 + rank):
            optimizer.zero_grad()
            wrapped(torch.randn(4, 32, generator=generator)).sum().backward()
            optimizer.step()
    return [p.detach() for p in wrapped.parameters()]


PROGRAMS = {
    "DDP": ddp,
    "DDP, find_unused_parameters": lambda group, rank: ddp(group, rank, find_unused_parameters=True),
    "DDP, static_graph": lambda group, rank: ddp(group, rank, static_graph=True),
    "DDP, gradient_as_bucket_view": lambda group, rank: ddp(group, rank, gradient_as_bucket_view=True),
    "DDP, small buckets": lambda group, rank: ddp(group, rank, bucket_cap_mb=0.01),
    "DDP, no_sync": lambda group, rank: ddp(group, rank, accumulate=3),
    "DDP, fp16 hook": ddp_with_hook,
    "DDP, join": uneven,
    "FSDP2": fsdp2,
}


def main():
    dist.init_process_group("maypole")
    rank, size = dist.get_rank(), dist.get_world_size()
    gloo = dist.new_group(backend="gloo")
    names = sys.argv[1:] or list(PROGRAMS)
    for name in names:
        program = PROGRAMS[name]
        ours, theirs = program(dist.group.WORLD, rank), program(gloo, rank)
        assert len(ours) == len(theirs) > 1, name
        # fp16 sums of three have an error of 2^-11 at each step.
        limit = 1e-4 if "fp16" in name else 1e-6
        for a, b in zip(ours, theirs):
            if not (torch.equal(a, b) if size == 2 else torch.allclose(a, b, rtol=1e-5, atol=limit)):
                raise AssertionError(f"{name}: rank {rank} has {a}, with Gloo {b}")
    if rank == 0:
        print("equal: " + "; ".join(names), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
