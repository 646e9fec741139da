"""Every form of every collective (in place, asynchronous, grouped), and every argument of DistributedOptimizer, checked
by value on all ranks, as the table of docs/horovod-compat.md describes them."""

import torch

import maypole.torch as hvd
import rank

checks = 0


def expect(got, want, what):
    global checks
    checks += 1
    assert got.dtype == want.dtype and torch.equal(got, want), "rank %d: %s: got %s, want %s" % (
        rank.RANK, what, got, want)


def part(r, k=0, rows=4):
    return torch.arange(rows * 2, dtype=torch.float64).reshape(rows, 2) * (k + 1) + r


def reductions(n):
    """op: its result for part(r, k) of all ranks."""
    every = lambda k: torch.stack([part(r, k) for r in range(n)])
    return {hvd.Sum: lambda k: every(k).sum(0), hvd.Average: lambda k: every(k).sum(0) / n,
            hvd.Min: lambda k: every(k).min(0).values, hvd.Max: lambda k: every(k).max(0).values,
            hvd.Product: lambda k: every(k).prod(0)}


def check_allreduce(me, n):
    for op, want in reductions(n).items():
        mine = [part(me, k) for k in range(3)]
        expect(hvd.allreduce(mine[0], op=op, name="plain"), want(0), "allreduce")
        expect(hvd.synchronize(hvd.allreduce_async(mine[0], op=op, name="async")), want(0), "allreduce_async")
        for got, k in zip(hvd.grouped_allreduce(mine, op=op, name="group"), range(3)):
            expect(got, want(k), "grouped_allreduce")
        for got, k in zip(hvd.synchronize(hvd.grouped_allreduce_async(mine, op=op, name="group async")), range(3)):
            expect(got, want(k), "grouped_allreduce_async")
        for k in range(3):
            expect(mine[k], part(me, k), "the input of an out-of-place operation")
        for name, call in (("_", lambda t: hvd.allreduce_(t, op=op, name="in place")),
                           ("_async_", lambda t: hvd.synchronize(hvd.allreduce_async_(t, op=op, name="async in place")))):
            tensor = part(me)
            assert call(tensor) is tensor
            expect(tensor, want(0), "allreduce" + name)
        for name, call in (("_", lambda t: hvd.grouped_allreduce_(t, op=op, name="group in place")),
                           ("_async_", lambda t: hvd.synchronize(
                               hvd.grouped_allreduce_async_(t, op=op, name="group async in place")))):
            tensors = [part(me, k) for k in range(3)]
            call(tensors)
            for k in range(3):
                expect(tensors[k], want(k), "grouped_allreduce" + name)
    expect(hvd.allreduce(part(me), average=False), reductions(n)[hvd.Sum](0), "average=False")
    got = hvd.allreduce(part(me), op=hvd.Sum, prescale_factor=0.5, postscale_factor=4.0, name="scaled")
    expect(got, 2 * reductions(n)[hvd.Sum](0), "prescale_factor and postscale_factor")
    got = hvd.allreduce(part(me), op=hvd.Sum, compression=hvd.Compression.fp16, name="fp16")
    expect(got, reductions(n)[hvd.Sum](0), "Compression.fp16")


def check_gathering(me, n):
    want = [torch.cat([part(r, k, r + 1) for r in range(n)]) for k in range(2)]
    mine = [part(me, k, me + 1) for k in range(2)]
    expect(hvd.allgather(mine[0], name="gather"), want[0], "allgather")
    expect(hvd.synchronize(hvd.allgather_async(mine[0], name="gather async")), want[0], "allgather_async")
    for got, k in zip(hvd.grouped_allgather(mine, name="gathers"), range(2)):
        expect(got, want[k], "grouped_allgather")
    for got, k in zip(hvd.synchronize(hvd.grouped_allgather_async(mine, name="gathers async")), range(2)):
        expect(got, want[k], "grouped_allgather_async")


def check_broadcast(me, n):
    root = n - 1
    expect(hvd.broadcast(part(me), root, name="out"), part(root), "broadcast")
    expect(hvd.synchronize(hvd.broadcast_async(part(me), root, name="out async")), part(root), "broadcast_async")
    for name, call in (("_", lambda t: hvd.broadcast_(t, root, name="in")),
                       ("_async_", lambda t: hvd.synchronize(hvd.broadcast_async_(t, root, name="in async")))):
        tensor = part(me)
        assert call(tensor) is tensor
        expect(tensor, part(root), "broadcast" + name)


