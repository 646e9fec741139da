"""Tensors in the arena and gradient buckets, on real ranks, with values.

Records how many operations of each part ran in the arena; arena_test.py has
the expected numbers.
"""

import gc
import os
import warnings

import torch
from torch import nn

import maypole.torch as hvd
import rank
from maypole.common import basics

# Above what is copied at submit anyway, several chunks, not a multiple of one.
SIZES = (50000, 1500001)
GIB = 1 << 30


def in_arena():
    return basics.counter("arena_operations")


def expect(condition, what):
    if not condition:
        raise AssertionError("rank %d: %s" % (hvd.rank(), what))


def ramp(n, dtype, r, turn):
    """Small integers, so that sums are exact in every dtype."""
    return ((torch.arange(n) + 3 * r + 5 * turn) % 7).to(dtype)


def total(n, dtype, turn):
    return sum(ramp(n, torch.float64, r, turn)
               for r in range(hvd.size())).to(dtype)


def check_tensors():
    before = in_arena()
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16,
                  torch.int64):
        for n in SIZES:
            tensor = hvd.empty(n, dtype=dtype)
            for turn in range(3):
                tensor.copy_(ramp(n, dtype, hvd.rank(), turn))
                hvd.allreduce_(tensor, name="t", op=hvd.Sum)
                expect(torch.equal(tensor, total(n, dtype, turn)),
                       "sum of %s[%d]" % (dtype, n))
    return in_arena() - before


def check_parts():
    """Views, including some that the arena cannot handle."""
    n = SIZES[0]
    tensor = hvd.empty(2 * n)
    before = in_arena()
    for offset in (0, 16, 1600):
        part = tensor[offset:offset + n]
        part.copy_(ramp(n, torch.float32, hvd.rank(), offset))
        hvd.allreduce_(part, name="part", op=hvd.Sum)
        expect(torch.equal(part, total(n, torch.float32, offset)), "part")
    aligned = in_arena() - before
    ordinary = torch.empty(n)
    for source in (tensor[1:n + 1],
                   tensor[:n] if hvd.rank() == 0 else ordinary):
        source.copy_(ramp(n, torch.float32, hvd.rank(), 1))
        hvd.allreduce_(source, name="part", op=hvd.Sum)
        expect(torch.equal(source, total(n, torch.float32, 1)), "staged part")
    out = hvd.allreduce(tensor[:n], name="out", op=hvd.Sum)
    expect(out.data_ptr() != tensor.data_ptr(), "out of place")
    return aligned, in_arena() - before - aligned


def check_own(tensor):
    """A rank's writes are not visible to other ranks."""
    hvd.allreduce_(tensor.fill_(1.0), name="own", op=hvd.Average)
    hvd.barrier()
    tensor.fill_(float(hvd.rank()))
    hvd.barrier()
    expect(torch.equal(tensor, torch.full_like(tensor, hvd.rank())),
           "a tensor has another rank's values")


def check_fork(tensor):
    """A child (a DataLoader's worker) writes to its own copy only."""
    tensor.fill_(float(hvd.rank()))
    child = os.fork()
    if child == 0:
        status = 1
        try:
            same = bool((tensor == hvd_rank_of_parent).all())
            tensor.fill_(99.0)
            status = 0 if same and bool((tensor == 99.0).all()) else 2
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    expect(status == 0, "the child ended with %d" % status)
    expect(bool((tensor == float(hvd.rank())).all()), "the child wrote here")
    before = in_arena()
    hvd.allreduce_(tensor.fill_(2.0), name="after fork", op=hvd.Sum)
    expect(bool((tensor == 2.0 * hvd.size()).all()), "sum after fork")
    return in_arena() - before


def network():
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(200, 300), nn.ReLU(), nn.Linear(300, 300),
                         nn.ReLU(), nn.Linear(300, 10))


def loss_of(model, step):
    g = torch.Generator().manual_seed(100 * step + hvd.rank())
    x = torch.randn(8, 200, generator=g)
    return nn.functional.mse_loss(model(x), x[:, :10])


def train(steps, zero="optimizer", **options):
    """Trains; returns the weights, and how many operations ran in the arena."""
    model = network()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9),
        model.named_parameters(), **options)
    before = in_arena()
    for step in range(steps):
        if zero == "optimizer":
            optimizer.zero_grad(set_to_none=True)
        else:
            model.zero_grad(set_to_none=True)
        loss_of(model, step).backward()
        optimizer.step()
    return [p.detach().clone() for p in model.parameters()], in_arena() - before


def difference(a, b):
    return max(float((x - y).abs().max()) for x, y in zip(a, b))


def replaced():
    return hvd.arena_statistics()["fallbacks"].get("gradient_replaced", 0)


def check_optimizer():
    want, none = train(6)
    expect(none == 0, "no buckets, no arena")
    whole, in_whole = train(6, gradient_as_bucket_view=True)
    # Two buckets: 373 KB and 241 KB.
    parts, in_parts = train(6, gradient_as_bucket_view=True, bucket_cap_mb=0.4)
    expect(replaced() == 0, "fall-backs where there should be none")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model_zeroed, in_zeroed = train(6, zero="model",
                                        gradient_as_bucket_view=True)
    return {
        "operations": [in_whole, in_parts, in_zeroed],
        "replaced": replaced(),
        "difference": max(difference(want, w)
                          for w in (whole, parts, model_zeroed)),
    }


def check_clipping():
    model = network()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.5), model.named_parameters(),
        gradient_as_bucket_view=True)
    for step in range(2):
        optimizer.zero_grad()
        loss_of(model, step).backward()
        optimizer.synchronize()
    before = [p.grad.clone() for p in model.parameters()]
    hvd.barrier()
    if hvd.rank() == 0:
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
    hvd.barrier()
    same = [torch.equal(p.grad, g) for p, g in zip(model.parameters(), before)]
    expect(same == [hvd.rank() != 0] * 6, "clipped: %s" % same)
    with optimizer.skip_synchronize():
        optimizer.step()


def check_full():
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        too_much = hvd.empty(9 * GIB, dtype=torch.uint8)
    expect(too_much.numel() == 9 * GIB, "ordinary memory instead")
    expect(len(said) == 1, "one warning")
    return [str(said[0].message), hvd.arena_statistics()["fallbacks"]]


hvd_rank_of_parent = None


def main():
    global hvd_rank_of_parent
    torch.set_num_threads(1)
    rank.started()
    hvd.init()
    hvd_rank_of_parent = float(hvd.rank())
    seen = {"tensors": check_tensors(), "parts": check_parts()}
    tensor = hvd.empty(SIZES[1])
    check_own(tensor)
    seen["fork"] = check_fork(tensor)
    seen["optimizer"] = check_optimizer()
    check_clipping()
    seen["full"] = check_full() if hvd.rank() == 0 else None
    gc.collect()
    statistics = hvd.arena_statistics()
    expect(statistics["tensors"] == 1, "live: %s" % statistics)
    seen["bytes"] = [basics.counter("arena_bytes")]

    tensor.fill_(4.0)
    hvd.shutdown()
    tensor[::2] = 5.0
    expect(float(tensor.sum()) == 4.5 * SIZES[1] + 0.5, "after shutdown")
    seen["bytes"].append(basics.counter("arena_bytes"))
    del tensor
    gc.collect()
    seen["bytes"].append(basics.counter("arena_bytes"))

    hvd.init()  # the next epoch
    seen["again"] = check_tensors()
    rank.record(**seen)
    hvd.shutdown()


if __name__ == "__main__":
    main()
