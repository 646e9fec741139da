"""Groups, dtypes and receives of torch.distributed that collectives.py does not cover, compared with expected values.

Started by a launcher, on at least two ranks. Arguments name the parts to run; without any, all that this torch
supports. Rank 0 prints 'right: NAMES'.
"""

import datetime
import functools
import json
import os
import socket
import sys
import tempfile
import time

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

import maypole.torch as hvd
import maypole.torch.distributed  # noqa: F401 - torch before 2.15 does not find the backend itself
from maypole.common import basics, operations
from maypole.torch.distributed import _world

OPS = dist.ReduceOp
TORCH = tuple(int(n) for n in torch.__version__.split(".")[:2])


def same(what, ours, right):
    for a, b in zip(ours, right):
        if a.dtype != b.dtype or a.shape != b.shape or not torch.equal(a, b):
            raise AssertionError(f"{what}: rank {dist.get_rank()} has {a}, expected {b}")


def refused(error, text, function):
    try:
        function()
    except error as e:
        assert text in str(e), e
    else:
        raise AssertionError(f"no error: {text}")


def sent(source, number, shape=(5,)):
    return torch.full(shape, 100.0 * source + number)


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


def any_source(rank, size):
    """The order per sender and tag; receives in their order; a named receive behind one from any rank."""
    each = 20
    if rank == 0:
        seen = {}
        for _ in range(each * (size - 1)):
            tensor = torch.zeros(5)
            source = dist.recv(tensor, tag=3)
            same(f"message from {source}", [tensor], [sent(source, seen.get(source, 0))])
            seen[source] = seen.get(source, 0) + 1
        assert seen == {source: each for source in range(1, size)}, seen
        # Not contiguous, large, and by another tag that rank 1 has used before.
        tensor = torch.zeros(600, 500).t()
        assert dist.recv(tensor, tag=4) == 1
        same("a large message", [tensor], [sent(1, 7, (500, 600))])
    else:
        works = [dist.isend(sent(rank, n), 0, tag=3) for n in range(each)]
        if rank == 1:
            works.append(dist.isend(sent(1, 7, (500, 600)), 0, tag=4))
        for work in works:
            work.wait()
    dist.barrier()
    if rank == 0:
        tensors = [torch.zeros(5) for _ in range(3)]
        # The first gets rank 1's first message, so the second, which names rank 1, gets the next one.
        works = [dist.irecv(tensors[0], tag=5), dist.irecv(tensors[1], 1, tag=5)]
        future = works[0].get_future()
        assert not works[0].is_completed() and not works[1].is_completed()
        dist.recv(torch.zeros(1), 1, tag=6)  # of another tag: passes by
        dist.send(torch.zeros(1), 1, tag=6)
        future.wait()
        for work in works:
            work.wait()
        dist.recv(tensors[2], 1, tag=5)  # none from any rank waits any more
        same("one from any rank, then named ones", tensors, [sent(1, n) for n in range(3)])
        assert works[0]._source_rank() == 1
    elif rank == 1:
        dist.send(torch.zeros(1), 0, tag=6)
        dist.recv(torch.zeros(1), 0, tag=6)
        for n in range(3):
            dist.send(sent(1, n), 0, tag=5)
    dist.barrier()
    group = dist.new_group(list(range(size)))
    if rank == size - 1:
        for _ in range(size - 1):
            tensor = torch.zeros(5)
            source = dist.recv(tensor, group=group)
            same("in a group", [tensor], [sent(source, 50)])
        refused(ValueError, "the tag is 300, expected 0 to 255", lambda: dist.recv(torch.zeros(1), tag=300))
        work = dist.irecv(torch.zeros(1), tag=9)
        others = ",".join(str(r) for r in range(size - 1))
        refused(dist.DistBackendError, f"has not ended in 0.2 s: of ranks {others} none has sent with tag 9",
                lambda: work.wait(datetime.timedelta(seconds=0.2)))
        dist.send(torch.zeros(1), 0)
        work.wait()
    else:
        dist.send(sent(rank, 50), size - 1, group=group)
        if rank == 0:
            dist.recv(torch.zeros(1), size - 1)
            dist.send(torch.zeros(1), size - 1, tag=9)
    dist.barrier()