def check_alltoall(me, n):
    mine = torch.arange(2 * n) + 100 * me
    want = torch.cat([torch.arange(2 * me, 2 * me + 2) + 100 * r for r in range(n)])
    expect(hvd.alltoall(mine, name="even"), want, "alltoall")
    splits = torch.tensor([r + me for r in range(n)], dtype=torch.int32)
    mine = torch.cat([torch.full((int(count),), 10 * me + r) for r, count in enumerate(splits)])
    want = torch.cat([torch.full((r + me,), 10 * r + me) for r in range(n)])
    counts = torch.tensor([r + me for r in range(n)], dtype=torch.int32)
    for got, received in (hvd.alltoall(mine, splits, name="uneven"),
                          hvd.synchronize(hvd.alltoall_async(mine, splits, name="uneven async"))):
        expect(got, want, "alltoall with splits")
        expect(received, counts, "its received_splits")


def check_reducescatter(me, n):
    rows = n + 1  # the first rank gets two
    own = slice(0, 2) if me == 0 else slice(me + 1, me + 2)
    for op in (hvd.Sum, hvd.Average):
        want = [torch.stack([part(r, k, rows) for r in range(n)]).sum(0)[own] / (1 if op == hvd.Sum else n)
                for k in range(2)]
        mine = [part(me, k, rows) for k in range(2)]
        expect(hvd.reducescatter(mine[0], op=op, name="scatter"), want[0], "reducescatter")
        got = hvd.synchronize(hvd.reducescatter_async(mine[0], op=op, name="scatter async"))
        expect(got, want[0], "reducescatter_async")
        for got, k in zip(hvd.grouped_reducescatter(mine, op=op, name="scatters"), range(2)):
            expect(got, want[k], "grouped_reducescatter")
        handle = hvd.grouped_reducescatter_async(mine, op=op, name="scatters async")
        for got, k in zip(hvd.synchronize(handle), range(2)):
            expect(got, want[k], "grouped_reducescatter_async")


def check_sparse(me, n):
    tensor = torch.sparse_coo_tensor([[0, me + 1]], torch.tensor([1.0, 2.0 + me]), (n + 2,))
    want = torch.zeros(n + 2)
    want[0] = n
    want[1:n + 1] = 2.0 + torch.arange(float(n))
    for op, scale in ((hvd.Sum, 1), (hvd.Average, n)):
        got = hvd.sparse_allreduce_async(tensor, "sparse%d" % op, op)()
        torch.testing.assert_close(got.to_dense(), want / scale)
        expect(torch.tensor(got.is_sparse), torch.tensor(True), "sparse_allreduce_async")


def trained(me, n, passes=1, **options):
    """Weights after some steps, and what one process gets from the whole batches."""
    out = []
    for wrapped in (True, False):
        torch.manual_seed(4)
        model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1)).double()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)
        if wrapped:
            groups = options.get("groups")
            if groups == "lists":
                options["groups"] = [list(model[0].parameters()), list(model[2].parameters())]
            optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters(), **options)
            if passes != options.get("backward_passes_per_step", 1):
                optimizer.set_backward_passes_per_step(passes)
        for step in range(4):
            optimizer.zero_grad()
            for i in range(passes):
                torch.manual_seed(10 * step + i)
                x = torch.randn(4 * n, 3, dtype=torch.float64)
                x = x[me::n] if wrapped else x
                (model(x) - x.sum(1, keepdim=True)).square().mean().backward()
            optimizer.step()
        out.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    return out


def check_optimizer(me, n):
    global checks
    cases = [{}, {"gradient_predivide_factor": 3.0}, {"backward_passes_per_step": 3, "passes": 3}, {"passes": 2},
             {"num_groups": 2}, {"groups": 2}, {"groups": "lists"}, {"sparse_as_dense": True},
             {"process_set": hvd.global_process_set}, {"gradient_as_bucket_view": True, "passes": 2}]
    for options in cases:
        got, want = trained(me, n, **options)
        torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-12, msg=str(options))
        checks += 1
    got, want = trained(me, n, compression=hvd.Compression.fp16)
    torch.testing.assert_close(got, want, rtol=0, atol=2e-3)
    assert not torch.equal(got, want)
    got, want = trained(me, n, op=hvd.Sum)
    assert not torch.allclose(got, want)
    expect(got, hvd.broadcast(got, 0), "the weights of all ranks")


def main():
    hvd.init()
    torch.set_num_threads(1)
    me, n = hvd.rank(), hvd.size()
    for check in (check_allreduce, check_gathering, check_broadcast, check_alltoall, check_reducescatter, check_sparse,
                  check_optimizer):
        check(me, n)
    hvd.barrier()
    rank.record(checks=checks)


main()
