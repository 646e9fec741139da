"""Every collective, dtype and calling style of this version, with values."""

import torch

import maypole.torch as hvd
import rank

FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
INTS = [torch.uint8, torch.int32, torch.int64]
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


def check_scales():
    x = torch.full((1000,), float(hvd.rank() + 1))
    total = sum(range(1, hvd.size() + 1))
    got = hvd.allreduce(x, op=hvd.Sum, prescale_factor=0.5, postscale_factor=4.0)
    expect(got, torch.full((1000,), 2.0 * total), "scales")


def check_broadcast():
    for dtype in FLOATS + INTS:
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
    for dtype in FLOATS + INTS:
        for rows in (0, 1, 100, 30000):
            count = lambda r: rows if r % 2 else rows // 2
            part = lambda r: values(count(r) * 3, dtype, r).reshape(-1, 3)
            got = hvd.allgather(part(hvd.rank()))
            want = torch.cat([part(r) for r in range(hvd.size())])
            expect(got, want, "allgather %s rows %d" % (dtype, rows))


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
    check_scales()
    check_broadcast()
    check_allgather()
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
