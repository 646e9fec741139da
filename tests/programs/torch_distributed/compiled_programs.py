"""Programs under torch.compile: functional collectives in a graph, DDP and FSDP2."""

import os

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from sharded import shard
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel
from training import DEVICE, model, sgd, train, weights

import maypole


def collectives(compiler):
    """One graph, without a break, of all functional collectives."""
    group, size = dist.group.WORLD, dist.get_world_size()

    def step(x):
        summed = functional.all_reduce(x, "sum", group) * 2
        rows = functional.all_gather_tensor(summed + x, 0, group)
        part = functional.reduce_scatter_tensor(rows.sin(), "sum", 0, group)
        swapped = functional.all_to_all_single(part, None, None, group)
        return functional.broadcast(swapped.cos(), 0, group) + functional.all_reduce(part, "avg", group)

    torch._dynamo.reset()
    compiled = torch.compile(step, fullgraph=True, backend=compiler)
    generator = torch.Generator().manual_seed(dist.get_rank())
    return [compiled(torch.randn(size, 8, generator=generator).to(DEVICE)) for _ in range(3)]


def ddp(compiler):
    torch._dynamo.reset()
    wrapped = torch.compile(DistributedDataParallel(model()), backend=compiler)
    losses = train(wrapped, sgd(wrapped.parameters()), dist.get_rank())
    # What the reducer calls runs as it is: of Maypole nothing is compiled.
    compiled = {code().co_filename + ":" + code().co_name for code in torch._dynamo.convert_frame.input_codes.seen if code() is not None}
    ours = [path for path in compiled if path.startswith(os.path.dirname(maypole.__file__))]
    assert compiled and not ours, ours
    return losses + weights(wrapped)


def fsdp2(compiler):
    torch._dynamo.reset()
    wrapped = shard(model(), init_device_mesh(DEVICE.type, (dist.get_world_size(),)))
    for layer in wrapped:
        layer.compile(backend=compiler)
    losses = train(wrapped, sgd(wrapped.parameters()), dist.get_rank())
    return losses + weights(wrapped)


PROGRAMS = {
    "torch.compile, functional collectives": lambda: collectives("inductor"),
    "torch.compile, functional collectives, aot_eager": lambda: collectives("aot_eager"),
    "torch.compile, DDP": lambda: ddp("inductor"),
    "torch.compile, DDP, aot_eager": lambda: ddp("aot_eager"),
    "torch.compile, FSDP2": lambda: fsdp2("inductor"),
}
