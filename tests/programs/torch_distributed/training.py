"""What the programs of this directory train: a small model, batches, and a loop."""

import torch

STEPS = 12
FEATURES = 32
CLASSES = 10


def model():
    """Equal on all ranks."""
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(FEATURES, 256), torch.nn.ReLU(), torch.nn.Linear(256, 64),
                               torch.nn.ReLU(), torch.nn.Linear(64, CLASSES))


def batches(seed, steps=STEPS, rows=16):
    """Random inputs and labels; a rank's own are those of its number."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        yield (torch.randn(rows, FEATURES, generator=generator),
               torch.randint(0, CLASSES, (rows,), generator=generator))


def train(wrapped, optimizer, seed, accumulate=1, clip=True):
    """Returns the losses."""
    losses = []
    for step, (x, y) in enumerate(batches(seed)):
        if accumulate > 1 and step % accumulate:
            with wrapped.no_sync():
                torch.nn.functional.cross_entropy(wrapped(x), y).backward()
            continue
        loss = torch.nn.functional.cross_entropy(wrapped(x), y)
        loss.backward()
        if clip:
            torch.nn.utils.clip_grad_norm_(wrapped.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach().clone())
    return losses


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.01)


def weights(wrapped):
    """Copies of all parameters; whole ones of those that are sharded."""
    return [(p.full_tensor() if hasattr(p, "full_tensor") else p).detach().clone() for p in wrapped.parameters()]
