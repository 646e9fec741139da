"""Compression: the error of each kind, and how well a training with it converges."""

import torch

import maypole.torch as hvd
import rank

STEPS = 60


def check_casts():
    me, n = hvd.rank(), hvd.size()
    x = torch.linspace(-3, 3, 1000, dtype=torch.float64) * (me + 1)
    want = torch.linspace(-3, 3, 1000, dtype=torch.float64) * (n + 1) / 2
    for compression, error in ((hvd.Compression.none, 1e-15), (hvd.Compression.fp16, 2e-3),
                               (hvd.Compression.bf16, 2e-2)):
        for got in (hvd.allreduce(x, compression=compression),
                    hvd.grouped_allreduce([x, x], compression=compression)[1]):
            assert got.dtype == torch.float64
            torch.testing.assert_close(got, want, rtol=error, atol=error)
    huge = torch.full((4,), 1e30)
    torch.testing.assert_close(hvd.allreduce(huge, compression=hvd.Compression.bf16), huge, rtol=1e-2, atol=0)
    count = torch.tensor([3])
    assert hvd.allreduce(count, compression=hvd.Compression.bf16).tolist() == [3]


def check_powersgd():
    """A matrix of low rank arrives whole after two steps; over many steps all of
    any matrix does."""
    me, n = hvd.rank(), hvd.size()
    torch.manual_seed(1)
    left, right = torch.randn(30, 2), torch.randn(2, 40)
    compression = hvd.Compression.powersgd(2)
    got = [hvd.allreduce(left @ right * (me + 1), name="low", compression=compression) for _ in range(2)]
    want = left @ right * (n + 1) / 2
    # The second step brings what the first has left out.
    torch.testing.assert_close(got[0] + got[1], 2 * want, rtol=1e-3, atol=1e-3)
    everything = torch.zeros(30, 40)
    torch.manual_seed(2 + me)
    gradient = torch.randn(30, 40)
    mean = hvd.allreduce(gradient)
    rounds = 60
    for _ in range(rounds):
        everything += hvd.allreduce(gradient, name="any", compression=compression)
    off = float((everything / rounds - mean).norm() / mean.norm())
    once = hvd.allreduce(gradient, name="once", compression=compression)
    off_once = float((once - mean).norm() / mean.norm())
    small = torch.randn(3)
    same = torch.equal(hvd.allreduce(small, name="bias", compression=compression), hvd.allreduce(small))
    equal = all(x == float(everything.sum()) for x in hvd.allgather_object(float(everything.sum())))
    return {"off": off, "off_once": off_once, "same": same, "equal": equal}


def batch(step, r, n):
    torch.manual_seed(1000 + step)
    x = torch.randn(32 * n, 20)
    y = torch.tanh(x[:, :5].sum(1, keepdim=True)) + 0.5 * x[:, 5:6]
    part = slice(32 * r, 32 * r + 32)
    return x[part], y[part]


def train(compression):
    torch.manual_seed(4)
    model = torch.nn.Sequential(torch.nn.Linear(20, 40), torch.nn.Tanh(), torch.nn.Linear(40, 30), torch.nn.Tanh(),
                                torch.nn.Linear(30, 1))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
                                         model.named_parameters(), compression)
    for step in range(STEPS):
        optimizer.zero_grad()
        x, y = batch(step, hvd.rank(), hvd.size())
        ((model(x) - y)**2).mean().backward()
        optimizer.step()
    x, y = batch(10**6, 0, 1)
    sums = hvd.allgather(torch.stack([p.detach().double().sum() for p in model.parameters()]).reshape(1, -1))
    assert torch.equal(sums, sums[:1].expand_as(sums)), "the ranks' models differ"
    return float(((model(x) - y)**2).mean())


def bytes_sent(compression):
    sent = 0
    for rows, columns in ((40, 20), (30, 40)):
        compressor = compression.named("sent%d" % rows) if hasattr(compression, "named") else compression
        small, _ = compressor.compress(torch.randn(rows, columns))
        sent += small.numel() * small.element_size()
    return sent


def check_refusals():
    powersgd = hvd.Compression.powersgd(1)
    for wrong in (lambda: hvd.Compression.powersgd(0), lambda: hvd.allreduce(torch.ones(9, 9), compression=powersgd),
                  lambda: hvd.reducescatter(torch.ones(9, 9), "r", powersgd)):
        try:
            wrong()
            raise AssertionError("was accepted")
        except ValueError as error:
            assert "powersgd" in str(error), error


def main():
    hvd.init()
    check_casts()
    check_refusals()
    powersgd = check_powersgd()
    kinds = {"none": hvd.Compression.none, "fp16": hvd.Compression.fp16, "bf16": hvd.Compression.bf16,
             "powersgd": hvd.Compression.powersgd(2)}
    losses = {name: train(kind) for name, kind in kinds.items()}
    sent = {name: bytes_sent(kind) for name, kind in kinds.items()}
    rank.record(powersgd=powersgd, losses=losses, sent=sent)
    hvd.shutdown()


if __name__ == "__main__":
    main()
