"""Adasum against a reference in NumPy: allreduce in all its forms, its gradient,
and the optimizer that combines the ranks' steps."""

import numpy
import torch

import maypole.torch as hvd
import rank

checks = 0


def pair(a, b):
    """Adasum of two vectors in float64, as the paper defines it."""
    product, aa, bb = a @ b, a @ a, b @ b
    return ((1 - product / (2 * aa) if aa > 0 else 1) * a + (1 - product / (2 * bb) if bb > 0 else 1) * b)


def reference(inputs):
    """Adasum of NumPy arrays of any shape."""
    if len(inputs) == 1:
        return inputs[0]
    middle = 1
    while 2 * middle < len(inputs):
        middle *= 2
    first, rest = reference(inputs[:middle]), reference(inputs[middle:])
    return pair(first.ravel(), rest.ravel()).reshape(first.shape)


def inputs_of(shape, dtype, seed):
    """All ranks' inputs, in `dtype`."""
    generator = torch.Generator().manual_seed(seed)
    common = torch.randn(shape, generator=generator, dtype=torch.float64)
    return [(common + torch.randn(shape, generator=generator, dtype=torch.float64)).to(dtype)
            for _ in range(hvd.size())]


def expect(got, inputs, factor=1.0):
    global checks
    checks += 1
    want = torch.from_numpy(numpy.asarray(reference([x.double().numpy() for x in inputs]))) * factor
    # One rounding to the dtype at the end; the computation is in float64.
    digits = max(torch.finfo(got.dtype).eps, 1e-10)
    assert got.dtype == inputs[0].dtype and got.shape == inputs[0].shape
    off = (got.double() - want).abs() / (want.abs() + want.abs().mean() * 1e-3 + 1e-30)
    assert off.numel() == 0 or off.max() <= digits, (got.dtype, got.shape, off.max(), digits)
    # Bit-equal everywhere.
    everyones = hvd.allgather_object(got.reshape(-1).view(torch.uint8 if got.dim() else got.dtype).tolist()
                                     if got.numel() < 100 else float(got.double().sum()))
    assert all(str(other) == str(everyones[0]) for other in everyones)


def check_allreduce():
    me = hvd.rank()
    for seed, dtype in enumerate((torch.float16, torch.bfloat16, torch.float32, torch.float64)):
        for shape in ((1,), (3, 5), (100, 70), (0,), ()):
            inputs = inputs_of(shape, dtype, seed)
            mine = inputs[me].clone()
            expect(hvd.allreduce(mine, op=hvd.Adasum, name="out"), inputs)
            assert torch.equal(mine, inputs[me])
            expect(hvd.allreduce(mine, op=hvd.Adasum), inputs)
            assert hvd.allreduce_(mine, op=hvd.Adasum, name="in") is mine
            expect(mine, inputs)
    large = inputs_of((700001,), torch.float32, 9)
    expect(hvd.allreduce(large[me], op=hvd.Adasum), large)
    strided = inputs_of((6, 4), torch.float32, 10)
    column = strided[me].clone().t()
    hvd.allreduce_(column, op=hvd.Adasum)
    expect(column, [x.t() for x in strided])
    for factors in ((2.0, 1.0), (-3.0, 0.5), (0.0, 1.0)):
        got = hvd.allreduce(strided[me].t(), op=hvd.Adasum, prescale_factor=factors[0], postscale_factor=factors[1])
        expect(got, [x.t() for x in strided], factors[0] * factors[1])
    try:
        hvd.grouped_allreduce([torch.ones(4 + 2 * me), torch.ones(40 - 2 * me)], op=hvd.Adasum, name="bad")
        raise AssertionError("different shapes were accepted")
    except hvd.HorovodInternalError as error:
        assert "'bad.0of2': the shapes of ranks" in str(error), error
    try:
        hvd.allreduce(large[me], op=hvd.Adasum, name="f", prescale_factor=1.0 + me)
        raise AssertionError("different factors were accepted")
    except hvd.HorovodInternalError as error:
        assert "prescale" in str(error), error


def check_special():
    """Equal, orthogonal, opposite and zero inputs."""
    n, me = hvd.size(), hvd.rank()
    same = torch.arange(1.0, 6.0)
    torch.testing.assert_close(hvd.allreduce(same, op=hvd.Adasum), same)
    apart = torch.zeros(n)
    apart[me] = me + 1.0
    torch.testing.assert_close(hvd.allreduce(apart, op=hvd.Adasum), torch.arange(1.0, n + 1))
    zero = torch.ones(3) * (me == n - 1)
    torch.testing.assert_close(hvd.allreduce(zero, op=hvd.Adasum), torch.ones(3))
    opposite = torch.ones(4) * (1.0 if me % 2 else -1.0)
    got = hvd.allreduce(opposite, op=hvd.Adasum)
    if n % 2 == 0:
        torch.testing.assert_close(got, torch.zeros(4))
    spoilt = torch.full((2,), float("nan") if me == 0 else 1.0)
    assert hvd.allreduce(spoilt, op=hvd.Adasum).isnan().all()


