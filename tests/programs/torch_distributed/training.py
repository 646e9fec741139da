"""What the programs of this directory train: a small model, batches, and a loop; on $PROGRAMS_DEVICE (default: cpu)."""

import os

import torch

STEPS = 12
FEATURES = 32
CLASSES = 10
DEVICE = torch.device(os.environ.get("PROGRAMS_DEVICE", "cpu"))


def model():
    """Equal on all ranks."""
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(FEATURES, 256), torch.nn.ReLU(), torch.nn.Linear(256, 64),
                               torch.nn.ReLU(), torch.nn.Linear(64, CLASSES)).to(DEVICE)


def batches(seed, steps=STEPS, rows=16):
    """Random inputs and labels; a rank's own are those of its number."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        yield (torch.randn(rows, FEATURES, generator=generator).to(DEVICE),
               torch.randint(0, CLASSES, (rows,), generator=generator).to(DEVICE))


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
    # One by one: torch does not update plain and sharded parameters together, which is its default on a GPU.
    return torch.optim.SGD(parameters, lr=0.01, foreach=False)


def weights(wrapped):
    """Copies of all parameters; whole ones of those that are sharded."""
    return [(p.full_tensor() if hasattr(p, "full_tensor") else p).detach().clone() for p in wrapped.parameters()]