def sparse(rank, size):
    """As Gloo's: the sum, coalesced; ranks have other indices, one of them none."""
    gloo = dist.new_group(backend="gloo")
    for dense in ((), (3,)):
        indices = torch.tensor([[0, rank, 4, 0], [1, 2, 0, 1]])
        values = torch.arange(1.0, 5.0) if not dense else torch.arange(12.0).reshape(4, 3)
        if rank == size - 1:
            indices, values = indices[:, :0], values[:0]
        results = []
        for group in (None, gloo):
            tensor = torch.sparse_coo_tensor(indices, values, (5, 6) + dense)
            dist.all_reduce(tensor, group=group)
            results.append(tensor.coalesce())
        ours, theirs = results
        same("sparse", [ours.indices(), ours.values(), ours.to_dense()],
             [theirs.indices(), theirs.values(), theirs.to_dense()])
    refused(ValueError, "is not SUM", lambda: dist.all_reduce(tensor, OPS.MAX))


def dtypes(rank, size):
    """Whatever has bytes can be moved; sums of complex numbers; bool; empty tensors; not contiguous ones."""
    names = ("float8_e4m3fn", "float8_e5m2", "uint16", "uint32", "uint64", "complex64", "complex128", "bool", "int16")

    def bare(tensor):  # some dtypes have no equal()
        flat = tensor.contiguous().reshape(-1)
        return flat.view(torch.uint8) if flat.numel() else torch.empty(0, dtype=torch.uint8)

    for dtype in [getattr(torch, name) for name in names if hasattr(torch, name)]:
        for shape in ((4,), (3, 4), (0,), ()):
            of_rank = [((torch.arange(12) + r) % 3).float().to(dtype)[:torch.Size(shape).numel()].reshape(shape)
                       for r in range(size)]

            def check(what, ours, expected):
                same(f"{what} of {dtype} {shape}", [bare(t) for t in ours], [bare(t) for t in expected])

            tensor = of_rank[rank].clone()
            dist.broadcast(tensor, size - 1)
            check("broadcast", [tensor], of_rank[-1:])
            outputs = [torch.empty(shape, dtype=dtype) for _ in range(size)]
            dist.all_gather(outputs, of_rank[rank])
            check("all_gather", outputs, of_rank)
            outputs = [torch.empty(shape, dtype=dtype) for _ in range(size)] if rank == 0 else None
            dist.gather(of_rank[rank], outputs, 0)
            check("gather", outputs or [], of_rank if rank == 0 else [])
            output = torch.empty(shape, dtype=dtype)
            dist.scatter(output, of_rank if rank == 0 else None, 0)
            check("scatter", [output], [of_rank[rank]])
            outputs = [torch.empty(shape, dtype=dtype) for _ in range(size)]
            dist.all_to_all(outputs, [of_rank[rank]] * size)
            check("all_to_all", outputs, of_rank)
            if shape:
                output = torch.empty((size * shape[0],) + shape[1:], dtype=dtype)
                dist.all_gather_into_tensor(output, of_rank[rank])
                check("all_gather_into_tensor", output.chunk(size) if output.numel() else [], of_rank)
            following, before = (rank + 1) % size, (rank - 1) % size
            received = torch.empty(shape, dtype=dtype)
            works = [dist.isend(of_rank[rank], following), dist.irecv(received, before)]
            for work in works:
                work.wait()
            check("send", [received], [of_rank[before]])
    for dtype in (torch.complex64, torch.complex128):
        tensor = torch.tensor([1 + 2j, rank * 1j], dtype=dtype)
        dist.all_reduce(tensor)
        same("sum", [tensor], [torch.tensor([size + 2j * size, sum(range(size)) * 1j], dtype=dtype)])
        output = torch.zeros(1, dtype=dtype)
        dist.reduce_scatter_tensor(output, torch.arange(float(size)).to(dtype) * 1j)
        same("reduce_scatter", [output], [torch.tensor([1j * rank * size], dtype=dtype)])
    tensor = torch.tensor([rank == 0, True, False])
    dist.all_reduce(tensor, OPS.MAX)
    same("bool", [tensor], [torch.tensor([True, True, False])])
    dist.all_reduce(tensor, OPS.BAND)
    same("bool BAND", [tensor], [torch.tensor([True, True, False])])
    for op in (OPS.SUM, OPS.MAX, OPS.BOR):
        tensor = torch.zeros((0, 3), dtype=torch.int32)
        dist.all_reduce(tensor, op)
        output = torch.zeros(0, dtype=torch.int32)
        dist.reduce_scatter_tensor(output, output.clone(), op)
    whole = torch.zeros(4, 6)
    dist.all_reduce(whole[:, ::2].fill_(rank))
    right = torch.zeros(4, 6)
    right[:, ::2] = sum(range(size))
    same("columns", [whole], [right])
    output = torch.zeros(3, 2 * size).t()  # not contiguous
    dist.all_gather_into_tensor(output, torch.full((3, 2), float(rank)).t())
    same("all_gather_into_tensor, not contiguous", [output],
         [torch.arange(float(size)).repeat_interleave(2)[:, None].expand(-1, 3)])


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


