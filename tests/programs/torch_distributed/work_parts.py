"""Parts of groups.py: works that are under way, receives from any rank, futures, and what DDP makes of them."""

import datetime
import functools
import time

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from maypole.common import operations

from checks import refused, same


def sent(source, number, shape=(5,)):
    return torch.full(shape, 100.0 * source + number)


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
