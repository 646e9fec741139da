"""Process sets that overlap, within a node and over nodes: every collective on
each, all in flight at once; removal; refused calls. For four ranks."""

import torch

import maypole.torch as hvd
import rank

MEMBERS = [[0, 1], [1, 2], [0, 3], [2, 3], [0, 2, 3]]

checks = 0


def expect(got, want, what):
    global checks
    checks += 1
    if got.dtype != want.dtype or got.shape != want.shape or not torch.equal(got, want):
        raise AssertionError("rank %d: %s: got %s, want %s" % (
            hvd.rank(), what, got.flatten()[:8], want.flatten()[:8]))


def part(r, n):
    return torch.arange(float(n)) % 11 + r


def start_all(s, n, step):
    """Every collective on set `s`: (handle, wanted result, what) of each."""
    ranks, me, size = s.ranks, hvd.rank(), s.size()
    x, total = part(me, n), sum(part(r, n) for r in ranks)
    use = {"name": "t", "process_set": s}
    root = ranks[step % size]
    rows = lambda a, b: (a + 2 * b + step) % 4  # from a to b
    sent = lambda a, b: torch.full((rows(a, b), n), 10.0 * a + b)
    return [
        (hvd.allreduce_async(x, op=hvd.Sum, **use), total, "allreduce"),
        (hvd.allreduce_async_(x.clone(), **use | {"name": "u"}), total / size, "average"),
        (hvd.allreduce_async(x, op=hvd.Max, process_set=s), part(max(ranks), n), "unnamed max"),
        (hvd.allgather_async(x[:me + 1], **use), torch.cat([part(r, n)[:r + 1] for r in ranks]), "allgather"),
        (hvd.broadcast_async(x, root, **use), part(root, n), "broadcast"),
        (hvd.reducescatter_async(x, op=hvd.Sum, **use), total.tensor_split(size)[s.rank()], "reducescatter"),
        (hvd.alltoall_async(torch.cat([sent(me, r) for r in ranks]), [rows(me, r) for r in ranks], **use),
         (torch.cat([sent(r, me) for r in ranks]),
          torch.tensor([rows(r, me) for r in ranks], dtype=torch.int32)), "alltoall"),
        (hvd.grouped_allreduce_async([x, 2 * x], op=hvd.Sum, **use), [total, 2 * total], "group"),
    ]


def check(handle, want, what):
    got = hvd.synchronize(handle)
    if isinstance(want, torch.Tensor):
        got, want = [got], [want]
    for g, w in zip(got, want):
        expect(g, w, what)


def check_collectives(sets):
    for step in range(4):
        for n in (1, 100, 60001):
            mine = [s for s in sets if s.included()] + [hvd.global_process_set]
            if (hvd.rank() + step) % 2:
                mine.reverse()  # the ranks differ in the order of sets
            started = [(s, start_all(s, n, step)) for s in mine]
            for s, operations in started:
                for handle, want, what in operations:
                    check(handle, want, "%s of %d elements in set %s" % (what, n, s.ranks))
        for s in sorted(sets, key=lambda s: s.ranks):
            if s.included():
                hvd.barrier(process_set=s)
                objects = hvd.allgather_object(("rank", hvd.rank()), process_set=s)
                assert objects == [("rank", r) for r in s.ranks], objects
                assert hvd.broadcast_object(hvd.rank(), s.ranks[-1], process_set=s) == s.ranks[-1]


def check_gradients(s):
    x = torch.ones(s.size(), requires_grad=True)
    weight = hvd.rank() + 1.0
    for call, want in (
        (lambda: hvd.alltoall(x, process_set=s), [r + 1.0 for r in s.ranks]),
        (lambda: hvd.reducescatter(x, op=hvd.Sum, process_set=s), [s.size() * (r + 1.0) for r in s.ranks]),
        (lambda: hvd.allreduce(x, op=hvd.Sum, process_set=s), [sum(r + 1.0 for r in s.ranks)] * s.size()),
    ):
        x.grad = None
        (call() * weight).sum().backward()
        expect(x.grad, torch.tensor(want), "gradient")


def check_training(s):
    """Each set's models stay equal; ranks outside train on their own."""
    model = torch.nn.Linear(4, 2)
    with torch.no_grad():
        for p in model.parameters():
            p.fill_(1.0)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0),
                                         model.named_parameters(), process_set=s)
    for _ in range(3):
        optimizer.zero_grad()
        (model.weight * (hvd.rank() + 1.0)).sum().backward()
        optimizer.step()
    ranks = s.ranks if s.included() else [hvd.rank()]
    step = sum(r + 1.0 for r in ranks) / len(ranks)
    if not torch.allclose(model.weight, torch.full((2, 4), 1.0 - 3 * step)):
        raise AssertionError("rank %d trained to %s" % (hvd.rank(), model.weight))


def error_of(call, kind):
    try:
        call()
    except kind as e:
        return str(e)
    raise AssertionError("no %s" % kind.__name__)


def main():
    rank.started()
    hvd.init(process_sets=[hvd.ProcessSet(MEMBERS[0])])
    texts = {}
    texts["again"] = error_of(lambda: hvd.add_process_set([1, 0]), ValueError)
    texts["everybody"] = error_of(lambda: hvd.add_process_set(range(4)), ValueError)
    texts["range"] = error_of(lambda: hvd.add_process_set([0, 4]), ValueError)
    first = hvd.ProcessSet(MEMBERS[0])
    hvd.init(process_sets=[first])
    sets = [first] + [hvd.add_process_set(m) for m in MEMBERS[1:]]
    ids = [s.process_set_id for s in sets]
    check_collectives(sets)
    if hvd.rank() == 0:
        texts["foreign"] = error_of(lambda: hvd.allreduce(torch.ones(1), name="x", process_set=sets[1]), ValueError)
        texts["root"] = error_of(lambda: hvd.broadcast(torch.ones(1), 1, "x", process_set=sets[2]), ValueError)
    for s in sets:
        if s.included():
            check_gradients(s)
        check_training(s)
    # Different requests are an error on every rank, and the job goes on.
    texts["differ"] = error_of(
        lambda: hvd.add_process_set([0, 1, 2] if hvd.rank() < 3 else [0, 1, 3]), hvd.HorovodInternalError)
    removed = sets.pop(1)
    assert hvd.remove_process_set(removed) and removed.process_set_id is None
    texts["removed"] = error_of(lambda: hvd.barrier(process_set=removed), ValueError)
    sets.append(hvd.add_process_set(MEMBERS[1]))
    assert sets[-1].process_set_id > max(ids), (sets[-1], ids)
    check_collectives(sets)
    hvd.barrier()
    # A new epoch has no sets; the same objects make them again.
    hvd.shutdown()
    assert sets[0].process_set_id is None
    hvd.init(process_sets=sets)
    assert [s.process_set_id for s in sets] == [1, 2, 3, 4, 5], sets
    check_collectives(sets)
    rank.record(checks=checks, ids=ids, **texts)
    hvd.shutdown()


if __name__ == "__main__":
    main()
