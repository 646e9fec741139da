"""Uses of optimizers that fail in other libraries; each rank records the results.

Every case computes a value that the test knows, from gradients that differ by rank.
"""

import os

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import maypole.torch as hvd
import rank


def model(seed):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))


def optimizer_of(m, names=None, **kwargs):
    named = [((names or "") + name, p) for name, p in m.named_parameters()]
    return hvd.DistributedOptimizer(torch.optim.SGD(m.parameters(), lr=0.1), named_parameters=named, **kwargs)


def data(r, step):
    return torch.randn(5, 4, generator=torch.Generator().manual_seed(100 * r + step))


def loss_of(m, x):
    return (m(x) ** 2).mean()


def mean_gradients(losses_of_rank, m):
    """The expected gradients: the mean over ranks of the gradients of each rank's losses."""
    total = [torch.zeros_like(p) for p in m.parameters()]
    for r in range(hvd.size()):
        grads = torch.autograd.grad(losses_of_rank(r), list(m.parameters()))
        total = [t + g for t, g in zip(total, grads)]
    return [t / hvd.size() for t in total]


def off(m, want):
    """The difference of the model's gradients from the expected ones."""
    return max(float((p.grad - w).abs().max()) for p, w in zip(m.parameters(), want))


def model_used_twice():
    m = model(1)
    opt = optimizer_of(m)
    worst = 0.0
    for step in range(3):
        both = lambda r: loss_of(m, data(r, 2 * step)) + loss_of(m, data(r, 2 * step + 1))
        want = mean_gradients(both, m)
        opt.zero_grad()
        both(hvd.rank()).backward()
        opt.synchronize()
        worst = max(worst, off(m, want))
        with opt.skip_synchronize():
            opt.step()
    return worst


def two_backwards():
    """Two backward passes without backward_passes_per_step; then with it."""
    m = model(2)
    opt = optimizer_of(m)
    loss_of(m, data(hvd.rank(), 0)).backward()
    try:
        loss_of(m, data(hvd.rank(), 1)).backward()
        text = "no error"
    except AssertionError as error:
        text = str(error)
    try:  # the second one was added to a gradient that is being reduced
        opt.step()
    except AssertionError as error:
        text += "; step(): " + str(error)
    m = model(2)
    opt = optimizer_of(m, backward_passes_per_step=2)
    want = mean_gradients(lambda r: loss_of(m, data(r, 0)) + loss_of(m, data(r, 1)), m)
    for i in range(2):
        loss_of(m, data(hvd.rank(), i)).backward()
    opt.synchronize()
    return text, off(m, want)


def two_optimizers(names, interleaved):
    """Two models with the same parameter names; the error of their gradients."""
    a, b = model(3), model(4)
    opt_a, opt_b = optimizer_of(a, names and "a."), optimizer_of(b, names and "b.")
    worst = 0.0
    for step in range(3):
        want_a = mean_gradients(lambda r: loss_of(a, data(r, step)), a)
        want_b = mean_gradients(lambda r: loss_of(b, data(r, step)), b)
        opt_a.zero_grad()
        opt_b.zero_grad()
        loss_of(a, data(hvd.rank(), step)).backward()
        if not interleaved:
            opt_a.synchronize()
        loss_of(b, data(hvd.rank(), step)).backward()
        if interleaved:
            opt_a.synchronize()
        opt_b.synchronize()
        worst = max(worst, off(a, want_a), off(b, want_b))
        for opt in (opt_a, opt_b):
            with opt.skip_synchronize():
                opt.step()
    return worst


def same_names():
    """Two optimizers whose parameters have equal names, in another order on each rank: the error of the gradients."""
    a, b = model(3), model(4)
    opt_a, opt_b = optimizer_of(a), optimizer_of(b)
    want_a = mean_gradients(lambda r: loss_of(a, data(r, 0)), a)
    want_b = mean_gradients(lambda r: loss_of(b, data(r, 0)), b)
    for m in (a, b) if hvd.rank() == 0 else (b, a):
        loss_of(m, data(hvd.rank(), 0)).backward()
    opt_a.synchronize()
    opt_b.synchronize()
    return max(off(a, want_a), off(b, want_b))


class Numbers(Dataset):
    def __len__(self):
        return 32

    def __getitem__(self, i):
        return torch.full((4,), float(i)) / 32, os.getpid()


def data_loader():
    """Trains with DataLoader's workers, which start and end with each epoch; how many there were."""
    m = model(5)
    opt = optimizer_of(m)
    pids = set()
    for _ in range(2):
        for batch, workers in DataLoader(Numbers(), batch_size=4, num_workers=2):
            pids.update(int(w) for w in workers)
            opt.zero_grad()
            loss_of(m, batch).backward()
            opt.step()
    total = hvd.allreduce(torch.ones(3), name="after.workers", op=hvd.Sum)
    return len(pids), total.tolist()


def main():
    torch.set_num_threads(1)
    rank.started()
    hvd.init()
    seen = {
        "model_used_twice": model_used_twice(),
        "two_backwards": two_backwards(),
        "in_turn": two_optimizers(None, False),
        "named_apart": two_optimizers("x", True),
        "same_names": same_names(),
        "data_loader": data_loader(),
    }
    rank.record(**seen)
    hvd.shutdown()


if __name__ == "__main__":
    main()
