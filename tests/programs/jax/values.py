"""Collectives by value: each kind on pytrees, inside and outside jit."""

import jax
import jax.numpy as jnp
import numpy as np

import maypole.jax as hvd
from expect import BOTH, equal, raises


def of(rank, shape=(3, 2), dtype=np.float32):
    """The input of a rank."""
    return (np.arange(np.prod(shape)).reshape(shape) + 1 + 10 * rank).astype(dtype)


def everyone(shape=(3, 2), dtype=np.float32):
    return [of(rank, shape, dtype) for rank in range(hvd.size())]


def check_reductions():
    mine, all_ranks = of(hvd.rank(), dtype=np.float64), everyone(dtype=np.float64)
    expected = {hvd.Average: np.mean(all_ranks, 0), hvd.Sum: np.sum(all_ranks, 0), hvd.Min: np.min(all_ranks, 0),
                hvd.Max: np.max(all_ranks, 0), hvd.Product: np.prod(all_ranks, 0)}
    for op, value in expected.items():
        for run in BOTH:
            equal(run(lambda x, op=op: hvd.allreduce(x, op=op))(mine.astype(np.float32)), value.astype(np.float32))
    equal(hvd.allreduce(mine.astype(np.float32), average=False), expected[hvd.Sum].astype(np.float32))
    for run in BOTH:
        equal(run(lambda x: hvd.allreduce(x, op=hvd.Sum, prescale_factor=0.5, postscale_factor=4.0))(
            mine.astype(np.float32)), expected[hvd.Sum].astype(np.float32) * 2)


def check_pytrees():
    tree = {"a": of(hvd.rank()), "b": [of(hvd.rank(), (5,)), None, np.float32(hvd.rank())], "c": (),
            "empty": np.zeros((0, 3), np.float32)}
    for run in BOTH:
        got = run(lambda t: hvd.allreduce(t, op=hvd.Sum))(tree)
        equal(got["a"], np.sum(everyone(), 0))
        equal(got["b"][0], np.sum(everyone((5,)), 0))
        equal(got["b"][2], np.float32(sum(range(hvd.size()))))
        assert got["b"][1] is None and got["c"] == () and got["empty"].shape == (0, 3), got
        assert run(hvd.allreduce)({}) == {}


def check_dtypes():
    for dtype in ("float16", "bfloat16", "float32", "int8", "int16", "int32", "uint8", "uint16", "uint32"):
        x = jnp.full((4,), hvd.rank() + 1, dtype)
        for run in BOTH:
            total = run(lambda x: hvd.allreduce(x, op=hvd.Sum))(x)
            assert total.dtype == x.dtype
            equal(total, np.full(4, sum(range(1, hvd.size() + 1)), np.float32))
            equal(run(lambda x: hvd.broadcast(x, 1))(x), np.full(4, 2, np.float32))
    for run in BOTH:
        equal(run(lambda x: hvd.allreduce(x, op=hvd.Max))(jnp.array([hvd.rank() == 1, False])), [True, False])
        equal(run(hvd.allgather)(jnp.full((1,), hvd.rank() * 1j, jnp.complex64)),
              np.arange(hvd.size()).astype(np.complex64) * 1j)
        raises(ValueError, "uint32", run(hvd.allreduce), jnp.ones(2, jnp.uint32))
        raises(ValueError, "complex64", run(hvd.allreduce), jnp.ones(2, jnp.complex64))
        raises(ValueError, "uint32 with prescale_factor or postscale_factor",
               run(lambda x: hvd.allreduce(x, op=hvd.Sum, postscale_factor=0.5)), jnp.ones(2, jnp.uint32))
        raises(RuntimeError, "mismatched", run(lambda x: hvd.broadcast(x, 0)),
               jnp.ones(2, jnp.int32 if hvd.rank() else jnp.uint32))
        raises((ValueError, RuntimeError), "bool",
               run(lambda x: hvd.allreduce(x, op=hvd.Sum, prescale_factor=2.0)), jnp.ones(2) > 0)
        equal(run(lambda x: hvd.allreduce(x, op=hvd.Sum, prescale_factor=0.5, postscale_factor=30.0))(
            jnp.array([7, -7, 2**29], jnp.int32)), np.int32([90 * hvd.size(), -90 * hvd.size(), 2**31 - 1]))


def check_adasum():
    """Of leaves with coefficients of their own: the sum of orthogonal ones, one of equal ones."""
    apart = jnp.zeros(5).at[hvd.rank()].set(hvd.rank() + 1.0)
    total = np.pad(np.arange(1.0, hvd.size() + 1), (0, 5 - hvd.size()))
    for run in BOTH:
        f = run(lambda tree: hvd.allreduce(tree, op=hvd.Adasum, postscale_factor=2.0))
        got = f({"apart": apart, "equal": jnp.full((3, 2), 1.5, jnp.bfloat16)})
        equal(got["apart"], 2 * total)
        equal(got["equal"].astype(jnp.float32), np.full((3, 2), 3.0))
        equal(run(jax.grad(lambda x: (hvd.allreduce(x, op=hvd.Adasum) * apart).sum()))(jnp.ones(5)), total)
        raises((ValueError, RuntimeError), "floating point",
               run(lambda x: hvd.allreduce(x, op=hvd.Adasum)), jnp.ones(2, jnp.int32))


