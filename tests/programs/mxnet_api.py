"""Every function of maypole.mxnet by value, on all ranks: collectives, errors, parameters, optimizer, trainer."""

import os

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon

import maypole.mxnet as hvd
import rank

checks = 0
DTYPES = ["float16", "float32", "float64", "uint8", "int8", "int32", "int64"]


def expect(got, want, what):
    global checks
    checks += 1
    got = got.asnumpy()
    assert got.dtype == want.dtype and got.shape == want.shape and np.array_equal(got, want), "rank %d: %s: got %s %s, want %s" % (
        rank.RANK, what, got.dtype, got, want)


def part(r, dtype="float32", rows=4):
    return ((np.arange(rows * 3) + 2 * r) % 7).astype(dtype).reshape(rows, 3)


def on(values):
    return mx.nd.array(values, dtype=values.dtype)


def check_ops(me, n):
    for dtype in DTYPES:
        every = np.stack([part(r, "float64") for r in range(n)])
        mine, as_dtype = on(part(me, dtype)), lambda x: x.astype(dtype)
        for op, want in ((hvd.Sum, every.sum(0)), (hvd.Min, every.min(0)), (hvd.Max, every.max(0)),
                         (hvd.Average, every.sum(0) / n if "float" in dtype else every.sum(0) // n)):
            expect(hvd.allreduce(mine, op=op, name="a"), as_dtype(want), "op %d of %s" % (op, dtype))
        expect(mine, part(me, dtype), "the input")
        expect(hvd.allreduce(mine, average=False, priority=3), as_dtype(every.sum(0)), "average=False")
        copy = mine.copy()
        assert hvd.allreduce_(copy, op=hvd.Sum) is copy
        expect(copy, as_dtype(every.sum(0)), "allreduce_")
        scaled = hvd.allreduce(mine, op=hvd.Sum, prescale_factor=2.0, postscale_factor=0.5)
        expect(scaled, as_dtype(every.sum(0)), "scales")
        copy = mine.copy()
        hvd.allreduce_(copy, op=hvd.Sum, prescale_factor=2.0)
        expect(copy, as_dtype(2 * every.sum(0)), "scales in place")
        expect(hvd.broadcast(mine, n - 1), part(n - 1, dtype), "broadcast")
        copy = mine.copy()
        assert hvd.broadcast_(copy, 0) is copy
        expect(copy, part(0, dtype), "broadcast_")
        expect(hvd.allgather(mine[:me + 1]), np.concatenate([part(r, dtype)[:r + 1] for r in range(n)]), "allgather")
        expect(hvd.reducescatter(mine, op=hvd.Sum), as_dtype(np.array_split(every.sum(0), n)[me]), "reducescatter")
        expect(hvd.alltoall(on(np.full((n, 2), me, dtype))), np.repeat(np.arange(n), 2).reshape(n, 2).astype(dtype),
               "alltoall")
    mines = [on(part(me, rows=k + 1)) for k in range(3)]
    total = [sum(part(r, rows=k + 1) for r in range(n)) for k in range(3)]
    for k, got in enumerate(hvd.grouped_allreduce(mines, op=hvd.Sum, name="g")):
        expect(got, total[k], "grouped_allreduce")
    for k, got in enumerate(hvd.grouped_allgather(mines, name="g")):
        expect(got, np.concatenate([part(r, rows=k + 1) for r in range(n)]), "grouped_allgather")
    for k, got in enumerate(hvd.grouped_reducescatter(mines[1:], op=hvd.Sum, name="g")):
        if len(total[k + 1]) >= n:
            expect(got, np.array_split(total[k + 1], n)[me], "grouped_reducescatter")
    whole = on(part(me))  # views of one array
    hvd.grouped_allreduce_([whole[:2], whole[2:]], op=hvd.Sum, name="views")
    expect(whole, sum(part(r) for r in range(n)), "grouped_allreduce_")
    equal = mx.nd.array([3.0, 4.0])  # Adasum is their average
    expect(hvd.allreduce(equal, op=hvd.Adasum), np.array([3, 4], "float32"), "Adasum")
    splits = [r + 1 for r in range(n)]
    for given, dtype in ((splits, "int32"), (mx.nd.array(splits, dtype="int64"), "int64")):
        rows, received = hvd.alltoall(on(np.full(sum(splits), me, "float32")), splits=given)
        expect(rows, np.repeat(np.arange(n, dtype="float32"), me + 1), "alltoall with splits")
        expect(received, np.full(n, me + 1, dtype), "received splits")
    odd = hvd.add_process_set(range(1, n, 2))
    if odd.included():
        expect(hvd.allreduce(on(part(me)), op=hvd.Sum, process_set=odd), sum(part(r) for r in odd.ranks), "process set")
    hvd.remove_process_set(odd)
    assert hvd.broadcast_object({"rank": me}, 1) == {"rank": 1}
    assert hvd.allgather_object(me) == list(range(n))


def check_orders(me, n):
    """200 operations that are pending together, pushed in an order that differs by rank."""
    arrays = {k: mx.nd.full((5,), k + me) for k in range(200)}
    for k in sorted(arrays, key=lambda k: (k * (me + 1)) % 211):
        hvd.allreduce_(arrays[k], op=hvd.Sum, name="order.%d" % k)
    for k, array in arrays.items():
        expect(array, np.full(5, n * k + n * (n - 1) / 2, "float32"), "order")


def check_onednn(me, n):
    """An array in oneDNN's layout, as a convolution leaves it."""
    image, weight = mx.nd.ones((2, 16, 8, 8)) * (me + 1), mx.nd.ones((64, 16, 3, 3))
    convolve = lambda x: mx.nd.Convolution(x, weight, kernel=(3, 3), num_filter=64, no_bias=True, pad=(1, 1))
    want = sum(convolve(mx.nd.ones((2, 16, 8, 8)) * (r + 1)).asnumpy() for r in range(n))
    expect(hvd.allreduce(convolve(image), op=hvd.Sum), want, "oneDNN")
    expect(hvd.allreduce_(convolve(image), op=hvd.Sum), want, "oneDNN in place")


def check_refusals():
    for call, kind, text in (
            (lambda: hvd.allreduce([1.0], name="x"), TypeError, "'x': expected an NDArray, got list"),
            (lambda: hvd.allreduce(mx.nd.ones(1).tostype("row_sparse")), ValueError, "row_sparse, expected default"),
            (lambda: hvd.reducescatter(mx.nd.ones(1), op=hvd.Adasum), ValueError, "Adasum is a reduction of allreduce"),
            (lambda: hvd.allreduce(mx.nd.ones(1), average=True, op=hvd.Sum), ValueError, "both average and op"),
            (lambda: hvd.allreduce(mx.nd.ones(1), name=5), TypeError, "name=5, expected a string"),
            (lambda: hvd.allgather(mx.nd.ones(1), name="a\0b"), ValueError, "contains a NUL character"),
            (lambda: hvd.allreduce(mx.nd.ones(1), prescale_factor="x"), TypeError, "prescale_factor='x', expected a number"),
            (lambda: hvd.reducescatter(mx.nd.ones(1), postscale_factor="x"), TypeError, "postscale_factor='x', expected a"),
            (lambda: hvd.broadcast_(mx.nd.ones(1), "0"), TypeError, "root_rank='0', expected an integer"),
            (lambda: hvd.broadcast_parameters([mx.nd.ones(1)]), ValueError, "expected a dict"),
            (lambda: hvd.broadcast_parameters({"a": 3}), ValueError, "'a' is a int")):
        try:
            call()
        except kind as error:
            assert text in str(error), error
        else:
            raise AssertionError(text)


def network(units=8):
    net = gluon.nn.HybridSequential()
    net.add(gluon.nn.Conv2D(4, 3), gluon.nn.BatchNorm(), gluon.nn.Dense(units, activation="relu"), gluon.nn.Dense(3))
    return net


def samples(count, seed):
    random = np.random.RandomState(seed)
    return (mx.nd.array(random.normal(size=(count, 1, 6, 6))), mx.nd.array(random.randint(0, 3, count)))


def train(trainer, net, x, y, steps=3):
    loss = gluon.loss.SoftmaxCrossEntropyLoss()
    for _ in range(steps):
        with autograd.record():
            value = loss(net(x), y)
        value.backward()
        trainer.step(len(x))


def values(net):
    return {name.partition("_")[2]: p.data().asnumpy() for name, p in net.collect_params().items()}


def check_training(me, n, hybridize, compression):
    """Parameters whose shapes are not known yet; training equal to one process with all samples."""
    mx.random.seed(me)
    net, alone = network(), network()
    for which in (net, alone):
        which.initialize(mx.init.Xavier())
        if hybridize:
            which.hybridize(static_alloc=True)
    hvd.broadcast_parameters(net.collect_params(), root_rank=1, prefix="net")
    every = [samples(8, r) for r in range(n)]
    x, y = every[me]
    with autograd.predict_mode():
        net(x)  # initializes, and broadcasts
        alone(x)
    for a, b in zip(net.collect_params().values(), alone.collect_params().values()):
        b.set_data(a.data())
    before = values(net)
    for name, value in hvd.allgather_object(before)[1].items():
        assert np.array_equal(before[name], value), name
    options = {"learning_rate": 0.1, "momentum": 0.9}
    trainer = hvd.DistributedTrainer(net.collect_params(), "sgd", options, compression=compression,
                                     gradient_predivide_factor=2.0)
    # BatchNorm sees each rank's samples, so "one process" takes them one after the other and averages.
    train(trainer, net, x, y)
    single = gluon.Trainer(alone.collect_params(), "sgd", options, kvstore=None)
    loss = gluon.loss.SoftmaxCrossEntropyLoss()
    for _ in range(3):
        gradients = []
        for a, b in every:
            with autograd.record():
                value = loss(alone(a), b)
            value.backward()
            gradients.append([p.grad().copy() for p in alone.collect_params().values() if p.grad_req != "null"])
        for p, *found in zip([p for p in alone.collect_params().values() if p.grad_req != "null"], *gradients):
            p.grad()[:] = sum(found) / n
        single.step(8)
    apart = 0.0
    for a, b in zip(net.collect_params().values(), alone.collect_params().values()):
        if a.grad_req != "null":
            apart = max(apart, float(np.abs(a.data().asnumpy() - b.data().asnumpy()).max()))
    return apart


def check_optimizer(me, n):
    """DistributedOptimizer under the updater that Module uses."""
    optimizer = hvd.DistributedOptimizer(mx.optimizer.SGD(learning_rate=0.5, rescale_grad=0.25), 2.0)
    assert optimizer.rescale_grad == 0.25
    optimizer.set_learning_rate(1.0)
    update = mx.optimizer.get_updater(optimizer)
    weights = [mx.nd.ones((2,)) for _ in range(2)]
    gradients = [mx.nd.full((2,), me + 1.0 + k) for k in range(2)]
    update([0, 1], gradients, weights)
    for k in range(2):
        expect(weights[k], np.full(2, 1 - 0.25 * ((n + 1) / 2 + k), "float32"), "DistributedOptimizer")


def error_of(me):
    """Of an operation that fails: raised where its result is awaited."""
    try:
        result = hvd.allreduce(mx.nd.ones((me + 1,)), name="differ") + 1
        result.wait_to_read()
    except mx.MXNetError as error:
        return str(error)
    return None


def check_numpy_interface(me, n):
    mx.npx.set_np()
    scalar = hvd.allreduce(mx.np.array(me + 1.0), op=hvd.Sum)
    assert isinstance(scalar, mx.np.ndarray) and scalar.shape == () and scalar.item() == n * (n + 1) / 2
    rows = hvd.allgather(mx.np.zeros((me, 2)))
    assert isinstance(rows, mx.np.ndarray) and rows.shape == (n * (n - 1) // 2, 2)
    assert hvd.reducescatter(mx.np.ones((1, 2)), op=hvd.Sum).shape == ((1, 2) if me == 0 else (0, 2))


def main():
    hvd.init()
    me, n = hvd.rank(), hvd.size()
    check_ops(me, n)
    if os.environ.get("MXNET_ENGINE_TYPE") != "NaiveEngine":  # whose operations block
        check_orders(me, n)
    check_onednn(me, n)
    check_refusals()
    check_optimizer(me, n)
    apart = [check_training(me, n, False, hvd.Compression.none), check_training(me, n, True, hvd.Compression.none)]
    apart16 = check_training(me, n, True, hvd.Compression.fp16)
    differ = error_of(me)
    check_numpy_interface(me, n)
    rank.record(checks=checks, apart=apart, apart16=apart16, differ=differ)
    mx.nd.waitall()
    hvd.shutdown()


main()
