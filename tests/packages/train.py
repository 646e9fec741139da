"""Trains a small network; rank 0 prints losses, and which files it and the daemons have mapped."""

import glob
import os
import sys

import torch

import maypole.torch as hvd


def mapped():
    """Paths of all files with Maypole's code that this user's processes of the job have mapped."""
    paths = set()
    for maps in glob.glob("/proc/[0-9]*/maps"):
        try:
            program = os.path.basename(os.readlink(os.path.dirname(maps) + "/exe"))
            with open(maps) as f:
                files = {line.split(None, 5)[5].strip() for line in f if "/" in line}
        except OSError:
            continue
        if program.startswith("maypole") and any(path.startswith(sys.prefix) for path in files):
            paths |= {path for path in files if ".so" in path or "/maypole" in path}
    return paths | {line.split(None, 5)[5].strip() for line in open("/proc/self/maps") if "libmaypole" in line}


torch.set_num_threads(1)
torch.manual_seed(3)
hvd.init()
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1),
                                     named_parameters=model.named_parameters())
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
inputs = torch.randn(32, 8)
mine = slice(hvd.rank(), None, hvd.size())
losses = []
for _ in range(30):
    optimizer.zero_grad()
    loss = torch.nn.functional.mse_loss(model(inputs)[mine], inputs[mine].sum(1, keepdim=True))
    loss.backward()
    optimizer.step()
    losses.append(float(hvd.allreduce(loss.detach(), name="loss")))
if hvd.rank() == 0:
    for path in sorted(mapped()):
        print("MAPPED", path)
    print("LOSSES", hvd.size(), losses[0], losses[-1])
