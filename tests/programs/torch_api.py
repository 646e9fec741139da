"""The smaller parts of Horovod's interface, on real ranks; then a job that goes on
after errors: shutdown() and init() in the same processes."""

import torch

import maypole.torch as hvd
import rank

checks = 0


def expect(got, want):
    global checks
    checks += 1
    got = got.tolist() if isinstance(got, torch.Tensor) else got
    assert got == want, "rank %d: got %s, want %s" % (rank.RANK, got, want)


def error_of(call, kind):
    try:
        call()
    except kind as error:
        return str(error)
    raise AssertionError("no %s" % kind.__name__)


def check_parts(n):
    """Jobs of some of the ranks, beside each other; then all together again."""
    me, nodes = rank.RANK, int(rank.os.environ["MAYPOLE_CROSS_SIZE"])
    if n % nodes:
        text = error_of(lambda: hvd.init(comm=[0, me] if me else [0]), NotImplementedError)
        assert "different numbers of ranks" in text, text
        return
    part = [r for r in range(n) if r % 2 == me % 2]
    text = error_of(lambda: hvd.init(comm=[r for r in range(n) if r not in part]), ValueError)
    assert "rank %d is not in the list" % me in text, text
    for _ in range(2):
        hvd.init(comm=part)
        expect((hvd.rank(), hvd.size()), (part.index(me), len(part)))
        expect(hvd.cross_size(), nodes if len(part) > 1 else 1)
        expect(hvd.allgather(torch.tensor([me])), part)
        hvd.shutdown()
    expect(int(rank.os.environ["MAYPOLE_RANK"]), me)


def check_init():
    n = int(rank.os.environ["MAYPOLE_SIZE"])
    hvd.init(comm=list(range(n)))
    hvd.init()
    hvd.shutdown()
    check_parts(n)
    twice = [hvd.ProcessSet([0]), hvd.ProcessSet([0])]
    text = error_of(lambda: hvd.init(process_sets=twice), ValueError)
    assert "same ranks" in text, text
    expect((hvd.is_initialized(), twice[0].process_set_id), (True, None))
    own = [hvd.ProcessSet([r]) for r in range(n)]
    hvd.init(process_sets=own)
    for r, one in enumerate(own):
        expect((one.ranks, one.size(), one.included(), one.mpi_comm), ([r], 1, r == hvd.rank(), None))
    expect(own[hvd.rank()].rank(), 0)
    expect(len({one.process_set_id for one in own} | {0}), n + 1)
    for again in (own[0], [0], list(range(n))):
        error_of(lambda again=again: hvd.add_process_set(again), ValueError)
    expect(hvd.global_process_set.ranks, list(range(n)))
    expect(hvd.remove_process_set(own[0]), True)
    expect((own[0].process_set_id, own[0].ranks), (None, None))
    expect(hvd.remove_process_set(hvd.global_process_set), False)
    expect((hvd.Average, hvd.Sum, hvd.Adasum, hvd.Min, hvd.Max, hvd.Product), (0, 1, 2, 3, 4, 5))
    expect((hvd.mpi_threads_supported(), hvd.mpi_enabled(), hvd.mpi_built()), (False, False, False))
    expect((hvd.gloo_enabled(), hvd.gloo_built(), hvd.is_homogeneous()), (True, True, n != 3 or hvd.cross_size() != 2))


def check_integer_scales():
    """As Horovod: an average is one product with postscale / ranks."""
    n, total = hvd.size(), hvd.size() * (hvd.size() + 1) // 2
    for dtype in (torch.int32, torch.int64, torch.int8):
        x = torch.tensor([1, -3, 4], dtype=dtype) * (hvd.rank() + 1)
        expect(hvd.allreduce(x, op=hvd.Sum, postscale_factor=0.5), [int(v * total * 0.5) for v in (1, -3, 4)])
        expect(hvd.allreduce(x, name="mean", postscale_factor=2.5), [int(v * total * (2.5 / n)) for v in (1, -3, 4)])
        halves = [[int(v * (r + 1) * 0.5) for r in range(n)] for v in (1, -3, 4)]
        expect(hvd.allreduce(x, op=hvd.Sum, prescale_factor=0.5), [sum(v) for v in halves])
        expect(hvd.grouped_allreduce([x, x.float()], op=hvd.Max, prescale_factor=0.5)[0], [max(v) for v in halves])
        y = x.clone()
        hvd.allreduce_(y, op=hvd.Sum, name="in", prescale_factor=0.5)
        expect(y, [sum(v) for v in halves])
        rows = torch.arange(2 * n, dtype=dtype)
        got = hvd.reducescatter(rows, op=hvd.Sum, postscale_factor=0.5)
        expect(got, [int(i * n * 0.5) for i in (2 * hvd.rank(), 2 * hvd.rank() + 1)])
    try:
        hvd.allreduce(x, op=hvd.Sum, name="differ", postscale_factor=2.0 + hvd.rank())
        raise AssertionError("different factors of integers were accepted")
    except hvd.HorovodInternalError as error:
        assert "mismatched postscale factors" in str(error), error


