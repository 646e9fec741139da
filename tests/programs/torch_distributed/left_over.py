"""What a program leaves behind does not reach its later calls: operations of a group that was destroyed, late receives.

Started by a launcher, on at least three ranks. Rank 0 prints 'right: left over'.
"""

import datetime
import threading
import time

import torch
import torch.distributed as dist

import maypole.torch.distributed  # noqa: F401 - torch before 2.15 does not find the backend itself
from checks import refused

SECOND = datetime.timedelta(seconds=1)


def again():
    dist.destroy_process_group()
    dist.init_process_group("maypole")


def check(what, tensor, value):
    assert bool((tensor == value).all()), f"{what}: rank {dist.get_rank()} has {tensor}, expected {value}"


def of_a_destroyed_group(rank, size):
    """A sum that the last rank has not submitted, and a message that it has not received, are not the next group's."""
    if rank < size - 1:
        refused(dist.DistBackendError, "has not ended in 1 s",
                lambda: dist.all_reduce(torch.full((4,), 1000.0), async_op=True).wait(SECOND))
    kept = dist.isend(torch.full((4,), -1.0), size - 1) if rank == 0 else None
    again()
    for step in range(3):
        tensor = torch.full((4,), float(step))
        dist.all_reduce(tensor)
        check("all_reduce", tensor, float(step * size))
        if rank == 0:
            dist.send(torch.full((4,), float(step)), size - 1)
        elif rank == size - 1:
            dist.recv(tensor, 0)
            check("recv", tensor, float(step))
    dist.barrier()
    del kept


def coalesced_messages(rank, size):
    """The end of torch's _coalescing_manager waits for messages."""
    for async_ops in (False, True):
        tensor = torch.full((3,), -1.0)
        with dist._coalescing_manager(None, torch.device("cpu"), async_ops=async_ops) as manager:
            if rank == 1:
                time.sleep(0.2)
            dist.isend(torch.full((3,), float(rank)), (rank + 1) % size)
            dist.irecv(tensor, (rank - 1) % size)
        if async_ops:
            manager.wait()
        check("a coalesced message", tensor, float((rank - 1) % size))
        dist.barrier()


def late_receives(rank, size):
    """While a receive is late, the others may wait for its rank; the next receive does not lose the message."""
    if rank == 0:
        works = [dist.irecv(torch.zeros(1), 1, tag=5), dist.irecv(torch.zeros(1), tag=6)]
        for work in works:
            refused(dist.DistBackendError, "has not ended in 1 s", lambda: work.wait(SECOND))
        refused(dist.DistBackendError, "an earlier recv from rank 1 with tag 5 has timed out",
                lambda: dist.recv(torch.zeros(1), 1, tag=5))
        refused(dist.DistBackendError, "an earlier recv from any rank with tag 6 has timed out",
                lambda: dist.recv(torch.zeros(1), tag=6))
    dist.barrier()
    for tag in (5, 6):
        if rank == 1:
            dist.send(torch.ones(1), 0, tag=tag)
            dist.send(torch.full((1,), 2.0), 0, tag=tag)
        elif rank == 0:
            works[tag - 5].wait()
            tensor = torch.zeros(1)
            dist.recv(tensor, 1, tag=tag)
            check("the next message", tensor, 2.0)
    dist.barrier()


def a_thread_that_comes_later(rank, size):
    """Rank 0 waits for what its other thread will cause, which has not used Maypole yet."""
    other = dist.new_group([0, 1])
    if rank == 0:

        def late():
            time.sleep(1)
            dist.send(torch.full((1,), 5.0), 1, group=other)

        thread = threading.Thread(target=late)
        thread.start()
        tensor = torch.zeros(1)
        dist.recv(tensor, 1)
        thread.join()
        check("the answer", tensor, 6.0)
    elif rank == 1:
        tensor = torch.zeros(1)
        dist.recv(tensor, 0, group=other)
        dist.send(tensor + 1, 0)
    dist.barrier()


def bitwise(rank, size):
    refused(ValueError, "all_reduce: BAND needs a tensor of integers or bool, this one is of torch.float32",
            lambda: dist.all_reduce(torch.ones(2), dist.ReduceOp.BAND))


def main():
    dist.init_process_group("maypole")
    rank, size = dist.get_rank(), dist.get_world_size()
    for part in (of_a_destroyed_group, coalesced_messages, late_receives, a_thread_that_comes_later, bitwise):
        part(rank, size)
    if rank == 0:
        print("right: left over", flush=True)
    dist.barrier()


if __name__ == "__main__":
    main()
