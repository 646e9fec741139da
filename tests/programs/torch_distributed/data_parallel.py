"""Programs in which each rank has the whole model: DistributedDataParallel, its hooks, and ZeroRedundancyOptimizer."""

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.algorithms.join import Join
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel
from training import DEVICE, FEATURES, batches, model, sgd, train, weights


def ddp(hook=None, state=None, accumulate=1, **options):
    """hook: for register_comm_hook, with state()."""
    wrapped = DistributedDataParallel(model(), **options)
    if hook is not None:
        wrapped.register_comm_hook(state() if state is not None else None, hook)
    losses = train(wrapped, sgd(wrapped.parameters()), dist.get_rank(), accumulate=accumulate)
    return losses + weights(wrapped)


class Branches(torch.nn.Module):
    """Each step uses one of two layers, ranks not the same one."""

    def __init__(self):
        super().__init__()
        self.trunk = model()
        self.branches = torch.nn.ModuleList(torch.nn.Linear(10, 10) for _ in range(2))

    def forward(self, x, which):
        return self.branches[which](self.trunk(x))


def unused_parameters():
    torch.manual_seed(0)
    wrapped = DistributedDataParallel(Branches().to(DEVICE), find_unused_parameters=True)
    optimizer = sgd(wrapped.parameters())
    losses = []
    for step, (x, y) in enumerate(batches(dist.get_rank())):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(wrapped(x, (step // 2 + dist.get_rank()) % 2), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return losses + weights(wrapped)


def uneven(of_join=None, **options):
    """DDP's join context: rank r has r batches more; of_join: the options of join()."""
    wrapped = DistributedDataParallel(model(), **options)
    optimizer = sgd(wrapped.parameters())
    with wrapped.join(**of_join or {}):
        for x, y in batches(dist.get_rank(), 3 + dist.get_rank()):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(wrapped(x), y).backward()
            optimizer.step()
    return weights(wrapped)


def batch_norm():
    """Before each forward pass, DDP broadcasts rank 0's running statistics."""
    torch.manual_seed(0)
    wrapped = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(FEATURES, 16), torch.nn.BatchNorm1d(16),
                                                          torch.nn.ReLU(), torch.nn.Linear(16, 10)).to(DEVICE))
    losses = train(wrapped, sgd(wrapped.parameters()), dist.get_rank())
    return losses + weights(wrapped) + [b.clone() for b in wrapped.buffers()]


def zero():
    """Each rank has the momenta of some parameters, and sends those that it has updated to the others."""
    wrapped = DistributedDataParallel(model())
    optimizer = ZeroRedundancyOptimizer(wrapped.parameters(), torch.optim.SGD, lr=0.01, momentum=0.9)
    losses = train(wrapped, optimizer, dist.get_rank())
    optimizer.consolidate_state_dict(to=0)
    state = optimizer.state_dict()["state"] if dist.get_rank() == 0 else {}
    return losses + weights(wrapped) + [s["momentum_buffer"] for s in state.values()]


def zero_joined():
    """The join context of a model and its optimizer together."""
    wrapped = DistributedDataParallel(model())
    optimizer = ZeroRedundancyOptimizer(wrapped.parameters(), torch.optim.SGD, lr=0.01)
    with Join([wrapped, optimizer]):
        for x, y in batches(dist.get_rank(), 3 + dist.get_rank()):
            torch.nn.functional.cross_entropy(wrapped(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
    return weights(wrapped)


def power_sgd():
    return powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=2, start_powerSGD_iter=4, min_compression_rate=1)


PROGRAMS = {
    "DDP": ddp,
    "DDP, find_unused_parameters": unused_parameters,
    "DDP, static_graph": lambda: ddp(static_graph=True),
    "DDP, gradient_as_bucket_view": lambda: ddp(gradient_as_bucket_view=True),
    "DDP, small buckets": lambda: ddp(bucket_cap_mb=0.01),
    "DDP, no_sync": lambda: ddp(accumulate=3),
    "DDP, BatchNorm": batch_norm,
    "DDP, fp16 hook": lambda: ddp(default_hooks.fp16_compress_hook),
    "DDP, bf16 hook": lambda: ddp(default_hooks.bf16_compress_hook),
    "DDP, PowerSGD hook": lambda: ddp(powerSGD_hook.powerSGD_hook, power_sgd),
    "DDP, join": uneven,
    "DDP, join, divided by the ranks that are left": lambda: uneven({"divide_by_initial_world_size": False}),
    "DDP, join, find_unused_parameters": lambda: uneven(find_unused_parameters=True),
    "ZeroRedundancyOptimizer": zero,
    "ZeroRedundancyOptimizer, join": zero_joined,
}