def check_gradients():
    """Members of a group that have no gradient, or are not used."""
    n, weight = hvd.size(), hvd.rank() + 1.0
    total = n * (n + 1) / 2
    x, y = torch.ones(2, requires_grad=True), torch.ones(3, requires_grad=True)
    counts = torch.arange(4)
    first, _, second = hvd.grouped_allreduce([x, counts, y], op=hvd.Sum, name="mixed")
    (first * weight).sum().backward()
    expect((x.grad.tolist(), y.grad.tolist()), ([total] * 2, [0.0] * 3))
    del second
    x.grad = None
    gathered, numbers = hvd.grouped_allgather([x, counts])
    expect(numbers.requires_grad, False)
    (gathered * weight).sum().backward()
    expect(x.grad, [total / n] * 2)
    z = torch.ones(n, requires_grad=True)
    part, _ = hvd.grouped_reducescatter([z, torch.arange(n)], op=hvd.Sum)
    (part * weight).sum().backward()
    expect(z.grad, [n * (r + 1.0) for r in range(n)])
    w = torch.ones(2, requires_grad=True)
    (hvd.broadcast(w, 0, "root") * weight).sum().backward()
    expect(w.grad, [total / n if hvd.rank() == 0 else 0.0] * 2)
    # The members of a group, one after the other.
    pair = [torch.ones(2, requires_grad=True), torch.ones(1, requires_grad=True)]
    for part in hvd.grouped_allreduce(pair, op=hvd.Sum, name="pair"):
        part.backward(torch.ones_like(part))
    expect([p.grad.tolist() for p in pair], [[float(n)] * 2, [float(n)]])
    # Twice: the gradient of a gradient.
    v = torch.ones(1, requires_grad=True)
    (slope,) = torch.autograd.grad((hvd.allreduce(v**3, op=hvd.Sum)).sum(), v, create_graph=True)
    slope.sum().backward()
    expect(v.grad, [6.0 * n])


def check_handles():
    handle = hvd.allreduce_async(torch.ones(2), op=hvd.Sum)
    while not hvd.poll(handle):
        pass
    expect(hvd.synchronize(handle), [float(hvd.size())] * 2)
    expect(hvd.synchronize(handle), None)
    error_of(lambda: hvd.poll(handle), ValueError)
    hvd.barrier()


def works():
    expect(hvd.allreduce(torch.ones(3), op=hvd.Sum, name="works"), [float(hvd.size())] * 3)
    expect(hvd.broadcast_object(hvd.rank(), 1), 1)


def again():
    hvd.shutdown()
    hvd.init()
    works()


def check_recovery():
    """Each time the same processes form a working job again."""
    me = hvd.rank()
    text = error_of(lambda: hvd.allreduce(torch.ones(2 + me), name="differs"), hvd.HorovodInternalError)
    assert "'differs': mismatched shapes" in text, text
    again()
    wait = hvd.allreduce if me == 0 else hvd.allgather
    text = error_of(lambda: wait(torch.ones(1), name="stuck"), hvd.HorovodInternalError)
    assert "deadlock" in text and "'stuck'" in text, text
    again()
    model = torch.nn.Linear(2, 1)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(),
                                         compression=hvd.Compression.powersgd(1), gradient_as_bucket_view=False)
    hvd.broadcast_parameters(model.state_dict(), 0)
    for end in (False, True):
        optimizer.zero_grad()
        model(torch.full((1, 2), me + 1.0)).sum().backward()
        optimizer.step()
        sums = hvd.allgather(torch.cat([p.detach().reshape(-1) for p in model.parameters()]).reshape(1, -1))
        expect(sums, sums[:1].expand_as(sums).tolist())
        if not end:
            again()
    # One rank leaves while another waits for it.
    if me == 0:
        text = error_of(lambda: hvd.allreduce(torch.ones(1), name="left"), hvd.HorovodInternalError)
        assert "has shut down" in text, text
    again()


def main():
    rank.started()
    check_init()
    works()
    check_integer_scales()
    check_gradients()
    check_handles()
    check_recovery()
    rank.record(checks=checks)
    hvd.shutdown()


if __name__ == "__main__":
    main()