def check_async():
    """Groups; handles that the ranks start and await in different orders."""
    me, n = hvd.rank(), hvd.size()
    group = [inputs_of((5, 2), torch.float32, 20), inputs_of((31,), torch.float64, 21),
             inputs_of((8,), torch.float32, 22)]
    mine = [inputs[me].clone() for inputs in group]
    for got, inputs in zip(hvd.grouped_allreduce(mine, op=hvd.Adasum, name="group"), group):
        expect(got, inputs)
    for got, inputs in zip(hvd.synchronize(hvd.grouped_allreduce_async_(mine, op=hvd.Adasum)), group):
        expect(got, inputs)
    for got, inputs in zip(mine, group):
        expect(got, inputs)
    order = list(range(6))[me:] + list(range(6))[:me]
    many = {i: inputs_of((40 + i,), torch.float32, 30 + i) for i in range(6)}
    handles = {i: hvd.allreduce_async(many[i][me], op=hvd.Adasum, name="any%d" % i) for i in order}
    results = {i: hvd.synchronize(handles[i]) for i in reversed(order)}
    for i in range(6):
        expect(results[i], many[i])
    handle = hvd.allreduce_async(many[0][me], op=hvd.Adasum)
    while not hvd.poll(handle):
        pass
    expect(hvd.synchronize(handle), many[0])
    assert hvd.synchronize(handle) is None
    pairs = hvd.add_process_set([0, n - 1]) if n > 2 else hvd.global_process_set
    if pairs.included():
        got = hvd.allreduce(many[1][me], op=hvd.Adasum, process_set=pairs)
        want = reference([many[1][r].double().numpy() for r in (0, n - 1)])
        torch.testing.assert_close(got.double(), torch.from_numpy(want), rtol=1e-6, atol=1e-6)


def check_gradient():
    inputs = inputs_of((7,), torch.float64, 50)
    x = torch.ones(7, dtype=torch.float64, requires_grad=True)
    (hvd.allreduce(x * 2, op=hvd.Adasum, name="grad") * inputs[hvd.rank()]).sum().backward()
    expect(x.grad, inputs, 2.0)


def check_optimizer():
    """Each rank's SGD with momentum on its own data; the reference has all
    ranks' models."""
    me, n, steps = hvd.rank(), hvd.size(), 4

    def model():
        torch.manual_seed(7)
        return torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Tanh(), torch.nn.Linear(6, 1)).double()

    def sgd(m):
        return torch.optim.SGD(m.parameters(), lr=0.2, momentum=0.9, weight_decay=0.01)

    def backward(m, step, r):
        torch.manual_seed(100 * step + r)
        x = torch.randn(8, 4, dtype=torch.float64)
        ((m(x) - x.sum(1, keepdim=True))**2).mean().backward()

    real = model()
    optimizer = hvd.DistributedOptimizer(sgd(real), real.named_parameters(), op=hvd.Adasum)
    models = [model() for _ in range(n)]
    optimizers = [sgd(m) for m in models]
    for step in range(steps):
        optimizer.zero_grad()
        backward(real, step, me)
        optimizer.step()
        starts = [p.detach().clone() for p in models[0].parameters()]
        for r in range(n):
            optimizers[r].zero_grad()
            backward(models[r], step, r)
            optimizers[r].step()
        for i, start in enumerate(starts):
            deltas = [(list(m.parameters())[i].detach() - start).numpy() for m in models]
            with torch.no_grad():
                for m in models:
                    list(m.parameters())[i].copy_(start + torch.from_numpy(reference(deltas)))
    for got, want in zip(real.parameters(), models[0].parameters()):
        torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-9)
    assert isinstance(optimizer, torch.optim.SGD) and len(optimizer.state_dict()["state"]) == 4
    half = model()
    optimizer = hvd.DistributedOptimizer(sgd(half), half.named_parameters(), hvd.Compression.fp16, op=hvd.Adasum)
    before = [p.detach().clone() for p in half.parameters()]
    backward(half, 0, me)
    assert optimizer.step(lambda: 5) == 5
    assert any(not torch.equal(a, b) for a, b in zip(before, half.parameters()))
    optimizer.synchronize()
    try:
        with optimizer.skip_synchronize():
            raise AssertionError("skip_synchronize() was accepted")
    except AssertionError as error:
        assert "op=Adasum" in str(error), error


def check_join():
    """Adasum cannot do without a rank that has joined."""
    text = ""
    if hvd.rank() != 0:
        try:
            hvd.allreduce(torch.ones(5), op=hvd.Adasum, name="joined")
        except hvd.HorovodInternalError as error:
            text = str(error)
        assert "joined" in text and "Adasum needs every rank" in text, text
    hvd.join()
    torch.testing.assert_close(hvd.allreduce(torch.ones(5), op=hvd.Adasum), torch.ones(5))


def main():
    hvd.init()
    for check in (check_allreduce, check_special, check_async, check_gradient, check_optimizer, check_join):
        check()
    rank.record(checks=checks)
    hvd.shutdown()


if __name__ == "__main__":
    main()
