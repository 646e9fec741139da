"""Every function of `maypole` on NumPy arrays, and on every kind of array that this Python has, checked by value."""

import importlib
import itertools

import numpy as np

import maypole as hvd
import rank

checks = 0
FLOATS = ["float16", "float32", "float64"]
INTS = ["uint8", "int8", "uint16", "int16", "int32", "int64"]
try:
    import ml_dtypes
    FLOATS.append(ml_dtypes.bfloat16)
except ImportError:
    ml_dtypes = None
# Nothing, one element, less and more than a slice, several chunks.
SHAPES = [(), (0,), (1,), (17,), (3, 0, 2), (50, 4, 25), (400001,)]


def expect(got, want, what):
    global checks
    checks += 1
    assert isinstance(got, np.ndarray), (what, type(got))
    assert got.dtype == want.dtype and got.shape == want.shape and np.array_equal(got, want), "rank %d: %s: got %s %s, want %s" % (
        rank.RANK, what, got.dtype, got, want)


def values(shape, dtype, r):
    """Small integers, so that sums are exact in every dtype."""
    count = int(np.prod(shape))
    return ((np.arange(count) + 3 * r) % 7).astype(dtype).reshape(shape)


def check_dtypes(me, n):
    for dtype, shape in itertools.product(FLOATS + INTS, SHAPES):
        every = np.stack([values(shape, "float64", r) for r in range(n)])
        mine, what = values(shape, dtype, me), "%s%s" % (dtype, shape)
        as_dtype = lambda x: np.asarray(x).astype(dtype)
        expect(hvd.allreduce(mine, op=hvd.Sum, name="s"), as_dtype(every.sum(0)), "sum " + what)
        mean = every.sum(0) / n
        expect(hvd.allreduce(mine, name="a"), as_dtype(np.trunc(mean) if dtype in INTS else mean), "average " + what)
        expect(mine, values(shape, dtype, me), "the input " + what)
        for op, want in ((hvd.Min, every.min(0)), (hvd.Max, every.max(0))):
            expect(hvd.allreduce(mine, op=op, name="m"), as_dtype(want), "op %d %s" % (op, what))
        assert hvd.allreduce_(mine, op=hvd.Sum, name="i") is mine
        expect(mine, as_dtype(every.sum(0)), "in place " + what)
        mine = values(shape, dtype, me)
        expect(hvd.broadcast(mine, n - 1, "b"), values(shape, dtype, n - 1), "broadcast " + what)
        rows = np.concatenate([values(shape, dtype, r).reshape(shape or (1,)) for r in range(n)])
        expect(hvd.allgather(mine, "g"), rows, "allgather " + what)
        if shape:
            cut = lambda x: as_dtype(np.array_split(x, n)[me])
            expect(hvd.reducescatter(mine, "r", op=hvd.Sum), cut(every.sum(0)), "reducescatter " + what)
    some = lambda r: np.arange(6).reshape(2, 3) % (r + 2) == 0
    for op, want in ((hvd.Sum, np.logical_or), (hvd.Min, np.logical_and)):
        expect(hvd.allreduce(some(me), op=op), want.reduce([some(r) for r in range(n)]), "bool")


