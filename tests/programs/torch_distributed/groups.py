"""Groups, dtypes and receives of torch.distributed that collectives.py does not cover, compared with expected values.

Started by a launcher, on at least two ranks. Arguments name the parts to run; without any, all that this torch
supports. Rank 0 prints 'right: NAMES'.
"""

import json
import os
import socket
import sys
import tempfile

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import maypole.torch as hvd
import maypole.torch.distributed  # noqa: F401 - torch before 2.15 does not find the backend itself
from maypole.common import basics
from maypole.torch.distributed import _world

from checks import TORCH, refused, same
import argument_parts
import work_parts

OPS = dist.ReduceOp


def strangers(rank, size):
    """Connections that say nothing, to where rank 0 listens: few of them stay, and it goes on."""
    if rank == 1:
        dist.send(torch.ones(1), 0, tag=2)
    if rank == 0:
        dist.recv(torch.zeros(1), tag=2)
        port = json.loads(_world.current.offers.address)["port"]
        silent = [socket.create_connection(("127.0.0.1", port)) for _ in range(100)]
        for connection in silent[:36]:
            assert connection.recv(1) == b""
        silent[-1].setblocking(False)
        try:
            raise AssertionError(silent[-1].recv(1))
        except BlockingIOError:
            pass
        for connection in silent:
            connection.close()
    dist.barrier()


def many(rank, size):
    """Groups of the same ranks and of others at once, each with its own order; ended in another order."""
    groups = [dist.new_group(list(range(n % size, size))) for n in range(40)]
    tensors, works = [], []
    for n, group in reversed(list(enumerate(groups))):
        if rank >= n % size:
            tensors.append((n, torch.tensor([float(n + rank)])))
            works.append(dist.all_reduce(tensors[-1][1], group=group, async_op=True))
    for work in works:
        work.wait()
    for n, tensor in tensors:
        same(f"group {n}", [tensor], [torch.tensor([float(sum(n + r for r in range(n % size, size)))])])
    for n, group in enumerate(groups):
        if rank >= n % size:
            dist.destroy_process_group(group)
    if rank == 0 and TORCH >= (2, 15):  # older ones do not tell the group
        refused((ValueError, dist.DistBackendError), "", lambda: dist.all_reduce(torch.ones(1), group=groups[0]))
    dist.barrier()


def order(rank, size):
    """Of a group whose ranks do not ascend, the first is its rank 0."""
    backwards = list(range(size))[::-1]
    group = dist.new_group(backwards, sort_ranks=False)
    me = dist.get_rank(group)
    assert me == size - 1 - rank, me
    outputs = [torch.zeros(2) for _ in range(size)]
    dist.all_gather(outputs, torch.full((2,), float(me)), group=group)
    same("all_gather", outputs, [torch.full((2,), float(r)) for r in range(size)])
    output = torch.zeros(2 * size)
    dist.all_gather_into_tensor(output, torch.full((2,), float(me)), group=group)
    same("all_gather_into_tensor", [output], [torch.arange(float(size)).repeat_interleave(2)])
    for op in (OPS.SUM, OPS.MAX):
        output = torch.zeros(2)
        dist.reduce_scatter_tensor(output, torch.arange(2.0 * size), op, group)
        factor = size if op == OPS.SUM else 1
        same("reduce_scatter_tensor", [output], [factor * torch.tensor([2.0 * me, 2.0 * me + 1])])
    outputs = [torch.zeros(r + 1) for r in range(size)]
    dist.all_to_all(outputs, [torch.full((me + 1,), 10.0 * me + r) for r in range(size)], group)
    same("all_to_all", outputs, [torch.full((r + 1,), 10.0 * r + me) for r in range(size)])
    output = torch.zeros(size)
    dist.all_to_all_single(output, 10.0 * me + torch.arange(float(size)), group=group)
    same("all_to_all_single", [output], [10.0 * torch.arange(float(size)) + me])
    gathered = [torch.zeros(1) for _ in range(size)] if me == 0 else None
    dist.gather(torch.tensor([float(me)]), gathered, backwards[0], group)
    same("gather", gathered or [], [torch.tensor([float(r)]) for r in range(size)] if me == 0 else [])
    output = torch.zeros(1)
    dist.scatter(output, [torch.tensor([float(r)]) for r in range(size)] if me == 0 else None, backwards[0], group)
    same("scatter", [output], [torch.tensor([float(me)])])


def split(rank, size):
    """split_group(), also with ranks that do not ascend, and some in none."""
    group = dist.split_group(split_ranks=[list(range(size))[::-1]])
    outputs = [torch.zeros(1) for _ in range(size)]
    dist.all_gather(outputs, torch.tensor([float(rank)]), group=group)
    same("all_gather", outputs, [torch.tensor([float(size - 1 - r)]) for r in range(size)])
    assert dist.get_rank(group) == size - 1 - rank
    part = dist.split_group(group, split_ranks=[[0], [1]])
    if rank < size - 2:
        assert part == dist.GroupMember.NON_GROUP_MEMBER, part
    else:
        tensor = torch.ones(1)
        dist.all_reduce(tensor, group=part)
        same("a group of one", [tensor], [torch.ones(1)])
        dist.destroy_process_group(part)
    dist.destroy_process_group(group)


