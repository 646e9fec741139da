"""DDP in an elastic function, on two ranks: elastic_ddp.py [outside|store].

In the third step rank 1 kills itself within backward(), when some buckets are reduced. The launcher starts another
process, and the job goes on from the last commit. At the end each rank's weights equal, bit for bit, those of one
process that averages the gradients of both ranks' batches.

outside: makes the process group before the elastic function, which is an error.

store: rank 0 kills itself, in place of rank 1, when it has told rank 1 the address of its store, to which rank 1 has not
connected yet.
"""

import os
import signal
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import maypole.torch as hvd
import maypole.torch.distributed  # noqa: F401 - has the method maypole://
from maypole.common import objects

DIED = os.path.join(os.environ["MAYPOLE_TEST_DIR"], "died")
STEPS, WIDTH, LAYERS = 8, 16, 6


def new_model():
    torch.manual_seed(5)
    return torch.nn.Sequential(*(torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh())
                                 for _ in range(LAYERS)))


def new_optimizer(model):
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def loss_of(model, step, rank):
    x = torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(100 * step + rank))
    return model(x).square().mean()


def alone():
    """Returns the weights of one process."""
    model = new_model()
    optimizer = new_optimizer(model)
    for step in range(STEPS):
        gradients = [torch.autograd.grad(loss_of(model, step, rank), list(model.parameters())) for rank in range(2)]
        for parameter, *of_ranks in zip(model.parameters(), *gradients):
            parameter.grad = of_ranks[0] / 2 + of_ranks[1] / 2
        optimizer.step()
    return model.state_dict()


def die(gradient):
    open(DIED, "x", encoding="utf-8").close()
    os.kill(os.getpid(), signal.SIGKILL)


def die_before_the_others_connect():
    if hvd.rank() == 0:
        broadcast = objects.broadcast_object

        def dying(value, root_rank, name):
            broadcast(value, root_rank, name)
            die(None)

        objects.broadcast_object = dying
    else:
        connect = dist.TCPStore

        def late(*args, **kwargs):
            time.sleep(0.5)
            return connect(*args, **kwargs)

        dist.TCPStore = late


@hvd.elastic.run
def train(state):
    if sys.argv[1:] == ["store"] and not os.path.exists(DIED):
        die_before_the_others_connect()
    dist.init_process_group("maypole", init_method="maypole://")
    model = DistributedDataParallel(state.model, bucket_cap_mb=0.001, gradient_as_bucket_view=True)
    while state.step < STEPS:
        state.optimizer.zero_grad()
        loss = loss_of(model, state.step, dist.get_rank())
        if state.step == 2 and dist.get_rank() == 1 and not os.path.exists(DIED):
            state.model[0][0].weight.register_hook(die)
        loss.backward()
        state.optimizer.step()
        state.step += 1
        state.commit()
    dist.destroy_process_group()


if __name__ == "__main__":
    hvd.init()
    if sys.argv[1:] == ["outside"]:
        dist.init_process_group("maypole", init_method="maypole://")
    net = new_model()
    train(hvd.elastic.TorchState(net, new_optimizer(net), step=0))
    expected = alone()
    for name, value in net.state_dict().items():
        assert torch.equal(value, expected[name]), f"{name}: {(value - expected[name]).abs().max()} from one process"
    print(f"rank {hvd.rank()} of {hvd.size()}: equal to one process")
    hvd.shutdown()
