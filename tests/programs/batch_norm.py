"""SyncBatchNorm against torch's BatchNorm over the whole batch."""

import torch

import maypole.torch as hvd
import rank

checks = 0


def close(a, b):
    global checks
    checks += 1
    assert a.dtype == b.dtype and a.shape == b.shape, (a.dtype, b.dtype, a.shape, b.shape)
    limits = {torch.float64: 1e-10, torch.float32: 3e-5, torch.bfloat16: 3e-2}[a.dtype]
    torch.testing.assert_close(a, b, rtol=limits, atol=limits)


def rows_of(n, empty):
    """Rows of each rank: uneven, and none on the last rank if `empty`."""
    return [2 + 3 * r for r in range(n - 1)] + [0 if empty else 1]


def check(shape, dtype, empty=False, offset=0.0, **options):
    """Two steps and an evaluation; shape without the batch dimension."""
    n, me = hvd.size(), hvd.rank()
    rows = rows_of(n, empty)
    channels = shape[0]
    plain = {0: torch.nn.BatchNorm1d, 1: torch.nn.BatchNorm1d, 2: torch.nn.BatchNorm2d,
             3: torch.nn.BatchNorm3d}[len(shape) - 1](channels, **options).to(dtype)
    sync = hvd.SyncBatchNorm(channels, **options).to(dtype)
    if sync.affine:
        with torch.no_grad():
            for layer in (plain, sync):
                layer.weight.copy_(torch.arange(1.0, channels + 1))
                layer.bias.copy_(torch.arange(channels) - 1.0)
    for step in range(2):
        torch.manual_seed(step)
        whole = (torch.randn((sum(rows),) + shape, dtype=torch.float64) * 3 + offset).to(dtype)
        weights = torch.randn((sum(rows),) + shape, dtype=torch.float64).to(dtype)
        whole.requires_grad_()
        mine = whole.detach().split(rows)[me].clone().requires_grad_()
        want = plain(whole)
        (want * weights).sum().backward()
        got = sync(mine)
        (got * weights.split(rows)[me]).sum().backward()
        close(got, want.split(rows)[me])
        close(mine.grad, whole.grad.split(rows)[me])
    if sync.affine:
        for a, b in zip(sync.parameters(), plain.parameters()):
            close(hvd.allreduce(a.grad, op=hvd.Sum), b.grad)
    if sync.track_running_stats:
        close(sync.running_mean, plain.running_mean)
        close(sync.running_var, plain.running_var)
        assert int(sync.num_batches_tracked) == 2
        if me == 0:  # in evaluation ranks need not be together
            x = torch.randn((3,) + shape).to(dtype)
            close(sync.eval()(x), plain.eval()(x))


def check_refusals():
    layer = hvd.SyncBatchNorm(2)
    for wrong in (torch.ones(3), torch.ones(3, 4)):
        try:
            layer(wrong)
            raise AssertionError("%s was accepted" % (wrong.shape,))
        except ValueError as error:
            assert "SyncBatchNorm" in str(error), error
    text = ""
    try:
        layer(torch.ones(1 if hvd.rank() == 0 else 0, 2))
    except ValueError as error:
        text = str(error)
    assert "1 value(s) per channel" in text, text


def check_training():
    """A small convolutional net equals one process on the whole batch."""
    n, me = hvd.size(), hvd.rank()

    def net(norm):
        torch.manual_seed(3)
        return torch.nn.Sequential(torch.nn.Conv2d(1, 4, 3), norm(4), torch.nn.ReLU(),
                                   torch.nn.Flatten(), torch.nn.Linear(64, 2)).double()

    one, mine = net(torch.nn.BatchNorm2d), net(hvd.SyncBatchNorm)
    reference = torch.optim.SGD(one.parameters(), lr=0.1)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(mine.parameters(), lr=0.1), mine.named_parameters())
    for step in range(3):
        torch.manual_seed(step)
        x, y = torch.randn(4 * n, 1, 6, 6, dtype=torch.float64), torch.randint(2, (4 * n,))
        share = slice(4 * me, 4 * me + 4)
        for model, steps, part in ((one, reference, slice(0, 4 * n)), (mine, optimizer, share)):
            steps.zero_grad()
            torch.nn.functional.cross_entropy(model(x[part]), y[part]).backward()
            steps.step()
    for a, b in zip(mine.state_dict().values(), one.state_dict().values()):
        if a.dtype.is_floating_point:
            close(a, b)


def main():
    hvd.init()
    for dtype in (torch.float64, torch.float32):
        check((3,), dtype)
        check((2, 5), dtype)
        check((4, 3, 2), dtype, momentum=0.3, eps=1e-3)
        check((3, 2, 2, 2), dtype, affine=False)
    check((3, 4), torch.bfloat16)
    check((2, 3), torch.float64, empty=True)
    check((2, 3), torch.float64, momentum=None)
    check((2, 3), torch.float64, track_running_stats=False)
    check((2, 3), torch.float32, offset=1000.0)  # a sum of squares would lose all
    check_refusals()
    check_training()
    rank.record(checks=checks)
    hvd.shutdown()


if __name__ == "__main__":
    main()