def under_way(rank, size):
    """More calls at once than there are names, also of those that repeat."""
    for number in (500, 500, 1500):
        tensors = [torch.full((3,), float(n + rank)) for n in range(number)]
        works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
        for work in reversed(works):
            work.wait()
        same("all_reduce", tensors, [torch.full((3,), float(sum(n + r for r in range(size)))) for n in range(number)])
    # None of these calls waits for the other ranks'.
    tensors = [torch.ones(3) for _ in range(100)]
    for _ in range(3):
        if rank > 0:
            dist.recv(torch.zeros(1), 0)
        works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
        if rank == 0:
            for other in range(1, size):
                dist.send(torch.zeros(1), other)
        for work in works:
            work.wait()
    same("all_reduce", tensors, [torch.full((3,), float(size ** 3))] * 100)
    # More messages than a tag has names.
    tensors = [torch.full((1,), float(n if rank == 0 else -1)) for n in range(2100)]
    if rank == 0:
        works = [dist.isend(tensor, 1, tag=7) for tensor in tensors]
    elif rank == 1:
        time.sleep(0.2)
        works = [dist.irecv(tensor, 0, tag=7) for tensor in tensors]
        works[-1].get_future().wait()
    if rank < 2:
        for work in works:
            work.wait()
        same("isend", tensors, [torch.full((1,), float(n)) for n in range(2100)])


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


def sizes(rank, size):
    """What is sent does not fit where it goes: an error on each rank that sees it, which names the sizes."""
    def of(*numbers):
        return [torch.full((n,), float(rank)) for n in numbers]

    def check(text, function):
        refused(dist.DistBackendError, text, function)

    last, rest = size - 1, size - 2
    sent = [3, 1] + [2] * rest if rank == 0 else [1, 3] + [2] * rest if rank == 1 else [2] * size
    if rank < 2:
        text = f"ranks have sent {sent} elements to its rank {rank}, whose output expects {[2] * size}"
        check("all_to_all_single, call ", lambda: dist.all_to_all_single(*of(2 * size, 2 * size), [2] * size, sent))
        check(text, lambda: dist.all_to_all(of(*[2] * size), of(*sent)))
    else:
        dist.all_to_all_single(*of(2 * size, 2 * size), [2] * size, sent)
        dist.all_to_all(of(*[2] * size), of(*sent))
    check(f"ranks have sent {[2] * size} elements to its rank {rank}, whose output expects {[2] * last + [1]}",
          lambda: dist.all_to_all_single(*of(2 * size - 1, 2 * size), [2] * last + [1], [2] * size))
    mine = 5 if rank == 0 else 3 if rank == 1 else 4
    check("rank 0 submitted [*, 5], rank 1 submitted [*, 3]", lambda: dist.all_gather(of(*[4] * size), *of(mine)))
    check(f"expects {[3, 4] + [4] * rest}", lambda: dist.all_gather(of(3, *[4] * (size - 1)), *of(mine)))
    check(f"the result has {3 * size} elements of torch.float32, the outputs {[4] * size} of torch.float32",
          lambda: dist.all_gather(of(*[4] * size), *of(3)))
    check(f"the result has {3 * size} elements of torch.float32, the outputs [{4 * size}] of torch.float32",
          lambda: dist.all_gather_into_tensor(*of(4 * size, 3)))
    check("the result has 2 elements of torch.float32, the outputs [3] of",
          lambda: dist.reduce_scatter_tensor(*of(3, 2 * size)))
    for op in (OPS.SUM, OPS.MAX):
        check("the result has 2 elements of torch.float32, the outputs [3] of",
              lambda: dist.reduce_scatter(*of(3), of(*[2] * size), op))
    check(f"the result has {rank + 1} elements of torch.float32, the outputs [9] of",
          lambda: dist.reduce_scatter(*of(9), of(*range(1, size + 1))))
    whole = torch.zeros(2 * size, dtype=torch.int32)
    check("elements of torch.float32, the outputs [2] of torch.int32",
          lambda: dist.reduce_scatter_tensor(whole[:2], *of(2 * size)))
    check(f"elements of torch.float32, the outputs [{2 * size}] of torch.int32",
          lambda: dist.all_gather_into_tensor(whole, *of(2)))
    refused(ValueError, f"a list has 1 entries, expected one for each of the group's {size} ranks",
            lambda: dist.group.WORLD.alltoall(of(1), of(1)).wait())
    gather = functools.partial(dist.gather, *of(6 if rank == 1 else 4), of(*[4] * size) if rank == 0 else None)
    scatter = functools.partial(dist.scatter, *of(1 if rank == 1 else 2), of(*[2] * size) if rank == 0 else None)
    for function, sees, text in ((gather, 0, f"sent {[4, 6] + [4] * rest} elements to its rank 0"),
                                 (scatter, 1, f"sent {[2] + [0] * last} elements to its rank 1")):
        if rank == sees:
            check(text, function)
        else:
            function()


