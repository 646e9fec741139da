"""Elastic training, in the shape of Horovod's elastic example for PyTorch: a state with a sampler, commits between
batches, a learning rate that follows the number of ranks.

usage: horovod_script.py DIRECTORY RANKS: training begins when RANKS ranks are there; rank 1 kills itself once, in the
second epoch. Each rank writes its final values to DIRECTORY/end.RANK.json; `apart` is their difference from those of
one process that makes the same steps without Horovod.
"""

import json
import os
import signal
import sys
import time

import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.optim as optim

import horovod.torch as hvd

SAMPLES, EPOCHS, BATCH, LR = 96, 3, 4, 0.02
DIR, RANKS = sys.argv[1], int(sys.argv[2])


def dies_once(state, index):
    """Rank 1 is lost in the second epoch, after samples were processed that no commit has."""
    if state.epoch == 1 and index == 3 and hvd.rank() == 1:
        try:
            os.close(os.open(os.path.join(DIR, "died"), os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return
        os.kill(os.getpid(), signal.SIGKILL)


def new_model():
    torch.manual_seed(1 + hvd.rank())  # the losses do not depend on luck
    return nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 1)).double()


def weights(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def of_one_process(dataset, first, steps):
    model = new_model()
    model.load_state_dict(first)
    optimizer = optim.SGD(model.parameters(), lr=LR, momentum=0.5)
    for _, numbers, lr in steps:
        optimizer.param_groups[0]["lr"] = lr
        _, data, target = dataset[numbers]
        optimizer.zero_grad()
        F.mse_loss(model(data), target).backward()
        optimizer.step()
    return weights(model)


def main():
    hvd.init()
    torch.set_num_threads(1)
    inputs = torch.randn(SAMPLES, 6, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    dataset = torch.utils.data.TensorDataset(torch.arange(SAMPLES), inputs, inputs[:, :2].sum(1, keepdim=True).sin())
    model = new_model()
    optimizer = optim.SGD(model.parameters(), lr=LR * hvd.size(), momentum=0.5)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    sampler = hvd.elastic.ElasticSampler(dataset, shuffle=True)
    loader = torch.utils.data.DataLoader(dataset, batch_size=BATCH, sampler=sampler)

    def on_state_reset():
        for group in optimizer.param_groups:
            group["lr"] = LR * hvd.size()

    @hvd.elastic.run
    def train(state):
        while not state.steps and hvd.size() < RANKS:
            time.sleep(0.02)
            state.commit()  # new ranks enter here
        while state.epoch < EPOCHS:
            for index, (numbers, data, target) in enumerate(loader):
                dies_once(state, index)
                optimizer.zero_grad()
                loss = F.mse_loss(model(data), target)
                loss.backward()
                optimizer.step()
                state.sampler.record_batch(index, BATCH)
                state.losses.append(float(hvd.allreduce(loss.detach(), name="loss")))
                state.steps.append((state.epoch, sum(hvd.allgather_object(numbers.tolist()), []),
                                    optimizer.param_groups[0]["lr"]))
                if index % 2 == 1:
                    state.commit()
                else:
                    state.check_host_updates()
            state.epoch += 1
            state.sampler.set_epoch(state.epoch)
            state.commit()

    state = hvd.elastic.TorchState(model=model, optimizer=optimizer, sampler=sampler, epoch=0, losses=[], steps=[],
                                   first={name: value.clone() for name, value in model.state_dict().items()})
    state.register_reset_callbacks([on_state_reset])
    train(state)
    with open(os.path.join(DIR, "end.%d.json" % hvd.rank()), "w") as f:
        json.dump({"size": hvd.size(), "losses": state.losses, "steps": state.steps, "weights": weights(model).tolist(),
                   "apart": float((weights(model) - of_one_process(dataset, state.first, state.steps)).abs().max())}, f)


if __name__ == "__main__":
    main()