def both_interfaces(rank, size):
    """maypole.torch and the process group in one script, by turns and at once."""
    hvd.init()
    assert (hvd.rank(), hvd.size()) == (rank, size)
    # Before a group or a send has made a set of these ranks.
    evens = hvd.add_process_set(list(range(0, size, 2))) if size > 2 else None
    for step in range(5):
        ours = hvd.allreduce_async(torch.tensor([float(rank + step)]), op=hvd.Sum, name="mine")
        theirs = torch.tensor([float(rank * step)])
        work = dist.all_reduce(theirs, async_op=True)
        total = sum(range(size))
        same("maypole.torch", [hvd.synchronize(ours)], [torch.tensor([float(total + size * step)])])
        work.wait()
        same("the group", [theirs], [torch.tensor([float(total * step)])])
        if evens is not None and rank % 2 == 0:
            hvd.allreduce(torch.ones(1), process_set=evens, name="of evens")
    model = torch.nn.Linear(3, 2)
    hvd.broadcast_parameters(model.state_dict(), 0)
    wrapped = DistributedDataParallel(model)
    wrapped(torch.full((1, 3), float(rank))).sum().backward()
    same("DDP's gradient", [model.weight.grad], [torch.full((2, 3), (size - 1) / 2)])


def mixed(rank, size):
    """Several backends in one group: each device's tensors go to its backend."""
    # (The default group must be made anew: subgroups have backends of their own.)
    again("cpu:maypole,cuda:gloo")
    before = basics.counter("operations")
    tensor = torch.tensor([float(rank)])
    dist.all_reduce(tensor)
    same("maypole's", [tensor], [torch.tensor([float(sum(range(size)))])])
    assert basics.counter("operations") == before + 1
    assert dist.group.WORLD._get_backend(torch.device("cuda")).name() == "gloo"
    assert dist.group.WORLD._get_backend(torch.device("cpu")).name() == "maypole"
    group = dist.new_group(list(range(1, size)))
    if rank > 0:
        tensor = torch.tensor([float(rank)])
        dist.all_reduce(tensor, group=group)
        same("of a subgroup", [tensor], [torch.tensor([float(sum(range(size)))])])
        assert group._get_backend(torch.device("cuda")).name() == "gloo"
        dist.destroy_process_group(group)
    again("cpu:gloo,cuda:maypole")
    before = basics.counter("operations")
    tensor = torch.tensor([float(rank)])
    dist.all_reduce(tensor)
    work = dist.all_reduce(tensor, async_op=True)
    work.wait()
    outputs = [torch.zeros(1) for _ in range(size)]
    dist.all_gather(outputs, torch.tensor([float(rank)]))
    same("gloo's", [tensor] + outputs, [torch.tensor([float(size * sum(range(size)))])] +
         [torch.tensor([float(r)]) for r in range(size)])
    if TORCH >= (2, 15):  # older ones of Gloo have not all of these
        output = torch.zeros(size)
        dist.all_gather_into_tensor(output, torch.tensor([float(rank)]))
        same("gloo's all_gather_into_tensor", [output], [torch.arange(float(size))])
        dist.reduce_scatter(torch.zeros(1), [torch.ones(1)] * size)
    received = torch.zeros(1)
    works = [dist.isend(torch.tensor([float(rank)]), (rank + 1) % size), dist.irecv(received, (rank - 1) % size)]
    for work in works:
        work.wait()
    same("gloo's send", [received], [torch.tensor([float((rank - 1) % size)])])
    assert basics.counter("operations") == before, "an operation on the CPU was Maypole's"
    again("maypole")


def under_gloo(rank, size):
    """A group of Maypole's needs a default group of Maypole's."""
    path = [tempfile.mktemp(dir=os.environ["MAYPOLE_TEST_DIR"])]  # which all nodes see
    dist.broadcast_object_list(path, 0)
    dist.destroy_process_group()
    dist.init_process_group("gloo", init_method=f"file://{path[0]}", rank=rank, world_size=size)
    refused(RuntimeError, "needs a default group of it: call init_process_group('maypole')",
            lambda: dist.new_group(backend="maypole"))
    again("maypole")


def again(backend="maypole"):
    dist.barrier()
    dist.destroy_process_group()
    dist.init_process_group(backend)


def destroy(rank, size):
    """Destroyed and made again, with groups, receives from any rank, and works of before."""
    for n in range(3):
        group = dist.new_group(list(range(size)))
        tensor = torch.ones(1)
        dist.all_reduce(tensor, group=group)
        if rank == 0:
            for _ in range(size - 1):
                dist.recv(tensor)
        else:
            dist.send(torch.zeros(1), 0)
        again()
    if TORCH >= (2, 15):
        refused(dist.DistBackendError, "it was destroyed", lambda: group.allreduce([tensor]).wait())


PARTS = {
    "maypole.torch": (both_interfaces, (2, 1)),
    "any source": (work_parts.any_source, (2, 1)),
    "strangers": (strangers, (2, 1)),
    "sparse": (argument_parts.sparse, (2, 1)),
    "dtypes": (argument_parts.dtypes, (2, 1)),
    "many groups": (many, (2, 1)),
    "under way": (work_parts.under_way, (2, 1)),
    "sizes": (argument_parts.sizes, (2, 15)),
    "default device": (argument_parts.default_device, (2, 1)),
    "ranks": (argument_parts.ranks, (2, 15)),
    "short forms": (argument_parts.short_forms, (2, 15)),
    "inference": (argument_parts.inference, (2, 1)),
    "futures": (work_parts.futures, (2, 1)),
    "two stages": (work_parts.two_stages, (2, 15)),
    "join": (work_parts.join, (2, 15)),
    "order": (order, (2, 15)),
    "split": (split, (2, 15)),
    "several backends": (mixed, (2, 1)),
    "under Gloo": (under_gloo, (2, 15)),
    "again": (destroy, (2, 1)),
}


def main():
    dist.init_process_group("maypole")
    rank, size = dist.get_rank(), dist.get_world_size()
    names = [name for name in sys.argv[1:] or PARTS if TORCH >= PARTS[name][1]]
    for name in names:
        PARTS[name][0](rank, size)
    if rank == 0:
        print("right: " + "; ".join(names), flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
