"""Checks the results of every collective, dtype and calling style of this version."""

import torch

import maypole.torch as hvd
import rank

FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
INTS = [torch.uint8, torch.int32, torch.int64]
SMALL = [torch.int8, torch.int16, torch.bool]
# Elements: nothing, one, less and more than a slice, several chunks of 512 KiB.
SIZES = [0, 1, 17, 5000, 400001]

checks = 0


def expect(got, want, what):
    global checks
    checks += 1
    if got.dtype != want.dtype or got.shape != want.shape or not torch.equal(got, want):
        raise AssertionError("rank %d: %s: got %s, want %s" % (
            hvd.rank(), what, got.flatten()[:8], want.flatten()[:8]))


def values(n, dtype, r):
    """Small integers, so that sums are exact in every dtype."""
    return ((torch.arange(n) + 3 * r) % 7).to(dtype)


def check_allreduce():
    size = hvd.size()
    for dtype in FLOATS + INTS:
        for n in SIZES:
            want = sum(values(n, dtype, r).to(torch.float64) for r in range(size))
            mine = values(n, dtype, hvd.rank())
            what = "allreduce %s[%d]" % (dtype, n)
            expect(hvd.allreduce(mine, op=hvd.Sum, name="s"), want.to(dtype), what)
            expect(mine, values(n, dtype, hvd.rank()), what + " input")
            in_place = mine.clone()
            result = hvd.allreduce_(in_place, op=hvd.Sum, name="s")
            assert result.data_ptr() == in_place.data_ptr()
            expect(in_place, want.to(dtype), what + " in place")
            average = want / size
            if dtype in INTS:
                average = torch.trunc(average)
            expect(hvd.allreduce(mine, name="a"), average.to(dtype), what + " average")


def reduced(op, inputs):
    """The result of `op` on all ranks' inputs, which is exact in any order."""
    if inputs[0].dtype == torch.bool:
        any_of = op in (hvd.Sum, hvd.Max)
        return torch.stack(inputs).any(dim=0) if any_of else torch.stack(inputs).all(dim=0)
    stacked = torch.stack([x.to(torch.float64) for x in inputs])
    result = {
        hvd.Sum: lambda: stacked.sum(dim=0),
        hvd.Average: lambda: stacked.sum(dim=0) / len(inputs),
        hvd.Min: lambda: stacked.min(dim=0).values,
        hvd.Max: lambda: stacked.max(dim=0).values,
        hvd.Product: lambda: stacked.prod(dim=0),
    }[op]()
    return result.to(inputs[0].dtype)  # truncates, as integer averages do


def check_reductions():
    for dtype in FLOATS + INTS + SMALL:
        for op in (hvd.Sum, hvd.Min, hvd.Max, hvd.Product):
            for n in (0, 17, 5000, 400001):
                if n > 5000 and dtype not in (torch.float32, torch.bool):
                    continue
                parts = [((torch.arange(n) + r) % 3 % 2 + (dtype != torch.bool)).to(dtype)
                         for r in range(hvd.size())]
                got = hvd.allreduce(parts[hvd.rank()], op=op, name="op%d" % op)
                expect(got, reduced(op, parts), "op %d of %s[%d]" % (op, dtype, n))


def check_scales():
    x = torch.full((1000,), float(hvd.rank() + 1))
    total = sum(range(1, hvd.size() + 1))
    got = hvd.allreduce(x, op=hvd.Sum, prescale_factor=0.5, postscale_factor=4.0)
    expect(got, torch.full((1000,), 2.0 * total), "scales")


def check_large_float16():
    """Averages of numbers whose sums, also over one node's ranks, float16 does not have."""
    for n in (17, 400001):
        x = torch.full((n,), 60000.0, dtype=torch.float16)
        for step in range(6):  # small operations of several nodes begin differently
            what = "float16 average of 60000 [%d], step %d" % (n, step)
            expect(hvd.allreduce(x, name="large%d" % n), x, what)
            got = hvd.allreduce(x, op=hvd.Sum, postscale_factor=1 / hvd.size(), name="scaled%d" % n)
            assert torch.allclose(got, x, rtol=1e-3), (what, got[:3])
        infinite = hvd.allreduce(x / (hvd.rank() != 0), name="infinite%d" % n)
        expect(infinite, torch.full_like(x, float("inf")), "float16 average of an infinity")


def check_broadcast():
    for dtype in FLOATS + INTS + SMALL:
        for n in SIZES:
            for root in (0, hvd.size() - 1):
                mine = values(n, dtype, hvd.rank())
                want = values(n, dtype, root)
                what = "broadcast %s[%d] from %d" % (dtype, n, root)
                expect(hvd.broadcast(mine, root), want, what)
                expect(mine, values(n, dtype, hvd.rank()), what + " input")
                hvd.broadcast_(mine, root)
                expect(mine, want, what + " in place")