def check_forms(me, n):
    part = lambda r, k=0: np.arange(8.0).reshape(4, 2) * (k + 1) + r
    total = lambda k=0: sum(part(r, k) for r in range(n))
    mine = [part(me, k) for k in range(3)]
    wait = hvd.synchronize
    for k, (a, b) in enumerate(zip(hvd.grouped_allreduce(mine, op=hvd.Sum, name="g"),
                                   wait(hvd.grouped_allreduce_async(mine, op=hvd.Sum, name="h")))):
        expect(a, total(k), "grouped_allreduce")
        expect(b, total(k), "grouped_allreduce_async")
    expect(wait(hvd.allreduce_async(mine[0], average=False)), total(), "allreduce_async")
    expect(hvd.allreduce(mine[0], op=hvd.Sum, prescale_factor=0.5, postscale_factor=4.0), 2 * total(), "scales")
    ints = hvd.allreduce(np.full(3, 7 * (me + 1)), prescale_factor=0.5)
    expect(ints, np.full(3, int(sum(int(3.5 * (r + 1)) for r in range(n)) / n)), "scales of integers")
    for call in (hvd.grouped_allreduce_, lambda x, **k: wait(hvd.grouped_allreduce_async_(x, **k))):
        copies = [x.copy() for x in mine]
        call(copies, op=hvd.Sum, name="gi")
        for k in range(3):
            expect(copies[k], total(k), "grouped_allreduce_")
    copy = mine[0].copy()
    assert wait(hvd.allreduce_async_(copy, op=hvd.Sum)) is copy
    expect(copy, total(), "allreduce_async_")
    for call in (hvd.broadcast_, lambda *a: wait(hvd.broadcast_async_(*a))):
        copy = mine[0].copy()
        assert call(copy, 0) is copy
        expect(copy, part(0), "broadcast_")
    expect(wait(hvd.broadcast_async(mine[0], 0)), part(0), "broadcast_async")
    rows = np.concatenate([part(r) for r in range(n)])
    expect(wait(hvd.allgather_async(mine[0])), rows, "allgather_async")
    expect(hvd.grouped_allgather(mine, "gg")[0], rows, "grouped_allgather")
    expect(wait(hvd.grouped_allgather_async(mine))[0], rows, "grouped_allgather_async")
    expect(hvd.allgather(np.full((me, 2), me)), np.concatenate([np.full((r, 2), r) for r in range(n)]), "rows differ")
    cut = np.array_split(total(), n)[me]
    expect(wait(hvd.reducescatter_async(mine[0], op=hvd.Sum)), cut, "reducescatter_async")
    expect(hvd.grouped_reducescatter(mine, op=hvd.Sum)[0], cut, "grouped_reducescatter")
    expect(wait(hvd.grouped_reducescatter_async(mine, op=hvd.Sum))[0], cut, "grouped_reducescatter_async")
    expect(hvd.alltoall(np.full((n, 2), me)), np.repeat(np.arange(n), 2).reshape(n, 2), "alltoall")
    splits = [r + 1 for r in range(n)]
    for given, dtype in ((splits, "int32"), (np.array(splits), "int64"), (np.array(splits, "int32"), "int32")):
        for call in (hvd.alltoall, lambda *a: wait(hvd.alltoall_async(*a))):
            got, received = call(np.full(sum(splits), me), given)
            expect(got, np.repeat(np.arange(n), me + 1), "alltoall with splits")
            expect(received, np.full(n, me + 1, dtype), "received splits")
    assert hvd.poll(hvd.allreduce_async(mine[0], name="p")) in (True, False)


def check_layouts(me, n):
    """Arrays that are not contiguous, read-only ones, numbers."""
    base = np.arange(24.0).reshape(4, 6) + me
    total = sum(np.arange(24.0).reshape(4, 6) + r for r in range(n))
    for cut in (np.s_[:, ::2], np.s_[::-1], np.s_[1:3, 4], np.s_[..., 3:4], np.s_[::-1, ::-2]):
        expect(hvd.allreduce(base[cut], op=hvd.Sum), total[cut], "a part")
        whole = base.copy()
        part = whole[cut]
        assert hvd.allreduce_(part, op=hvd.Sum) is part
        want = base.copy()
        want[cut] = total[cut]
        expect(whole, want, "a part in place")
    expect(hvd.allreduce(base.T, op=hvd.Sum), total.T, "transposed")
    base.flags.writeable = False
    expect(hvd.allreduce(base, op=hvd.Sum), total, "read-only")
    expect(hvd.allreduce(base.mean() + 1, op=hvd.Sum), np.asarray(total.mean() + n), "a NumPy scalar")
    expect(hvd.allreduce(float(me)), np.asarray((n - 1) / 2), "a float")
    expect(hvd.allgather(me), np.arange(n), "an int")


def adasum(parts):
    """By the definition, pair by pair."""
    if len(parts) == 1:
        return parts[0]
    middle = 1 << ((len(parts) - 1).bit_length() - 1)
    a, b = adasum(parts[:middle]), adasum(parts[middle:])
    dot = (a * b).sum()
    return (1 - dot / (2 * (a * a).sum())) * a + (1 - dot / (2 * (b * b).sum())) * b


