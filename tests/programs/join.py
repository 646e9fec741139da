"""Ranks with different numbers of inputs: every collective works until the
last rank has joined, and after that."""

import torch

import maypole.torch as hvd
import rank

checks = 0


def expect(got, want, what):
    global checks
    checks += 1
    if got.dtype != want.dtype or got.shape != want.shape or not torch.equal(got, want):
        raise AssertionError("rank %d: %s: got %s, want %s" % (
            hvd.rank(), what, got.flatten()[:8], want.flatten()[:8]))


def inputs_of(r, shift):
    """The number of steps of a rank."""
    return 2 + 2 * ((r + shift) % hvd.size())


def part(r, n):
    return (torch.arange(float(n)) + r) % 7 - 3


def step(active, ranks, process_set, n, names):
    """All collectives of a set in which only the ranks `active` take part."""
    me, size = hvd.rank(), len(ranks)
    x, parts = part(me, n), [part(r, n) for r in active]
    stacked = torch.stack(parts)
    total = stacked.sum(dim=0)
    use = {"process_set": process_set}
    name = lambda kind: "join." + kind if names else None
    what = "%%s of ranks %s among %s, %d elements" % (active, ranks, n)
    for op, want in ((hvd.Sum, total), (hvd.Average, total / size), (hvd.Min, stacked.min(dim=0).values),
                     (hvd.Max, stacked.max(dim=0).values), (hvd.Product, stacked.prod(dim=0))):
        expect(hvd.allreduce(x, op=op, name=name("op%d" % op), **use), want, what % ("allreduce op %d" % op))
    expect(hvd.allreduce(x > 0, op=hvd.Product, name=name("and"), **use),
           torch.stack([p > 0 for p in parts]).all(dim=0), what % "and")
    expect(hvd.allgather(x[:me + 1], name=name("all"), **use),
           torch.cat([part(r, n)[:r + 1] for r in active]), what % "allgather")
    expect(hvd.broadcast(x, active[-1], name=name("root"), **use),
           part(active[-1], n), what % "broadcast")
    expect(hvd.reducescatter(x, op=hvd.Sum, name=name("scatter"), **use),
           total.tensor_split(size)[ranks.index(me)], what % "reducescatter")
    sent = lambda a, b: torch.full(((a + b) % 3, n), 10.0 * a + b)
    rows, received = hvd.alltoall(torch.cat([sent(me, r) for r in ranks]), [(me + r) % 3 for r in ranks],
                                  name=name("to"), **use)
    expect(rows, torch.cat([sent(r, me) for r in active]), what % "alltoall")
    expect(received, torch.tensor([(r + me) % 3 if r in active else 0 for r in ranks], dtype=torch.int32),
           what % "received splits")
    for got, want in zip(hvd.grouped_allreduce([x, 3 * x], op=hvd.Sum, name=name("group"), **use),
                         [total, 3 * total]):
        expect(got, want, what % "grouped allreduce")


def uneven(shift, n, subset, names):
    """Steps until this rank's inputs end; the last rank to join."""
    everybody = list(range(hvd.size()))
    for i in range(inputs_of(hvd.rank(), shift)):
        active = [r for r in everybody if inputs_of(r, shift) > i]
        step(active, everybody, hvd.global_process_set, n, names)
        members = [r for r in active if r in subset.ranks]
        if hvd.rank() in members:
            step(members, subset.ranks, subset, n, names)
    # Its own earlier operation goes on while it stands aside.
    handle = hvd.allreduce_async(torch.full((n,), 1.0), op=hvd.Sum, name="tail")
    last = hvd.join()
    expect(hvd.synchronize(handle), torch.full((n,), float(hvd.size())), "submitted before the join")
    return last


def main():
    rank.started()
    hvd.init()
    subset = hvd.add_process_set([0, hvd.size() - 1])
    lasts = []
    for shift, n, names in ((0, 10, True), (1, 10, False), (2, 70001, True)):
        last = uneven(shift, n, subset, names)
        longest = max(range(hvd.size()), key=lambda r: inputs_of(r, shift))
        assert last == longest, (last, longest)
        lasts.append(last)
        # No rank stands aside any more; unnamed operations match as before.
        total = hvd.allreduce(torch.ones(3), op=hvd.Sum)
        expect(total, torch.full((3,), float(hvd.size())), "after the join")
        hvd.barrier()
    # A broadcast from a rank that has joined cannot be.
    text = ""
    if hvd.rank() > 0:
        try:
            hvd.broadcast(torch.ones(1), 0, "from")
        except hvd.HorovodInternalError as e:
            text = str(e)
    hvd.join()
    # All at once, with nothing left to do.
    assert hvd.join() in range(hvd.size())
    rank.record(checks=checks, lasts=lasts, text=text)
    hvd.shutdown()


if __name__ == "__main__":
    main()
