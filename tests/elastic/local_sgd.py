"""An elastic training with DiLoCo, for local_sgd_test.py: a rank dies between two agreements.

Commits when all ranks have agreed. At its end each process prints "agreed SIZES right|wrong DIGEST": how many ranks
trained each interval, whether the weights are those that the formula gives for these sizes in one process, and a digest
of the weights.
"""

import os
import signal
import time
import zlib

import torch

import maypole.torch as hvd

EVERY, INTERVALS = 4, 8


def make():
    model = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    with torch.no_grad():
        for i, p in enumerate(model.parameters()):
            p.copy_((torch.arange(p.numel()) + i).cos().view_as(p) / 2)
    return model, torch.optim.SGD(model.parameters(), lr=0.1), torch.optim.SGD(model.parameters(), lr=0.7, momentum=0.9)


def train_step(model, optimizer, rank, step):
    x = (torch.arange(15.0) * (rank + 1) + step).sin().view(5, 3)
    optimizer.zero_grad()
    torch.nn.functional.mse_loss(model(x), x.sum(1, keepdim=True).sin()).backward()
    optimizer.step()


def formula(sizes):
    """The weights after intervals of these numbers of replicas."""
    agreed, _, outer = make()
    for interval, size in enumerate(sizes):
        progress = [torch.zeros_like(p) for p in agreed.parameters()]
        for rank in range(size):
            replica, optimizer, _ = make()
            replica.load_state_dict(agreed.state_dict())
            for step in range(interval * EVERY, (interval + 1) * EVERY):
                train_step(replica, optimizer, rank, step)
            for total, p, own in zip(progress, agreed.parameters(), replica.parameters()):
                total += (p.detach() - own.detach()) / size
        for p, mean in zip(agreed.parameters(), progress):
            p.grad = mean
        outer.step()
    return agreed


def dies(name):
    try:
        os.close(os.open(os.path.join(os.environ["MAYPOLE_TEST_DIR"], name), os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return
    os.kill(os.getpid(), signal.SIGKILL)


hvd.init()
model, optimizer, outer = make()
diloco = hvd.DiLoCo(model, optimizer, outer, sync_every=EVERY)
state = hvd.elastic.TorchState(model, optimizer, diloco=diloco, step=0, sizes=[])


@hvd.elastic.run
def train(state):
    with diloco:
        while state.step < EVERY * INTERVALS:
            train_step(model, optimizer, hvd.rank(), state.step)
            state.step += 1
            if state.step == 2 * EVERY + 2 and hvd.rank() == 1:
                dies("died")
            if diloco.is_synced:
                state.sizes.append(hvd.size())
                state.commit()
            while state.step == 4 * EVERY and hvd.size() < 3:  # the next intervals are also for the replacement
                time.sleep(0.05)
                state.check_host_updates()


train(state)
expected = formula(state.sizes).parameters()
right = all(torch.allclose(p, weights, atol=1e-6) for p, weights in zip(model.parameters(), expected))
digest = zlib.crc32(b"".join(p.detach().numpy().tobytes() for p in model.parameters()))
print("agreed %s %s %08x" % (",".join(map(str, state.sizes)), "right" if right else "wrong", digest), flush=True)
