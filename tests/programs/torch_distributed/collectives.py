"""Each operation of torch.distributed on the backend maypole and on Gloo, in the same ranks: equal results, bit for bit.

Started by a launcher, on $PROGRAMS_DEVICE (training.py). Rank 0 prints 'equal: N operations'; a rank that finds a
difference raises AssertionError, which names the operation.
"""

import inspect
from unittest import mock

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _make_nccl_premul_sum
from training import DEVICE

import maypole.torch.distributed  # noqa: F401 - torch before 2.15 does not find the backend itself
from maypole import _native
from maypole.common import operations

DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.int64, torch.uint8, torch.int8)
BYTES = (torch.bool, torch.complex64)  # of operations that only move data
SHAPES = ((1,), (7,), (3, 5), (64, 129), ())
if DEVICE.type == "cuda":
    SHAPES += ((20011, 7),)  # the others are small enough to go by the host
OPS = dist.ReduceOp
TORCH = tuple(int(n) for n in torch.__version__.split(".")[:2])
GLOO_SCATTERS = TORCH >= (2, 15)  # older ones have no reduce_scatter, or only one of its forms

compared = 0


def values(shape, dtype, seed, rank):
    """Small whole numbers, so that sums are exact in each dtype and any order."""
    generator = torch.Generator().manual_seed(1000 * seed + rank)
    numbers = torch.randint(0, 4, shape, generator=generator, device="cpu")
    return numbers.to(DEVICE, dtype)


def same(what, ours, theirs):
    global compared
    compared += 1
    for a, b in zip(ours, theirs):
        if a.dtype != b.dtype or a.shape != b.shape or not torch.equal(a, b):
            raise AssertionError(f"{what}: rank {dist.get_rank()} has {a}, Gloo {b}")


def both(what, groups, run):
    """run(group) returns a list of tensors."""
    ours, theirs = (run(group) for group in groups)
    same(what, ours, theirs)


def end(work):
    if work is not None:
        work.wait()


def reductions(groups, rank, size):
    for seed, shape in enumerate(SHAPES):
        for dtype in DTYPES:
            if dtype == torch.bfloat16 and TORCH < (2, 6):
                continue  # older ones of Gloo do not add them
            ops = [OPS.SUM, OPS.MIN, OPS.MAX, OPS.PRODUCT]
            if not dtype.is_floating_point:
                ops += [OPS.BAND, OPS.BOR, OPS.BXOR]
            for op in ops:
                for async_op in (False, True):
                    what = f"{op} of {dtype} {list(shape)}, async_op={async_op}"

                    def all_reduce(group):
                        tensor = values(shape, dtype, seed, rank)
                        end(dist.all_reduce(tensor, op, group, async_op))
                        return [tensor]

                    both("all_reduce " + what, groups, all_reduce)

                    def reduce(group):
                        tensor = values(shape, dtype, seed, rank)
                        end(dist.reduce(tensor, size - 1, op, group, async_op))
                        return [tensor] if rank == size - 1 else []

                    both("reduce " + what, groups, reduce)
            if shape and dtype not in (torch.float16, torch.bfloat16):

                def scattered(group):
                    output = torch.zeros(shape, dtype=dtype)
                    whole = values((size * shape[0],) + shape[1:], dtype, seed, rank)
                    if group is not groups[0] and not GLOO_SCATTERS:
                        dist.all_reduce(whole, group=group)
                        return [whole.chunk(size)[rank]]
                    dist.reduce_scatter_tensor(output, whole, group=group)
                    parts = torch.zeros(shape, dtype=dtype)
                    dist.reduce_scatter(parts, list(whole.chunk(size)), group=group)
                    same("the two reduce_scatters", [output], [parts])
                    return [output]

                both(f"reduce_scatter of {dtype} {list(shape)}", groups, scattered)