def check_compression():
    x = jnp.full((3,), 1.0 + hvd.rank() / 4)
    for compression in (hvd.Compression.fp16, hvd.Compression.bf16, hvd.Compression.none):
        for run in BOTH:
            got = run(lambda x, c=compression: hvd.allreduce({"x": x, "n": jnp.int32(1)}, compression=c))(x)
            assert got["x"].dtype == jnp.float32 and got["n"].dtype == jnp.int32
            equal(got["x"], np.full(3, np.mean([1.0 + r / 4 for r in range(hvd.size())]), np.float32))
            mean = run(lambda x, c=compression: hvd.reducescatter(x, compression=c))(jnp.ones(hvd.size()))
            equal(mean, np.ones(1, np.float32))


def check_rows():
    mine, all_ranks, n = of(hvd.rank()), everyone(), hvd.size()
    for run in BOTH:
        equal(run(hvd.allgather)(mine), np.concatenate(all_ranks))
        equal(run(hvd.allgather)(np.float32(hvd.rank())), np.arange(n, dtype=np.float32))
        total = np.sum(everyone((2 * n + 1, 2)), 0)  # not a multiple of n: the first rank gets one row more
        rows = [2 + (r < 1) for r in range(n)]
        first = sum(rows[:hvd.rank()])
        equal(run(lambda x: hvd.reducescatter(x, op=hvd.Sum))(of(hvd.rank(), (2 * n + 1, 2))),
              total[first:first + rows[hvd.rank()]])
        equal(run(hvd.alltoall)(of(hvd.rank(), (2 * n,))),
              np.concatenate([x[2 * hvd.rank():2 * hvd.rank() + 2] for x in everyone((2 * n,))]))
        raises(ValueError, "multiple of %d" % n, run(hvd.alltoall), jnp.ones(2 * n + 1))


def check_ragged_rows():
    n, rank = hvd.size(), hvd.rank()
    equal(hvd.allgather(jnp.full((rank, 2), rank)), np.concatenate([np.full((r, 2), r) for r in range(n)]))
    splits = [rank + to for to in range(n)]  # rank sends rank + to rows to each
    rows, received = hvd.alltoall({"x": jnp.full((sum(splits), 1), float(rank))}, splits=np.array(splits))
    equal(received, [r + rank for r in range(n)])
    equal(rows["x"], np.concatenate([np.full((r + rank, 1), r, np.float32) for r in range(n)]))
    gradient = jax.grad(lambda x: jnp.sum(hvd.alltoall(x, splits=splits, name="ragged")[0] ** 2))
    equal(gradient(jnp.full((sum(splits), 1), float(rank))), np.full((sum(splits), 1), 2.0 * rank, np.float32))
    own = jax.grad(lambda x: jnp.sum(hvd.allgather(x, name="gathered") ** 2))(jnp.full((rank + 1,), rank + 1.0))
    equal(own, np.full(rank + 1, 2.0 * (rank + 1), np.float32))
    raises(ValueError, "splits in a traced function", jax.jit(lambda x: hvd.alltoall(x, splits=splits)),
           jnp.ones(sum(splits)))
    raises(ValueError, "expected a tensor or list of integers", hvd.alltoall, jnp.ones(n), splits="ab")
    # Programs have fixed shapes.
    raises(RuntimeError, "the same first dimension on all ranks", jax.jit(hvd.allgather), jnp.ones(rank + 1))


def check_broadcasts():
    root = hvd.size() - 1
    tree = {"w": of(hvd.rank()), "key": jax.random.key(hvd.rank()), "raw": jax.random.PRNGKey(hvd.rank())}
    for run in BOTH:
        equal(run(lambda x: hvd.broadcast(x, root))(tree["w"]), of(root))
    got = hvd.broadcast_parameters(tree, root_rank=root)
    equal(got["w"], of(root))
    equal(jax.random.key_data(got["key"]), jax.random.key_data(jax.random.key(root)))
    equal(got["raw"], jax.random.PRNGKey(root))
    assert hvd.broadcast_object({"rank": hvd.rank()}, 1) == {"rank": 1}
    assert hvd.allgather_object(hvd.rank()) == list(range(hvd.size()))


def check_process_sets():
    sets = [hvd.add_process_set(list(range(1, hvd.size()))), hvd.add_process_set([0])]
    for ranks in sets:
        if not ranks.included():
            continue
        total = np.sum([of(r) for r in ranks.ranks], 0)
        for run in BOTH:
            equal(run(lambda x, s=ranks: hvd.allreduce(x, op=hvd.Sum, process_set=s))(of(hvd.rank())), total)
            equal(run(lambda x, s=ranks: hvd.allgather(x, process_set=s))(of(hvd.rank())),
                  np.concatenate([of(r) for r in ranks.ranks]))
            if 1 in ranks.ranks:
                got = run(jax.grad(lambda x, s=ranks: jnp.sum(hvd.broadcast(x, 1, process_set=s) ** 2)))(
                    jnp.float32(hvd.rank()))
                equal(got, np.float32(2 if hvd.rank() == 1 else 0))
    hvd.barrier()
    for ranks in sets:
        hvd.remove_process_set(ranks)
