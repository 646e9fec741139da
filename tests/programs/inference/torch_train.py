"""Trains a small model, and saves it, with its predictions, in each way that docs/inference.md names.

torch_load.py loads the files where Maypole cannot be imported.
"""

import os

import maypole.torch as hvd
import rank
import torch

import torch_model

hvd.init()
torch.manual_seed(hvd.rank())  # the broadcast makes them equal
model = torch_model.make(hvd.SyncBatchNorm)
optimizer = hvd.DistributedOptimizer(torch.optim.Adam(model.parameters(), lr=0.01), model.named_parameters())
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
hvd.broadcast_optimizer_state(optimizer, root_rank=0)

losses = []
for _ in range(20):
    x = torch.randn(8, 3, 5, 5)
    loss = ((model(x) - x.mean((1, 2, 3)).unsqueeze(1)) ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())

model.eval()
if hvd.rank() == 0:
    def path(name):
        return os.path.join(rank.DIR, name)

    x = torch.randn(16, 3, 5, 5)
    with torch.no_grad():
        torch.save({"x": x, "y": model(x)}, path("predicted.pt"))
        torch.save(model.state_dict(), path("state_dict.pt"))
        torch.save(optimizer.state_dict(), path("optimizer.pt"))
        torch.jit.trace(model, x).save(path("traced.pt"))
        torch.save(model, path("whole.pt"))
rank.record(losses=losses)
hvd.shutdown()
