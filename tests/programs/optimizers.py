"""Every optimizer of torch, distributed, against one process on the whole batch.

Also sparse gradients, including those of parameters that a rank has not used in a step.
"""

import torch

import maypole.torch as hvd
import rank

ROWS, STEPS = 8, 4

OPTIMIZERS = {
    "Adadelta": {"lr": 1.0},
    "Adagrad": {"lr": 0.1},
    "Adam": {"lr": 0.01, "amsgrad": True},
    "AdamW": {"lr": 0.01, "weight_decay": 0.1},
    "Adamax": {"lr": 0.01},
    "ASGD": {"lr": 0.05},
    "LBFGS": {"lr": 0.5, "max_iter": 4},
    "NAdam": {"lr": 0.01},
    "RAdam": {"lr": 0.01},
    "RMSprop": {"lr": 0.01, "momentum": 0.5, "centered": True},
    "Rprop": {"lr": 0.01},
    "SGD": {"lr": 0.1, "momentum": 0.9, "nesterov": True},
    "SparseAdam": {"lr": 0.01},
}


def builtin():
    """The names of torch's optimizers; newer versions have more than the table."""
    found = {name for name, value in vars(torch.optim).items()
             if isinstance(value, type) and issubclass(value, torch.optim.Optimizer)}
    return found - {"Optimizer", "Adafactor", "Muon"}


class Words(torch.nn.Module):
    """A table of which each batch uses a part, and a dense layer."""

    def __init__(self, sparse, dense_too):
        super().__init__()
        self.table = torch.nn.Embedding(12, 3, sparse=sparse)
        self.layer = torch.nn.Linear(3, 1)
        self.layer.requires_grad_(dense_too)

    def forward(self, x):
        return self.layer(self.table(x).mean(1))


def model_for(name):
    torch.manual_seed(5)
    if name == "SparseAdam":
        return Words(True, False).double()
    return torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.Tanh(), torch.nn.Linear(5, 1)).double()


def batch_for(name, step):
    torch.manual_seed(step)
    if name == "SparseAdam":
        return torch.randint(12, (ROWS, 2)), torch.randn(ROWS, 1, dtype=torch.float64)
    x = torch.randn(ROWS, 4, dtype=torch.float64)
    return x, x.sin().sum(1, keepdim=True)


def train(name, share, wrap):
    model = model_for(name)
    options = OPTIMIZERS[name]
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = getattr(torch.optim, name)(parameters, **options)
    if wrap:
        optimizer = hvd.DistributedOptimizer(optimizer, [
            (n, p) for n, p in model.named_parameters() if p.requires_grad])
    calls = 0
    for step in range(STEPS):
        x, y = (t[share] for t in batch_for(name, step))

        def closure():
            nonlocal calls
            calls += 1
            optimizer.zero_grad()
            loss = ((model(x) - y)**2).mean()
            loss.backward()
            return loss

        if name == "LBFGS":
            loss = optimizer.step(closure)
        else:
            loss = closure()
            optimizer.step()
    return [p.detach() for p in parameters], calls, float(loss)


def check_table():
    assert builtin() <= set(OPTIMIZERS), builtin() - set(OPTIMIZERS)
    n, me = hvd.size(), hvd.rank()
    mine = slice(me * ROWS // n, (me + 1) * ROWS // n)
    apart = {}
    for name in OPTIMIZERS:
        got, calls, loss = train(name, mine, True)
        want, want_calls, want_loss = train(name, slice(0, ROWS), False)
        for a, b in zip(got, want):
            torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-8)
        assert calls == want_calls, (name, calls, want_calls)
        if name == "LBFGS":
            assert abs(loss - want_loss) < 1e-8, (loss, want_loss)
        apart[name] = max(float((a - b).abs().max()) for a, b in zip(got, want))
    return apart


def check_line_search():
    """LBFGS decides by the loss; the ranks' own losses differ greatly."""
    p = torch.nn.Parameter(torch.tensor([3.0, -2.0]))
    optimizer = hvd.DistributedOptimizer(
        torch.optim.LBFGS([p], max_iter=20, line_search_fn="strong_wolfe"), [("p", p)])
    scale = 10.0**hvd.rank()

    def closure():
        optimizer.zero_grad()
        loss = (scale * (p - hvd.rank())**2).sum()
        loss.backward()
        return loss

    for _ in range(3):
        optimizer.step(closure)
    scales = [10.0**r for r in range(hvd.size())]
    want = sum(s * r for r, s in enumerate(scales)) / sum(scales)
    torch.testing.assert_close(p.detach(), torch.full((2,), want), rtol=1e-4, atol=1e-4)


def check_sparse(as_dense):
    """Each step, each rank uses another part of the model, or none of it."""
    n, me = hvd.size(), hvd.rank()
    tables = [torch.nn.Embedding(6, 2, sparse=True).double() for _ in range(3)]
    layer = torch.nn.Linear(2, 1).double()
    parameters = [t.weight for t in tables] + list(layer.parameters())
    with torch.no_grad():
        for i, p in enumerate(parameters):
            p.fill_(0.1 * (i + 1))
    want = [p.detach().clone().requires_grad_() for p in parameters]
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(parameters, lr=0.5), [("p%d" % i, p) for i, p in enumerate(parameters)],
        sparse_as_dense=as_dense)
    reference = torch.optim.SGD(want, lr=0.5)

    def used(step, r):
        """The table that a rank uses in a step, or None. Nobody uses the third
        one before step 3."""
        return None if (step + r) % 3 == 2 else 2 if step >= 3 and r == 0 else (step + r) % 2

    def loss_of(step, r, ps):
        x = torch.tensor([[r % 6, (r + step) % 6]])
        table = used(step, r)
        # A rank that uses no table has no gradient of the layer, either.
        return None if table is None else (
            torch.nn.functional.embedding(x, ps[table], sparse=True).sum(1) @ ps[3].t() + ps[4]).sum()

    for step in range(6):
        optimizer.zero_grad()
        loss = loss_of(step, me, parameters)
        if loss is not None:
            loss.backward()
        optimizer.step()
        reference.zero_grad(set_to_none=True)
        for r in range(n):
            loss = loss_of(step, r, want)
            if loss is not None:
                (loss / n).backward()
        reference.step()
        for i, (a, b) in enumerate(zip(parameters, want)):
            torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9, msg=lambda m: "step %d p%d: %s" % (step, i, m))
        sparse = [p.grad is not None and p.grad.is_sparse for p in parameters]
        assert sparse == [True, True, step >= 3, False, False], (step, sparse)
        assert (parameters[2].grad is None) == (step < 3)


def main():
    hvd.init()
    apart = check_table()
    check_line_search()
    check_sparse(False)
    check_sparse(True)
    rank.record(apart=apart)
    hvd.shutdown()


if __name__ == "__main__":
    main()