def moves(group, rank, size):
    """What only moves data, against what each rank has sent (Gloo has not all of these dtypes)."""
    for seed, shape in enumerate(SHAPES):
        for dtype in DTYPES + BYTES:
            what = f"of {dtype} {list(shape)}"
            of_rank = [values(shape, dtype, seed, r) for r in range(size)]

            def empty(rows=1):
                return torch.zeros((rows * shape[0],) + shape[1:] if shape else (), dtype=dtype)

            tensor = of_rank[rank].clone()
            dist.broadcast(tensor, size - 1, group)
            same("broadcast " + what, [tensor], [of_rank[-1]])
            outputs = [empty() for _ in range(size)]
            dist.all_gather(outputs, of_rank[rank], group, async_op=True).wait()
            same("all_gather " + what, outputs, of_rank)
            outputs = [empty() for _ in range(size)] if rank == 0 else None
            dist.gather(of_rank[rank], outputs, 0, group)
            same("gather " + what, outputs or [], of_rank if rank == 0 else [])
            output = empty()
            dist.scatter(output, of_rank if rank == size - 1 else None, size - 1, group)
            same("scatter " + what, [output], [of_rank[rank]])
            if not shape:
                continue
            output = empty(size)
            dist.all_gather_into_tensor(output, of_rank[rank], group)
            same("all_gather_into_tensor " + what, [output], [torch.cat(of_rank)])
            whole = [values((size * shape[0],) + shape[1:], dtype, seed, r) for r in range(size)]
            output = empty(size)
            dist.all_to_all_single(output, whole[rank], group=group)
            same("all_to_all_single " + what, [output], [torch.cat([w.chunk(size)[rank] for w in whole])])
    # Rank r sends r + s + 1 rows to rank s.
    rows = [[[100.0 * r + s] * 3] * (r + s + 1) for r in range(size) for s in range(size)]
    sent = [torch.tensor(rows[rank * size + s]) for s in range(size)]
    received = [torch.tensor(rows[s * size + rank]) for s in range(size)]
    output = torch.zeros(sum(len(t) for t in received), 3)
    dist.all_to_all_single(output, torch.cat(sent), [len(t) for t in received], [len(t) for t in sent], group)
    same("all_to_all_single with splits", [output], [torch.cat(received)])


def only_ours(ours, rank, size):
    """What Gloo cannot do, or says otherwise: against the values themselves."""
    tensor = torch.full((5,), float(rank))
    dist.all_reduce(tensor, OPS.AVG, ours)
    same("AVG", [tensor], [torch.full((5,), (size - 1) / 2)])
    outputs = [torch.zeros(s + 1) for s in range(size)]
    dist.all_gather(outputs, torch.full((rank + 1,), float(rank)), ours)
    same("all_gather of uneven tensors", outputs, [torch.full((s + 1,), float(s)) for s in range(size)])
    outputs = [torch.zeros(2) for _ in range(size)]
    dist.all_to_all(outputs, [torch.full((2,), 10.0 * rank + s) for s in range(size)], ours)
    same("all_to_all", outputs, [torch.full((2,), 10.0 * s + rank) for s in range(size)])
    tensor = torch.arange(12.0).reshape(3, 4).t() + rank  # not contiguous
    dist.all_reduce(tensor, OPS.SUM, ours)
    same("all_reduce of a transposed tensor", [tensor],
         [size * torch.arange(12.0).reshape(3, 4).t() + sum(range(size))])
    for op in (OPS.BAND, OPS.BOR, OPS.BXOR):
        whole, output = (torch.arange(4 * size) * 7 + rank * 5 + 3) % 13, torch.zeros(4, dtype=torch.int64)
        dist.reduce_scatter_tensor(output, whole, op, ours)
        dist.all_reduce(whole, op, ours)
        same(f"reduce_scatter_tensor, {op}", [output], [whole.chunk(size)[rank]])
    many = [torch.full((n,), float(rank)) for n in (1, 100, 3)]
    dist.all_reduce_coalesced(many, OPS.SUM, ours)
    same("all_reduce_coalesced", many, [torch.full((n,), float(sum(range(size)))) for n in (1, 100, 3)])
    tensor = torch.full((4,), float(rank))
    dist.all_reduce(tensor, _make_nccl_premul_sum(0.5), ours)
    same("PREMUL_SUM", [tensor], [torch.full((4,), 0.5 * sum(range(size)))])
    tensor = torch.full((4,), float(rank))
    future = dist.all_reduce(tensor, OPS.SUM, ours, async_op=True).get_future()
    (value,) = future.wait()
    same("the future's value", [value], [torch.full((4,), float(sum(range(size))))])
    if value.data_ptr() != tensor.data_ptr():
        raise AssertionError("the future's value is not the tensor")


def objects(group, rank, size):
    gathered = [None] * size
    dist.all_gather_object(gathered, {"rank": rank, "text": "x" * rank}, group)
    assert gathered == [{"rank": r, "text": "x" * r} for r in range(size)], gathered
    sent = ["from the last", {"rank": rank}] if rank == size - 1 else [None, None]
    dist.broadcast_object_list(sent, size - 1, group)
    assert sent == ["from the last", {"rank": size - 1}], sent


