"""The errors that a rank of torch.distributed on Maypole gets when something goes wrong.

errors.py mismatch|barrier_mismatch|monitored|shapes|timeout|death|backward_death|new_pair_death|any_source_death|any_source_left

Each rank records the error's type and text, and the seconds until it came.
"""

import datetime
import os
import signal
import sys
import time

import rank as test
import torch
import torch.distributed as dist

import maypole.torch.distributed  # noqa: F401 - torch before 2.15 does not find the backend itself


def mismatch(rank):
    """One call is another one on the last rank."""
    tensor = torch.ones(4)
    if rank == dist.get_world_size() - 1:
        dist.broadcast(tensor, 0)
    else:
        dist.all_reduce(tensor)


def barrier_mismatch(rank):
    """Both calls are allreduces of Maypole."""
    if rank == dist.get_world_size() - 1:
        dist.barrier()
    else:
        dist.all_reduce(torch.ones(1, dtype=torch.uint8))


def monitored(rank):
    """The last rank comes late."""
    if rank == dist.get_world_size() - 1:
        test.await_file("over")
        return
    try:
        dist.monitored_barrier(timeout=datetime.timedelta(seconds=1))
    finally:
        test.touch("over")


def shapes(rank):
    dist.all_reduce(torch.ones(4 + rank))


def timeout(rank):
    """The last rank does not come."""
    if rank == dist.get_world_size() - 1:
        test.await_file("over")
        return
    try:
        dist.all_reduce(torch.ones(4), async_op=True).wait(datetime.timedelta(seconds=2))
    finally:
        test.touch("over")


def death(rank):
    if rank == dist.get_world_size() - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.all_reduce(torch.ones(4))


def backward_death(rank):
    """DDP's reducer, which is in C++, gets the error from a future."""
    wrapped = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
    output = wrapped(torch.ones(2, 4))
    if rank == dist.get_world_size() - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    output.sum().backward()


def new_pair_death(rank):
    try:
        death(rank)
    except dist.DistBackendError:
        dist.send(torch.ones(1), dist.get_world_size() - 1)


def any_source_death(rank):
    """The last rank dies while the first one waits for a message from any rank."""
    if rank == dist.get_world_size() - 1:
        test.await_file("waits")
        os.kill(os.getpid(), signal.SIGKILL)
    if rank > 0:
        test.await_file("over")
        return
    work = dist.irecv(torch.zeros(1), tag=3)
    test.touch("waits")
    try:
        work.wait()
    finally:
        test.touch("over")


def any_source_left(rank):
    """Nobody sends any more, and all others leave."""
    if rank == 0:
        for _ in range(dist.get_world_size()):
            dist.recv(torch.zeros(1))
    else:
        dist.send(torch.zeros(1), 0)
        dist.destroy_process_group()


def main():
    dist.init_process_group("maypole")
    rank = dist.get_rank()
    dist.all_reduce(torch.ones(1))
    began = time.monotonic()
    try:
        globals()[sys.argv[1]](rank)
    except Exception as error:
        test.record(type=type(error).__name__, text=str(error), seconds=time.monotonic() - began)
    else:
        test.record(type="", text="", seconds=time.monotonic() - began)


if __name__ == "__main__":
    main()