def check_adasum(me, n):
    part = lambda r: np.random.RandomState(r).normal(size=(7, 3)) + 1
    want = adasum([part(r) for r in range(n)])
    mine = part(me)
    got = hvd.allreduce(mine, op=hvd.Adasum)
    assert got.dtype == mine.dtype and np.abs(got - want).max() < 1e-12 and np.array_equal(mine, part(me))
    assert hvd.allreduce_(mine.T, op=hvd.Adasum, prescale_factor=2.0, name="a").shape == (3, 7)
    assert np.abs(mine - 2 * want).max() < 1e-12
    group = [part(me), part(me).astype("float32"), np.ones(2)]
    got = hvd.synchronize(hvd.grouped_allreduce_async(group, op=hvd.Adasum, postscale_factor=3.0, name="g"))
    assert np.abs(got[0] - 3 * want).max() < 1e-11 and got[1].dtype == np.float32 and got[2].tolist() == [3, 3]
    got = hvd.allreduce(part(me).astype("float32"), op=hvd.Adasum)
    assert got.dtype == np.float32 and np.abs(got - want).max() < 1e-5
    differing = error_of(lambda: hvd.allreduce(np.ones(3 + me % 2), op=hvd.Adasum, name="shapes"))
    assert "Adasum needs the same on all ranks" in differing


def check_set_and_objects(me, n):
    odd = hvd.add_process_set(range(1, n, 2))
    if odd.included():
        expect(hvd.allreduce(np.array([me]), op=hvd.Sum, process_set=odd), np.array([sum(odd.ranks)]), "a process set")
        assert hvd.broadcast_object(me, 1, process_set=odd) == 1
        assert hvd.allgather_object({me}, process_set=odd) == [{r} for r in odd.ranks]
    assert hvd.broadcast_object(["x" * 100000, me], 1)[1] == 1
    assert hvd.allgather_object("x" * me) == ["x" * r for r in range(n)]
    hvd.barrier()
    hvd.remove_process_set(odd)


def foreign():
    """(name, how to make such an array, whether it may change) of the libraries that this Python has."""
    for name, make, changes in (("torch", lambda m: lambda x: m.from_numpy(x.copy()), True),
                                ("jax.numpy", lambda m: m.asarray, False)):
        try:
            yield name, make(importlib.import_module(name)), changes
        except ImportError:
            pass


def check_foreign(me, n, names):
    for name, array, changes in foreign():
        names.append(name)
        part = lambda r: np.arange(6, dtype="float32").reshape(2, 3) * (r + 1)
        total = sum(part(r) for r in range(n))
        expect(hvd.allreduce(array(part(me)), op=hvd.Sum), total, name)
        expect(hvd.allreduce(array(part(me)).T, op=hvd.Sum), total.T, name + " transposed")
        expect(hvd.allgather(array(part(me))), np.concatenate([part(r) for r in range(n)]), name)
        expect(hvd.broadcast(array(part(me)), 1), part(1), name)
        if name != "torch":  # torch 1.13 has no bool in DLPack
            expect(hvd.allreduce(array(part(me) > 3), op=hvd.Max), part(n - 1) > 3, name + " bool")
        if changes:
            x = array(part(me))
            assert hvd.allreduce_(x.T, op=hvd.Sum) is not x
            expect(x.numpy(), total, name + " in place")
        else:
            assert "is read-only" in refusal_of(lambda: hvd.allreduce_(array(part(me))))
        if ml_dtypes is not None:
            x = array(np.full(3, me + 1.0, "float32"))
            x = x.bfloat16() if name == "torch" else x.astype("bfloat16")
            expect(hvd.allreduce(x, op=hvd.Sum), np.full(3, n * (n + 1) / 2, ml_dtypes.bfloat16), name + " bfloat16")


def refusal_of(call):
    try:
        call()
    except ValueError as error:
        return str(error)
    return None


def error_of(call):
    try:
        call()
    except hvd.HorovodInternalError as error:
        return str(error)
    return None


def main():
    hvd.init()
    me, n = hvd.rank(), hvd.size()
    check_dtypes(me, n)
    check_forms(me, n)
    check_layouts(me, n)
    check_adasum(me, n)
    check_set_and_objects(me, n)
    names = []
    check_foreign(me, n, names)
    differ = error_of(lambda: hvd.allreduce(np.ones(me + 1), name="differ"))
    if me == 0:
        last = hvd.join()
    else:
        got = hvd.allreduce(np.array([me]), op=hvd.Sum)
        assert got.tolist() == [n * (n - 1) // 2], "after a join"
        last = hvd.join()
    rank.record(checks=checks, foreign=names, differ=differ, odd=["in the set"] * (me % 2),
                bfloat16=ml_dtypes is not None, joined=last >= 1)
    hvd.shutdown()


main()
