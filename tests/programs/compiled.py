"""torch.compile, on real ranks: a compiled model under DistributedOptimizer trains as one process does without a
compiler, and collectives may be called in compiled functions. `--inductor`: with code from the C++ compiler."""

import sys

import torch

import maypole.torch as hvd
import rank

BACKEND = "inductor" if "--inductor" in sys.argv else "aot_eager"
# What is compiled, and gradient_as_bucket_view. The C++ compiler takes its time.
CASES = [("model", False)] if BACKEND == "inductor" else [(w, v) for w in ("model", "step") for v in (False, True)]
ROWS, STEPS = 12, 6


def model():
    torch.manual_seed(7)
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1)).double()


def batch(step):
    torch.manual_seed(step)
    x = torch.randn(ROWS, 4, dtype=torch.float64)
    return x, x.sin().sum(1, keepdim=True)


def trained(net, call, optimizer, share, whole_step_compiled=False):
    """The weights after some steps of `call`, which is net or net compiled."""

    def step(x, y):
        optimizer.zero_grad()
        loss = ((call(x) - y)**2).mean()
        loss.backward()
        optimizer.step()
        return loss

    if whole_step_compiled:
        step = torch.compile(step, backend=BACKEND)
    for i in range(STEPS):
        x, y = batch(i)
        step(x[share], y[share])
    return torch.cat([p.detach().flatten() for p in net.parameters()])


def check_training(me, n):
    alone = model()
    want = trained(alone, alone, torch.optim.Adam(alone.parameters(), lr=0.02), slice(None))
    apart = {}
    for what, view in CASES:
        net = model()
        optimizer = hvd.DistributedOptimizer(torch.optim.Adam(net.parameters(), lr=0.02), net.named_parameters(),
                                             gradient_as_bucket_view=view)
        call = torch.compile(net, backend=BACKEND) if what == "model" else net
        got = trained(net, call, optimizer, slice(me, None, n), what == "step")
        apart["%s, %s" % (what, view)] = float((got - want).abs().max())
    return apart


def compiled(function):
    return torch.compile(function, backend=BACKEND)


@compiled
def differentiable(x):
    return hvd.allreduce(x * 2, name="inside", op=hvd.Sum) * 3


@compiled
def asynchronous(x):
    handle = hvd.allreduce_async(x + 1, name="asynchronous")
    return hvd.synchronize(handle) * hvd.size() - hvd.rank()


@compiled
def others(x):
    hvd.broadcast_(x, 0)
    gathered = hvd.allgather(x, name="gathered")
    first, second = hvd.grouped_allreduce([x, x * 2], name="group", op=hvd.Max)
    return gathered.sum() + hvd.alltoall(gathered).sum() + hvd.reducescatter(gathered).sum() + first.sum() + second.sum()


def check_inside(me, n):
    x = torch.full((3,), me + 1.0, requires_grad=True)
    for _ in range(2):  # the second time the code is there
        x.grad = None
        y = differentiable(x)
        y.sum().backward()
        assert y.tolist() == [3.0 * n * (n + 1)] * 3, y
        assert x.grad.tolist() == [6.0 * n] * 3, x.grad
        got = asynchronous(torch.full((2,), float(me)))
        assert got.tolist() == [n * (n - 1) / 2 + n - me] * 2, got
        # Rank 0's x is [4, 4]: of n gathered pairs each rank has all, gets its part of each, and one averaged pair.
        got = float(others(torch.full((2,), 4.0 + me)))
        assert got == 8 * n + 8 * n + 8 + 8 + 16, got


def check_batch_norm(me, n):
    x = torch.arange(12.0).reshape(6, 2)
    plain = torch.nn.BatchNorm1d(2)
    want = plain(x)
    norm = hvd.SyncBatchNorm(2)
    got = torch.compile(norm, backend=BACKEND)(x[me::n])
    torch.testing.assert_close(got, want[me::n])
    torch.testing.assert_close(norm.running_var, plain.running_var)


def main():
    torch.set_num_threads(1)
    hvd.init()
    me, n = hvd.rank(), hvd.size()
    if BACKEND != "inductor":
        check_inside(me, n)
        check_batch_norm(me, n)
    rank.record(apart=check_training(me, n), torch=torch.__version__)


main()