def default_device(rank, size):
    """Calls in a block that makes tensors on another device, as programs that build models have it."""
    with torch.device("meta"):
        indices = torch.tensor([[rank]], device="cpu")
        tensor = torch.sparse_coo_tensor(indices, torch.ones(1, device="cpu"), (size,), device="cpu")
        dist.all_reduce(tensor)
        outputs = [torch.zeros(r, device="cpu") for r in range(size)]
        dist.all_gather(outputs, torch.full((rank,), float(rank), device="cpu"))
        dist.barrier()
    same("sparse", [tensor.to_dense()], [torch.ones(size)])
    same("all_gather", outputs, [torch.full((r,), float(r)) for r in range(size)])


def ranks(rank, size):
    """Roots and peers that are no ranks."""
    x, group = torch.ones(2), dist.group.WORLD
    for what, role, function in (("broadcast", "root", lambda: dist.broadcast(x, size)),
                                 ("reduce", "root", lambda: dist.reduce(x, size)),
                                 ("gather", "root", lambda: group.gather([], x, size)),
                                 ("scatter", "root", lambda: group.scatter(x, [], size)),
                                 ("send", "destination", lambda: dist.send(x, size)),
                                 ("recv", "source", lambda: dist.recv(x, size))):
        refused(ValueError, f"{what} of group 'world': the {role} is {size}, expected a rank of 0 to {size - 1}", function)
    refused(ValueError, f"recv of group 'world': the source is {rank}, which is this rank", lambda: dist.recv(x, rank))


def short_forms(rank, size):
    """A group's methods with tensors in place of lists, and single arguments in place of options."""
    group = dist.group.WORLD
    total = sum(range(size))

    def check(what, expected, call):
        x = torch.full((3,), float(rank))
        call(x).wait()
        same(what, [x], [torch.full((3,), float(expected))])

    def rows():
        return [torch.full((3,), float(r)) for r in range(size)]

    for what, expected, call in (("allreduce([x], op)", size - 1, lambda x: group.allreduce([x], OPS.MAX)),
                                 ("allreduce(x, op)", size - 1, lambda x: group.allreduce(x, OPS.MAX)),
                                 ("allreduce(x, op=)", size - 1, lambda x: group.allreduce(x, op=OPS.MAX)),
                                 ("allreduce(x)", total, lambda x: group.allreduce(x)),
                                 ("broadcast(x, root)", 1, lambda x: group.broadcast(x, 1)),
                                 ("broadcast(x, root=)", 1, lambda x: group.broadcast(x, root=1)),
                                 ("reduce(x, root, op)", rank if rank else size - 1,
                                  lambda x: group.reduce(x, 0, OPS.MAX)),
                                 ("scatter", rank, lambda x: group.scatter(x, rows() if rank == 0 else [], 0)),
                                 ("reduce_scatter", size * rank, lambda x: group.reduce_scatter(x, rows(), OPS.SUM))):
        check(what, expected, call)
    outputs = [torch.zeros(3) for _ in range(size)]
    group.allgather(outputs, torch.full((3,), float(rank))).wait()
    same("allgather", outputs, rows())
    outputs = [torch.zeros(3) for _ in range(size)] if rank == 0 else []
    group.gather(outputs, torch.full((3,), float(rank)), 0).wait()
    same("gather", outputs, rows())
    group.barrier(datetime.timedelta(seconds=30)).wait()


def inference(rank, size):
    """Results for tensors of inference mode, which the completion thread, or code after the block, stores."""
    with torch.inference_mode():
        outputs = [[torch.zeros(2) for _ in range(size)] for _ in range(2)]
        works = [dist.all_gather(each, torch.full((2,), float(rank)), async_op=True) for each in outputs]
        future = works[0].get_future()
    future.wait()
    works[1].wait()
    for each in outputs:
        same("all_gather", each, [torch.full((2,), float(r)) for r in range(size)])