def check_allgather():
    for dtype in FLOATS + INTS + SMALL:
        for rows in (0, 1, 100, 30000):
            count = lambda r: rows if r % 2 else rows // 2
            part = lambda r: values(count(r) * 3, dtype, r).reshape(-1, 3)
            got = hvd.allgather(part(hvd.rank()))
            want = torch.cat([part(r) for r in range(hvd.size())])
            expect(got, want, "allgather %s rows %d" % (dtype, rows))


def split(sender, receiver, scale):
    """The number of rows from one rank to another, sometimes 0."""
    return (3 * sender + 2 * receiver + 1) % 5 * scale


def piece(sender, receiver, scale, dtype):
    rows = split(sender, receiver, scale)
    return ((torch.arange(rows * 3) + 5 * sender + 11 * receiver) % 100).to(dtype).reshape(rows, 3)


def check_alltoall():
    ranks, me = range(hvd.size()), hvd.rank()
    for dtype in FLOATS + INTS + SMALL:
        for scale in (0, 1, 77, 9001):
            if scale > 77 and dtype not in (torch.float32, torch.uint8):
                continue
            what = "alltoall %s scale %d" % (dtype, scale)
            mine = torch.cat([piece(me, r, scale, dtype) for r in ranks])
            rows, received = hvd.alltoall(mine, [split(me, r, scale) for r in ranks], name="a2a")
            expect(rows, torch.cat([piece(r, me, scale, dtype) for r in ranks]), what)
            expect(received, torch.tensor([split(r, me, scale) for r in ranks], dtype=torch.int32), what)
    even = torch.arange(2.0 * hvd.size()) + 100 * me
    want = torch.cat([torch.arange(2.0) + 100 * r + 2 * me for r in ranks])
    expect(hvd.alltoall(even), want, "even alltoall")


def scattered(x):
    return x.tensor_split(hvd.size())[hvd.rank()]


def check_reducescatter():
    for dtype in FLOATS + INTS:
        for rows in (0, 1, hvd.size(), 2 * hvd.size() + 1, 10007):
            for op in (hvd.Sum, hvd.Average):
                parts = [values(rows * 2, dtype, r).reshape(rows, 2) for r in range(hvd.size())]
                mine = parts[hvd.rank()].clone()
                got = hvd.reducescatter(mine, op=op, name="rs")
                what = "reducescatter %s rows %d op %d" % (dtype, rows, op)
                expect(got, scattered(reduced(op, parts)), what)
                expect(mine, parts[hvd.rank()], what + " input")
    x = torch.ones(hvd.size(), 2) * (hvd.rank() + 1)
    total = float(sum(range(1, hvd.size() + 1)))
    got = hvd.reducescatter(x, op=hvd.Sum, prescale_factor=0.5, postscale_factor=4.0)
    expect(got, torch.full((1, 2), 2.0 * total), "scaled reducescatter")


def check_groups():
    ranks, me = range(hvd.size()), hvd.rank()
    parts = [[torch.full((r + 1, 2), float(r)), torch.arange(5 + r)] for r in ranks]
    for step in range(3):
        for i, got in enumerate(hvd.grouped_allgather(parts[me], name="ga")):
            expect(got, torch.cat([p[i] for p in parts]), "grouped allgather %d" % step)
    parts = [[torch.arange(7.0) + r, torch.full((5, 3), r)] for r in ranks]
    for step in range(3):
        for i, got in enumerate(hvd.grouped_reducescatter(parts[me], name="gr", op=hvd.Sum)):
            expect(got, scattered(reduced(hvd.Sum, [p[i] for p in parts])), "grouped reducescatter %d" % step)
    # Refused as a whole: no member goes out, and their names are free.
    if hvd.size() == 1:
        return  # nothing is pending for long
    if me == 0:
        blocked = hvd.allreduce_async(torch.ones(1), name="whole.1of2", op=hvd.Sum)
        try:
            hvd.grouped_allreduce([torch.ones(1), torch.ones(1)], name="whole", op=hvd.Sum)
            raise AssertionError("a pending name was accepted")
        except ValueError as e:
            assert "whole.1of2" in str(e), e
        first = hvd.allreduce_async(torch.ones(1), name="whole.0of2", op=hvd.Sum)
        got = [hvd.synchronize(first), hvd.synchronize(blocked)]
    else:
        got = hvd.grouped_allreduce([torch.ones(1), torch.ones(1)], name="whole", op=hvd.Sum)
    for x in got:
        expect(x, torch.full((1,), float(hvd.size())), "after a refused group")


