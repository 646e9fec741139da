"""Trains a small network on $DAY_DEVICE; records the losses, the parameters' bits and what ran on the GPU.

usage: torch_train.py STEPS [buckets]

The data are the same on every device; the larger gradients are beyond the eager limit.
"""

import hashlib
import os
import sys
import time

import torch

import maypole.torch as hvd
import rank
from maypole.common import basics

FEATURES, HIDDEN, BATCH = 64, 384, 64


def main():
    rank.started()
    steps, buckets = int(sys.argv[1]), "buckets" in sys.argv[2:]
    device = torch.device(os.environ["DAY_DEVICE"])
    hvd.init()
    torch.set_num_threads(1)
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(FEATURES, HIDDEN), torch.nn.Tanh(), torch.nn.Linear(HIDDEN, HIDDEN),
                                torch.nn.Tanh(), torch.nn.Linear(HIDDEN, 1)).to(device)
    truth = torch.randn(FEATURES, 1) / FEATURES**0.5
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9),
                                         named_parameters=model.named_parameters(), gradient_as_bucket_view=buckets)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    own = torch.Generator().manual_seed(100 + hvd.rank())
    losses, began = [], time.perf_counter()
    for _ in range(steps):
        x = torch.randn(BATCH, FEATURES, generator=own)
        y = torch.tanh(x @ truth)
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x.to(device)), y.to(device))
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    seconds = time.perf_counter() - began
    mean = hvd.allreduce(torch.tensor(losses, dtype=torch.float64), name="losses").tolist()
    bits = b"".join(p.detach().cpu().numpy().tobytes() for p in model.parameters())
    rank.record(losses=mean, digest=hashlib.sha256(bits).hexdigest(), on_gpu=basics.counter("gpu_operations"),
                ms_per_step=1000 * seconds / steps, fallbacks=hvd.arena_statistics()["fallbacks"])
    hvd.shutdown()


main()
