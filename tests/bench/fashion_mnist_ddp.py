"""The Fashion-MNIST example on torch's DistributedDataParallel with Gloo.

The peer of examples/pytorch_fashion_mnist.py in the comparison: its data, its
model, its arguments, its steps, its output. Only the averaging of gradients
differs. RANK, WORLD_SIZE and BENCH_STORE (an empty directory) say where it runs.
"""

import os
import sys
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(
    os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "examples"))

import pytorch_fashion_mnist as example  # noqa: E402


def train(model, optimizer, loader):
    """One epoch; returns this rank's mean loss."""
    model.train()
    total = 0.0
    for images, labels in loader:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        total += loss.item()
    return total / len(loader)


def main():
    arguments = example.parse_arguments()
    dist.init_process_group(
        "gloo", init_method="file://" + os.environ["BENCH_STORE"] + "/ddp",
        rank=int(os.environ["RANK"]), world_size=int(os.environ["WORLD_SIZE"]))
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(arguments.seed)
    torch.set_num_threads(1)

    dataset = example.load(arguments.data_dir, "train", arguments.limit)
    sampler = DistributedSampler(dataset, num_replicas=size, rank=rank,
                                 seed=arguments.seed)
    loader = DataLoader(dataset, arguments.batch_size, sampler=sampler)
    model = DistributedDataParallel(example.Net(), gradient_as_bucket_view=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=arguments.lr * size,
                                momentum=0.9)
    dist.barrier()
    seconds = 0.0
    for epoch in range(1, arguments.epochs + 1):
        sampler.set_epoch(epoch)
        start = time.monotonic()
        loss = torch.tensor(train(model, optimizer, loader))
        dist.all_reduce(loss)
        seconds += time.monotonic() - start
        if rank == 0:
            print(f"epoch {epoch}: loss {loss.item() / size:.4f}", flush=True)
    if rank == 0:
        images = len(sampler) * size * arguments.epochs
        print(f"images per second: {images / seconds:.0f}", flush=True)


if __name__ == "__main__":
    main()