def check_gradients():
    size, me, weight = hvd.size(), hvd.rank(), float(hvd.rank() + 1)
    mean = sum(range(1, size + 1)) / size
    splits = [split(me, r, 1) for r in range(size)]
    x = torch.ones(sum(splits), 2, requires_grad=True)
    rows, _ = hvd.alltoall(x, splits, name="grad")
    (rows * weight).sum().backward()
    receivers = torch.cat([torch.full((n, 2), r + 1.0) for r, n in enumerate(splits)])
    expect(x.grad, receivers, "gradient of alltoall")

    owners = torch.cat([torch.full((len(part),), r + 1.0)
                        for r, part in enumerate(torch.arange(2 * size + 1).tensor_split(size))])
    for op, factor in ((hvd.Sum, size), (hvd.Average, 1)):
        x = torch.ones(2 * size + 1, requires_grad=True)
        y = torch.ones(2 * size + 1, requires_grad=True)
        z = torch.ones(2 * size + 1, requires_grad=True)
        (hvd.reducescatter(x, op=op, name="grad") * weight).sum().backward()
        first, second = hvd.grouped_reducescatter([y, z], op=op)
        ((first.sum() + 2 * second.sum()) * weight).backward()
        for got, times in ((x, 1), (y, 1), (z, 2)):
            expect(got.grad, owners * factor * times, "gradient of reducescatter, op %d" % op)

    x = torch.ones(me + 1, requires_grad=True)
    y = torch.ones(1, requires_grad=True)
    first, second = hvd.grouped_allgather([x, y], name="grads")
    ((first.sum() + 2 * second.sum()) * weight).backward()
    assert torch.allclose(x.grad, torch.full((me + 1,), mean)), x.grad
    assert torch.allclose(y.grad, torch.full((1,), 2 * mean)), y.grad


def check_async_in_any_order():
    """Ranks submit in different orders; all are in flight at once."""
    names = ["t%d" % i for i in range(40)]
    for step in range(5):
        order = names[hvd.rank() * 7 % 40:] + names[:hvd.rank() * 7 % 40]
        if hvd.rank() % 2:
            order.reverse()
        tensors = {n: torch.full((1 + 997 * i,), float(hvd.rank() + step))
                   for i, n in enumerate(names)}
        handles = {n: hvd.allreduce_async_(tensors[n], op=hvd.Sum, name=n) for n in order}
        want = float(sum(r + step for r in range(hvd.size())))
        for n in names:
            hvd.synchronize(handles[n])
            expect(tensors[n], torch.full_like(tensors[n], want), "async " + n)


def check_many_new_names():
    """A first step of a large model: a thousand names the executor has not seen."""
    n = 1000
    tensors = [torch.full((3,), float(i + hvd.rank())) for i in range(n)]
    handles = [hvd.allreduce_async_(t, op=hvd.Sum, name="new%d" % i) for i, t in enumerate(tensors)]
    for i, handle in enumerate(handles):
        hvd.synchronize(handle)
        expect(tensors[i], torch.full((3,), float(sum(i + r for r in range(hvd.size())))), "new name %d" % i)


def check_poll():
    handle = hvd.allreduce_async(torch.ones(100000), op=hvd.Sum, name="polled")
    while not hvd.poll(handle):
        pass
    expect(hvd.synchronize(handle), torch.full((100000,), float(hvd.size())), "poll")


def check_objects_and_grouped():
    for root in range(hvd.size()):
        got = hvd.broadcast_object({"rank": hvd.rank(), "x": list(range(1000))}, root)
        assert got == {"rank": root, "x": list(range(1000))}, got
    tensors = [torch.full((i + 1,), float(hvd.rank())) for i in range(5)]
    total = float(sum(range(hvd.size())))
    for i, t in enumerate(hvd.grouped_allreduce(tensors, op=hvd.Sum, name="g")):
        expect(t, torch.full((i + 1,), total), "grouped")


def main():
    rank.started()
    hvd.init()
    assert (hvd.rank(), hvd.size()) == (rank.RANK, int(rank.os.environ["MAYPOLE_SIZE"]))
    check_allreduce()
    check_reductions()
    check_scales()
    check_large_float16()
    check_broadcast()
    check_allgather()
    check_alltoall()
    check_reducescatter()
    check_groups()
    check_gradients()
    check_async_in_any_order()
    check_many_new_names()
    check_poll()
    check_objects_and_grouped()
    for _ in range(3):
        hvd.barrier()
    rank.record(checks=checks, local_rank=hvd.local_rank(), local_size=hvd.local_size(),
                cross_rank=hvd.cross_rank(), cross_size=hvd.cross_size(),
                homogeneous=hvd.is_homogeneous())
    hvd.shutdown()


if __name__ == "__main__":
    main()