def futures(rank, size):
    """Callbacks run in the order of the calls; what they call is matched apart; errors reach the last one."""
    ran, tensors, last = [], [torch.full((1 + n % 7 * 1000,), float(rank)) for n in range(60)], []
    total = float(sum(range(size)))

    def second(number, future):
        (tensor,) = future.value()
        if number % 3 == 0:
            (tensor,) = dist.all_reduce(tensor, async_op=True).get_future().wait()
        else:
            dist.all_reduce(tensor, async_op=True).wait()
        ran.append(number)
        return tensor

    def third(number, future):
        tensor = future.value().clone()
        dist.all_reduce(tensor)
        ran.append(number)
        return tensor

    for number, tensor in enumerate(tensors):
        future = dist.all_reduce(tensor, async_op=True).get_future()
        last.append(future.then(functools.partial(second, number)).then(functools.partial(third, number)))
        if number % 10 == rank:
            (value,) = future.wait()  # has its turn later
            assert future.done() and future.value()[0] is value
        dist.all_reduce(torch.ones(2))
    for tensor, future in zip(tensors, last):
        same("the last value", [future.wait()], [torch.full_like(tensor, total * size * size)])
    assert ran == [number for number in range(60) for _ in range(2)], ran
    # An operation that nobody waits for ends, and nothing keeps it; of older torches, C++ may still ask for its future.
    asked_later = tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 15)
    before = len(operations._submitted)
    for _ in range(50):
        dist.all_reduce(torch.ones(1 << 15), async_op=True)
    dist.barrier()
    deadline = time.monotonic() + 30
    while len(operations._submitted) > before and not asked_later:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    failing = dist.all_reduce(torch.ones(1), async_op=True).get_future().then(lambda f: 1 // 0).then(lambda f: f.value())
    refused(ZeroDivisionError, "by zero", failing.wait)


def two_stages(rank, size):
    """DDP's hooks that reduce in callbacks, with many buckets: the gradients are right."""
    def net():
        torch.manual_seed(0)
        return torch.nn.Sequential(*[torch.nn.Linear(16, 16, bias=False) for _ in range(8)]).double()

    def hook_on(group):
        def hook(state, bucket):
            def second(future):
                (tensor,) = future.value()
                dist.all_reduce(tensor, group=group, async_op=True).wait()
                return tensor / size ** 2

            return dist.all_reduce(bucket.buffer(), async_op=True).get_future().then(second)

        return None, hook

    # The gradients have at most the rank of the approximation, which is exact then.
    power = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=8, start_powerSGD_iter=2,
                                        min_compression_rate=0.1, use_error_feedback=False, orthogonalization_epsilon=0)
    for hook in (hook_on(None), hook_on(dist.new_group()), (power, powerSGD_hook.powerSGD_hook)):
        wrapped, alone = DistributedDataParallel(net(), bucket_cap_mb=0.001), net()
        wrapped.register_comm_hook(*hook)
        for step in range(5):
            x = torch.randn(size, 16, generator=torch.Generator().manual_seed(step), dtype=torch.double)
            for module, rows in ((wrapped, x[rank:rank + 1]), (alone, x)):
                module.zero_grad()
                module(rows).pow(2).mean().backward()
            for ours, right in zip(wrapped.parameters(), alone.parameters()):
                torch.testing.assert_close(ours.grad, right.grad, rtol=1e-6, atol=1e-10)


def join(rank, size):
    """DDP's join with divisors and unused parameters: C++ waits for a Work that Python has dropped."""
    for options, of_join in (({}, {"divide_by_initial_world_size": False}), ({"find_unused_parameters": True}, {})):
        torch.manual_seed(0)
        wrapped = DistributedDataParallel(torch.nn.Linear(8, 3), **options)
        optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1)
        with wrapped.join(**of_join):
            for step in range(1 + rank):
                optimizer.zero_grad()
                wrapped(torch.full((1, 8), float(step))).sum().backward()
                optimizer.step()
        right = torch.nn.Linear(8, 3)
        torch.manual_seed(0)
        right.reset_parameters()
        # The gradient of a row of weights is the step's input.
        left = [size - step for step in range(size)]
        gradient = sum(step * (1.0 if of_join else left[step] / size) for step in range(size))
        torch.testing.assert_close(wrapped.module.weight, right.weight - 0.1 * gradient)


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
    "any source": (any_source, (2, 1)),
    "strangers": (strangers, (2, 1)),
    "sparse": (sparse, (2, 1)),
    "dtypes": (dtypes, (2, 1)),
    "many groups": (many, (2, 1)),
    "under way": (under_way, (2, 1)),
    "sizes": (sizes, (2, 15)),
    "default device": (default_device, (2, 1)),
    "ranks": (ranks, (2, 15)),
    "short forms": (short_forms, (2, 15)),
    "inference": (inference, (2, 1)),
    "futures": (futures, (2, 1)),
    "two stages": (two_stages, (2, 15)),
    "join": (join, (2, 15)),
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