def point_to_point(rank, size):
    """Matched by sender, receiver and tag, each in its own order."""
    following, before = (rank + 1) % size, (rank - 1) % size

    def sent(source, number, shape=(5,)):
        return torch.full(shape, 100.0 * source + number)

    received = [torch.zeros(5) for _ in range(4)]
    # All send first: a rank that waited in its send would wait for ever.
    works = [dist.isend(sent(rank, n), following, tag=n % 2) for n in range(4)]
    works += [dist.irecv(received[n], before, tag=n % 2) for n in (1, 3, 0, 2)]
    for work in reversed(works):
        work.wait()
    same("isend and irecv in a ring", received, [sent(before, n) for n in range(4)])
    big, part = torch.zeros(300_000), torch.zeros(4, 6).t()
    operations = [dist.P2POp(dist.isend, sent(rank, 7, (300_000,)), following),
                  dist.P2POp(dist.irecv, big, before),
                  dist.P2POp(dist.isend, sent(rank, 8, (6, 4)), before),
                  dist.P2POp(dist.irecv, part, following)]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    same("batch_isend_irecv", [big, part], [sent(before, 7, (300_000,)), sent(following, 8, (6, 4))])
    if rank == 0:
        dist.send(torch.tensor([True, False]), size - 1)
        future = dist.isend(sent(0, 9), size - 1).get_future()
        future.wait()
    elif rank == size - 1:
        flags = torch.zeros(2, dtype=torch.bool)
        assert dist.recv(flags, 0) == 0
        late = torch.zeros(5)
        dist.irecv(late, 0).get_future().wait()
        same("recv", [flags, late], [torch.tensor([True, False]), sent(0, 9)])
    if not hasattr(dist, "send_object_list"):
        pass
    elif rank == 0:
        dist.send_object_list([{"rank": rank}], following)
    elif before == 0:
        objects = [None]
        dist.recv_object_list(objects, 0)
        assert objects == [{"rank": 0}], objects
    dist.barrier()


def subgroups(rank, size):
    """Groups of some ranks; two of the same ranks; each with its own order."""
    # new_group() is called by all, but only members make the group.
    evens = dist.new_group(list(range(0, size, 2)))
    last = dist.new_group([size - 1])
    again = dist.new_group(list(range(0, size, 2)))
    members = (size + 1) // 2
    if rank % 2 == 0:
        tensors = [torch.tensor([1.0 + i]) for i in range(3)]
        works = [dist.all_reduce(tensor, group=group, async_op=True)
                 for tensor, group in zip(tensors, (evens, again, evens))]
        for work in reversed(works):
            work.wait()
        same("groups of the same ranks", tensors, [torch.tensor([members * (1.0 + i)]) for i in range(3)])
        assert dist.get_world_size(evens) == members and dist.get_rank(evens) == rank // 2
    if rank == size - 1:
        tensor = torch.tensor([5.0])
        dist.all_reduce(tensor, group=last)
        same("a group of one rank", [tensor], [torch.tensor([5.0])])
    dist.barrier()


def hints(ours):
    """Who waits at once says so to the library, which then wakes no other thread, and asks other nodes at once."""
    if not hasattr(dist.AllreduceOptions(), "asyncOp"):
        return
    awaited = []
    start = operations.start

    def noted(pending):
        awaited.append(dict(zip(inspect.signature(_native.Library.packed).parameters, (None, *pending.arguments)))["awaited"])
        return start(pending)

    with mock.patch.object(operations, "start", noted):
        tensor = torch.ones(3)
        dist.all_reduce(tensor, group=ours)
        dist.all_reduce(tensor, group=ours, async_op=True).wait()
        dist.broadcast(tensor, 0, ours)
        dist.all_gather([torch.ones(3) for _ in range(dist.get_world_size())], tensor, ours, async_op=True).wait()
    same("who waits at once", [torch.tensor(awaited)], [torch.tensor([True, False, True, False])])


def main():
    if DEVICE.type == "cuda":  # also of tensors that name none
        torch.set_default_device(DEVICE)
    bound = DEVICE.type == "cuda" or TORCH >= (2, 15)  # older versions bind no group to CPUs
    dist.init_process_group("maypole", **({"device_id": torch.device(DEVICE.type, 0)} if bound else {}))
    rank, size = dist.get_rank(), dist.get_world_size()
    assert dist.get_backend() == "maypole", dist.get_backend()
    gloo = dist.new_group(backend="gloo")
    groups = (dist.group.WORLD, gloo)
    reductions(groups, rank, size)
    moves(dist.group.WORLD, rank, size)
    only_ours(dist.group.WORLD, rank, size)
    hints(dist.group.WORLD)
    objects(None, rank, size)
    point_to_point(rank, size)
    subgroups(rank, size)
    if rank == 0:
        print(f"equal: {compared} operations", flush=True)
    if TORCH >= (2, 15):  # before, or a little earlier, of Gloo's groups only
        dist.monitored_barrier()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
