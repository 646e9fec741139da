"""Adasum on a regression, in the shape of Horovod's small Adasum example: each
rank has its own data, and the learning rate is not scaled by the ranks."""

import torch
import torch.nn as nn
import torch.optim as optim
import torch.nn.functional as F

import horovod.torch as hvd
import rank

D_IN, H, D_OUT, ROWS, STEPS = 10, 20, 1, 32, 80


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(D_IN, H)
        self.fc2 = nn.Linear(H, D_OUT)

    def forward(self, x):
        return self.fc2(F.relu(self.fc1(x)))


def true_function(x):
    return x[:, :3].sum(1, keepdim=True) + torch.sin(x[:, 3:4])


def main():
    hvd.init()
    torch.manual_seed(hvd.rank())
    torch.set_num_threads(1)
    model = Net()
    optimizer = optim.SGD(model.parameters(), lr=0.02, momentum=0.5)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters(), op=hvd.Adasum)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    losses = []
    for _ in range(STEPS):
        x = torch.randn(ROWS, D_IN)
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), true_function(x))
        loss.backward()
        optimizer.step()
        losses.append(hvd.allreduce(loss.detach(), name="loss").item())
    sums = hvd.allgather(torch.stack([p.detach().double().sum() for p in model.parameters()]).reshape(1, -1))
    rank.record(losses=[losses[0], sum(losses[-10:]) / 10],
                equal=bool(torch.equal(sums, sums[:1].expand_as(sums))))


if __name__ == "__main__":
    main()
