"""An elastic training script for torch_test.py, and what it promises, checked.

Writes JSON lines to stdout:
  {"step": n, "epoch": e, "rank": r, "size": n, "pid": p, "at": seconds,
   "joins": number of epochs of the job that this process has joined,
   "restored", "broadcast": bytes of tensors, see TorchState (with MAYPOLE_KEEP_STATE=1)}
  {"end": false, "replayed": n}: a sign of life at the end, while it computes what follows
  {"end": true, "weights": their hash, "history": [[sample, ...] of each step],
   "replayed": the greatest difference to a training without ranks}
Trains whole epochs until DIR/finish exists. The rank whose number is in DIR/die removes the file and dies, soon after a
commit. Settings: TRAIN_SAMPLES, TRAIN_COMMIT (steps between commits), TRAIN_WIDTH (of the model), TRAIN_VIEW (gradients
in buckets), TRAIN_HASHES (1: "history" is a hash as well, because maypolerun splits lines of more than 64 KiB, which
thousands of steps have), TRAIN_DIES ("RANK N": a process dies in its N-th epoch of the job if it is RANK there, before
it gives others its state).
"""

import hashlib
import json
import os
import signal
import sys
import time

import torch

import maypole.torch as hvd
from maypole.common import basics

DIR = os.environ["MAYPOLE_TEST_DIR"]
SAMPLES = int(os.environ.get("TRAIN_SAMPLES", "120"))
COMMIT = int(os.environ.get("TRAIN_COMMIT", "3"))
VIEW = os.environ.get("TRAIN_VIEW") == "1"
WIDTH = int(os.environ.get("TRAIN_WIDTH", "5"))
BATCH = 2
RATE = 0.25 / WIDTH  # a larger one diverges


class State(hvd.elastic.TorchState):
    def sync(self):
        if os.environ.get("TRAIN_DIES") == "%d %d" % (hvd.rank(), basics.joins()):
            os.kill(os.getpid(), signal.SIGKILL)
        super().sync()


def say(**values):
    sys.stdout.write(json.dumps(values) + "\n")
    sys.stdout.flush()


def die_if_told():
    path = os.path.join(DIR, "die")
    try:
        with open(path) as f:
            told = int(f.read()) == hvd.rank()
    except FileNotFoundError:
        return
    if told:
        os.remove(path)
        os.kill(os.getpid(), signal.SIGKILL)


def make_model():
    torch.manual_seed(os.getpid())  # only rank 0's values count
    return torch.nn.Sequential(torch.nn.Linear(3, WIDTH), torch.nn.Tanh(), torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh(),
                               torch.nn.Linear(WIDTH, 1)).double()


def optimizer_of(model):
    return torch.optim.SGD(model.parameters(), lr=RATE, momentum=0.8)


def loss_of(model, samples):
    x = torch.tensor([[i, 1.0 + i % 7, i % 3] for i in samples], dtype=torch.float64).cos()
    return ((model(x) - x.sum(1, keepdim=True))**2).mean()


def weights_of(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def replayed(first, history):
    """The weights after the same steps on the same samples in this process alone."""
    model = make_model()
    model.load_state_dict(first)
    optimizer = optimizer_of(model)
    for n, samples in enumerate(history):
        if n % 200 == 0:
            say(end=False, replayed=n)
        optimizer.zero_grad()
        loss_of(model, samples).backward()
        optimizer.step()
    return weights_of(model)


def train_epoch(state):
    sampler = state.sampler
    loader = torch.utils.data.DataLoader(range(SAMPLES), BATCH, sampler=sampler)
    for i, batch in enumerate(loader):
        samples = batch.tolist()
        state.optimizer.zero_grad()
        loss_of(state.model, samples).backward()
        state.optimizer.step()
        every = sum(hvd.allgather_object(samples), [])
        sampler.record_batch(i, BATCH)
        state.history.append(every)
        say(step=len(state.history), epoch=state.epoch, rank=hvd.rank(), size=hvd.size(), pid=os.getpid(),
            joins=basics.joins(), at=time.monotonic(), restored=state.restored_bytes, broadcast=state.broadcast_bytes)
        if len(state.history) % COMMIT == 0:
            state.commit()
        elif len(state.history) % COMMIT == 1:  # all ranks have the last commit
            die_if_told()
        time.sleep(0.005)


@hvd.elastic.run
def train(state):
    while not state.finished:
        train_epoch(state)
        state.epoch += 1
        state.ends.append(len(state.history))
        state.sampler.set_epoch(state.epoch)
        state.finished = hvd.broadcast_object(os.path.exists(os.path.join(DIR, "finish")))
        state.commit()


def main():
    torch.set_num_threads(1)
    hvd.init()
    model = make_model()
    optimizer = hvd.DistributedOptimizer(optimizer_of(model), model.named_parameters(), gradient_as_bucket_view=VIEW)
    state = State(model, optimizer, sampler=hvd.elastic.ElasticSampler(range(SAMPLES), seed=5),
                  epoch=0, history=[], ends=[], finished=False, first=None)
    if hvd.rank() == 0:
        state.first = {name: value.clone() for name, value in model.state_dict().items()}
    train(state)
    mine = weights_of(state.model)
    again = replayed(state.first, state.history)
    history = state.history
    if os.environ.get("TRAIN_HASHES") == "1":
        history = hashlib.sha256(json.dumps(history).encode()).hexdigest()
    say(end=True, weights=hashlib.sha256(mine.numpy().tobytes()).hexdigest(), history=history, ends=state.ends,
        size=hvd.size(), replayed=float((mine - again).abs().max()))
    hvd.shutdown()


main()
