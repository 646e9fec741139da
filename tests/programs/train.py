"""Trains a small network on given global batches; records losses and weights.

usage: train.py STEPS
Every rank takes its part of each global batch of 48, so any number of ranks that
divides 48 trains on the same data.
"""

import hashlib
import sys

import torch
from torch import nn

import maypole.torch as hvd
import rank

BATCH = 48


def network():
    torch.manual_seed(7)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.BatchNorm2d(4).eval(), nn.Flatten(), nn.Linear(4 * 14 * 14, 32),
        nn.ReLU(), nn.Linear(32, 10))


def batch(step):
    """Images with a pattern by class, so that there is something to learn."""
    g = torch.Generator().manual_seed(1000 + step)
    labels = torch.randint(0, 10, (BATCH,), generator=g)
    images = torch.randn(BATCH, 1, 28, 28, generator=g) * 0.5
    for i, label in enumerate(labels):
        images[i, 0, :, 2 * int(label):2 * int(label) + 3] += 1.0
    return images, labels


def main():
    torch.set_num_threads(1)
    rank.started()
    hvd.init()
    model = network()
    if hvd.rank() > 0:  # the broadcast must undo this
        with torch.no_grad():
            for p in model.parameters():
                p.add_(float(hvd.rank()))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    optimizer = hvd.DistributedOptimizer(
        optimizer, named_parameters=model.named_parameters())
    share = BATCH // hvd.size()
    mine = slice(hvd.rank() * share, (hvd.rank() + 1) * share)
    losses = []
    for step in range(int(sys.argv[1])):
        images, labels = batch(step)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images[mine]), labels[mine])
        loss.backward()
        optimizer.step()
        losses.append(float(hvd.allreduce(loss.detach(), name="loss")))
    digest = hashlib.sha256()
    for p in model.parameters():
        digest.update(p.detach().numpy().tobytes())
    payload = sum(p.numel() * 4 for p in model.parameters())
    rank.record(losses=losses, digest=digest.hexdigest(), payload=payload)
    hvd.shutdown()


if __name__ == "__main__":
    main()
