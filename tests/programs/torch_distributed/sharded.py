"""Programs in which each rank has a part of the model: FSDP, HSDP, tensor parallelism, and checkpoints of these."""

import os

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as checkpoint
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision, ShardingStrategy, fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel, parallelize_module
from training import DEVICE, FEATURES, batches, model, sgd, train, weights

# Where "checkpoint, save" writes, and "checkpoint, load" reads what jobs of other sizes have written.
CHECKPOINTS = os.environ.get("CHECKPOINTS", "")


def adam_or_sgd(parameters):
    # Adam divides by the gradients' size, so the rounding of a sum of many can become a step of its own.
    return torch.optim.Adam(parameters, lr=0.01) if dist.get_world_size() == 2 else sgd(parameters)


def fsdp1(strategy=ShardingStrategy.FULL_SHARD, mesh=None, **options):
    wrapped = FullyShardedDataParallel(
        model(), sharding_strategy=strategy, device_mesh=mesh, auto_wrap_policy=ModuleWrapPolicy({torch.nn.Linear}),
        device_id=DEVICE, use_orig_params=True, **options)
    losses = train(wrapped, adam_or_sgd(wrapped.parameters()), dist.get_rank(), clip=False)
    with FullyShardedDataParallel.summon_full_params(wrapped):
        return losses + weights(wrapped)


def fsdp1_mixed_precision():
    half = MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    return fsdp1(mixed_precision=half)


def hsdp1():
    return fsdp1(ShardingStrategy.HYBRID_SHARD, mesh_of_two_dimensions("replicate", "shard"))


def mesh_of_two_dimensions(*names):
    return init_device_mesh(DEVICE.type, (2, dist.get_world_size() // 2), mesh_dim_names=names)


def shard(module, mesh, **options):
    for layer in module:
        if list(layer.parameters()):
            fully_shard(layer, mesh=mesh, **options)
    return fully_shard(module, mesh=mesh, **options)


def fsdp2(mesh=None, **options):
    mesh = mesh or init_device_mesh(DEVICE.type, (dist.get_world_size(),), mesh_dim_names=("shard",))
    wrapped = shard(model(), mesh, **options)
    losses = train(wrapped, adam_or_sgd(wrapped.parameters()), dist.get_rank())
    return losses + weights(wrapped)


class Block(torch.nn.Module):
    """A transformer's feed-forward block with a norm before it."""

    def __init__(self):
        super().__init__()
        self.norm = torch.nn.LayerNorm(FEATURES)
        self.up = torch.nn.Linear(FEATURES, 64)
        self.down = torch.nn.Linear(64, FEATURES)

    def forward(self, x):
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm(x))))


def tensor_parallel(mesh, sequence=False):
    """A block whose layers are cut by columns and by rows; sequence: what is between blocks, by rows of the batch."""
    torch.manual_seed(0)
    block = torch.nn.Sequential(Block()).to(DEVICE)
    plan = {"0.up": ColwiseParallel(), "0.down": RowwiseParallel()}
    if sequence:
        from torch.distributed.tensor import Shard
        from torch.distributed.tensor.parallel import PrepareModuleInput, PrepareModuleOutput
        plan = {"0": PrepareModuleInput(input_layouts=Shard(0), desired_input_layouts=Shard(0)),
                "0.norm": SequenceParallel(sequence_dim=0),
                "0.up": ColwiseParallel(input_layouts=Shard(0)),
                "0.down": RowwiseParallel(output_layouts=Shard(0), use_local_output=False),
                "": PrepareModuleOutput(output_layouts=Shard(0), desired_output_layouts=Shard(0))}
    return parallelize_module(block, mesh, plan)


def train_block(block, seed, part=None):
    """part: this rank's rows of each batch, as (number, of how many)."""
    optimizer = sgd(block.parameters())
    losses = []
    for x, _ in batches(seed):
        if part is not None:
            x = x.chunk(part[1])[part[0]]
        loss = block(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    return losses + weights(block)


def tensor_parallel_alone():
    mesh = init_device_mesh(DEVICE.type, (dist.get_world_size(),), mesh_dim_names=("tp",))
    return train_block(tensor_parallel(mesh), 0)


def sequence_parallel():
    mesh = init_device_mesh(DEVICE.type, (dist.get_world_size(),), mesh_dim_names=("tp",))
    return train_block(tensor_parallel(mesh, sequence=True), 0, (dist.get_rank(), dist.get_world_size()))


def tensor_parallel_and_fsdp2():
    mesh = mesh_of_two_dimensions("dp", "tp")
    block = fully_shard(tensor_parallel(mesh["tp"]), mesh=mesh["dp"])
    return train_block(block, mesh["dp"].get_local_rank())


def state_of(wrapped, optimizer):
    weights_state, optimizer_state = get_state_dict(wrapped, optimizer)
    return {"model": weights_state, "optimizer": optimizer_state}


def sharded_model():
    wrapped = shard(model(), init_device_mesh(DEVICE.type, (dist.get_world_size(),)))
    return wrapped, torch.optim.SGD(wrapped.parameters(), lr=0.01, momentum=0.9)


def save():
    """Trains, and writes a checkpoint; each rank writes its part."""
    wrapped, optimizer = sharded_model()
    losses = train(wrapped, optimizer, 0)
    checkpoint.save(state_of(wrapped, optimizer), checkpoint_id=os.path.join(CHECKPOINTS, dist.get_backend()))
    whole = weights(wrapped)
    if dist.get_rank() == 0:
        torch.save(whole, os.path.join(CHECKPOINTS, dist.get_backend() + ".weights"))
    return losses + whole


def load():
    """Reads the checkpoint of a job of any size, and trains on."""
    wrapped, optimizer = sharded_model()
    state = state_of(wrapped, optimizer)
    checkpoint.load(state, checkpoint_id=os.path.join(CHECKPOINTS, dist.get_backend()))
    set_state_dict(wrapped, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    loaded = weights(wrapped)
    saved = torch.load(os.path.join(CHECKPOINTS, dist.get_backend() + ".weights"))
    assert all(torch.equal(a, b) for a, b in zip(loaded, saved)) and len(loaded) == len(saved)
    return loaded + train(wrapped, optimizer, 1) + weights(wrapped)


PROGRAMS = {
    "FSDP1": fsdp1,
    "FSDP1, SHARD_GRAD_OP": lambda: fsdp1(ShardingStrategy.SHARD_GRAD_OP),
    "FSDP1, HYBRID_SHARD": hsdp1,
    "FSDP1, mixed precision": fsdp1_mixed_precision,
    "FSDP2": fsdp2,
    "FSDP2, reshard_after_forward=False": lambda: fsdp2(reshard_after_forward=False),
    "HSDP": lambda: fsdp2(mesh_of_two_dimensions("replicate", "shard")),
    "tensor parallel": tensor_parallel_alone,
    "sequence parallel": sequence_parallel,
    "tensor parallel and FSDP2": tensor_parallel_and_fsdp2,
}
# They need CHECKPOINTS.
CHECKPOINT_PROGRAMS = {"checkpoint, save": save, "checkpoint, load": load}
