"""Operations of all kinds on tensors of $DAY_DEVICE, each compared bit for bit with the same one on CPU tensors.

usage: torch_values.py ROUNDS

Every round: all kinds and dtypes, even, ragged and empty ones; then inputs that are overwritten right after their
submission, and results that are used right after the wait, on the stream of the program and on another one. At the
end come mismatches, whose errors name both sides. Records how many results were compared, and the differences.
"""

import os
import sys

import torch

import maypole.torch as hvd
import rank
from maypole.common import basics

DEVICE = torch.device(os.environ["DAY_DEVICE"])
DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8,
          torch.uint8, torch.bool)
ROWS, COLUMNS = 20011, 7  # beyond the eager limit for every dtype
LARGE = 3 << 20


class Comparison:

    def __init__(self):
        self.compared = 0
        self.differences = []

    def equal(self, what, on_device, on_cpu):
        self.compared += 1
        if on_device.device.type != DEVICE.type:
            self.differences.append("%s: the result is on %s" % (what, on_device.device))
        a, b = on_device.cpu(), on_cpu
        same = a.shape == b.shape and a.dtype == b.dtype and (a.numel() == 0 or torch.equal(
            a.contiguous().view(-1).view(torch.uint8), b.contiguous().view(-1).view(torch.uint8)))
        if not same and len(self.differences) < 20:
            self.differences.append("%s: shapes %s and %s, %s elements differ" % (
                what, list(a.shape), list(b.shape), int((a != b).sum()) if a.shape == b.shape else "all"))


def numbers(shape, dtype, seed):
    generator = torch.Generator().manual_seed(seed)
    whole = torch.randint(0, 5, shape, generator=generator)
    if dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        return (whole + torch.randn(shape, generator=generator)).to(dtype)
    return whole.to(dtype)


def kinds(seed, dtype):
    """Pairs (name, function of (tensor to start with, name of the operation)); the tensor is this rank's."""
    me, size = hvd.rank(), hvd.size()
    even = numbers((ROWS, COLUMNS), dtype, 10 * seed + me)
    ragged = numbers((ROWS if me == 0 else 11 * (size - 1 - me), COLUMNS), dtype, 10 * seed + me)
    nothing = numbers((0, COLUMNS), dtype, seed)
    splits = [ROWS // size // (1 + to) for to in range(size)]
    splits_to_first = [ROWS if to == 0 and me > 0 else 0 for to in range(size)]
    sends = numbers((sum(splits), COLUMNS), dtype, 10 * seed + me)
    sends_to_first = numbers((sum(splits_to_first), COLUMNS), dtype, 10 * seed + me)
    yield "allreduce", even, lambda x, n: hvd.allreduce(x, name=n, op=hvd.Sum)
    yield "allreduce in place", even, lambda x, n: hvd.allreduce_(x.clone(), name=n, op=hvd.Max)
    yield "transposed", even, lambda x, n: hvd.allreduce(x.t(), name=n, op=hvd.Min)
    if dtype.is_floating_point:
        yield "average", even, lambda x, n: hvd.allreduce(x, name=n)
        yield "scaled", even, lambda x, n: hvd.allreduce(x, name=n, op=hvd.Sum, prescale_factor=0.5, postscale_factor=3.0)
    yield "broadcast", even, lambda x, n: hvd.broadcast(x, size - 1, name=n)
    yield "allgather", even, lambda x, n: hvd.allgather(x, name=n)
    yield "ragged allgather", ragged, lambda x, n: hvd.allgather(x, name=n)
    yield "empty allgather", nothing, lambda x, n: hvd.allgather(x, name=n)
    yield "empty allreduce", nothing, lambda x, n: hvd.allreduce(x, name=n, op=hvd.Sum)
    yield "reducescatter", even, lambda x, n: hvd.reducescatter(x, name=n, op=hvd.Sum)
    yield "alltoall", sends, lambda x, n: hvd.alltoall(x, torch.tensor(splits), name=n)
    yield "ragged alltoall", sends_to_first, lambda x, n: hvd.alltoall(x, torch.tensor(splits_to_first), name=n)


def compare_kinds(comparison, seed):
    for dtype in DTYPES:
        for what, tensor, call in kinds(seed, dtype):
            name = "%s.%s.%d" % (what, dtype, seed)
            expected = call(tensor, name + ".cpu")
            got = call(tensor.to(DEVICE), name)
            if isinstance(got, tuple):
                comparison.equal(name + " splits", got[1].to(DEVICE), expected[1])
                got, expected = got[0], expected[0]
            comparison.equal(name, got, expected)


def compare_order(comparison, seed):
    """Inputs that are overwritten after their submission, and results that are used at once, are never torn."""
    me, size = hvd.rank(), hvd.size()
    side = torch.cuda.Stream() if DEVICE.type == "cuda" else None
    x = torch.empty(LARGE, device=DEVICE)
    handles, expected = [], []
    # Promised for CUDA tensors at sites agent and host only (docs/gpu.md).
    reuses = DEVICE.type == "cuda"
    for i in range(4):
        if not reuses:
            x = torch.empty(LARGE, device=DEVICE)
        x.fill_(me + i + seed)
        handles.append(hvd.allreduce_async(x, name="overwritten.%d.%d" % (seed, i), op=hvd.Sum))
        if reuses:
            x.fill_(-1000.0)
        expected.append(float(sum(r + i + seed for r in range(size))))
    for i, (handle, value) in enumerate(zip(handles, expected)):
        result = hvd.synchronize(handle)
        if side is not None and i % 2 == 1:
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                used = result * 2
                result.record_stream(side)
            torch.cuda.current_stream().wait_stream(side)
        else:
            used = result * 2
        comparison.equal("used at once %d" % i, used, torch.full((LARGE,), 2 * value))
    y = torch.full((LARGE,), float(me), device=DEVICE)
    for i in range(3):  # a chain: each depends on the one before
        y = hvd.allreduce(y + 1, name="chain.%d.%d" % (seed, i), op=hvd.Average)
    comparison.equal("chain", y, torch.full((LARGE,), (size - 1) / 2 + 3))


def mismatches():
    """{what: the error's text, from the tensor's name on} of operations that differ between ranks."""
    me, found = hvd.rank(), {}
    cases = {
        "shapes": lambda n: hvd.allreduce(torch.ones(ROWS + me % 2, device=DEVICE), name=n),
        "dtypes": lambda n: hvd.allreduce(torch.ones(ROWS, device=DEVICE, dtype=(torch.float32, torch.float64)[me % 2]),
                                          name=n),
        "devices": lambda n: hvd.allreduce(torch.ones(ROWS, device=DEVICE if me % 2 else "cpu"), name=n),
    }
    if DEVICE.type == "cpu":
        del cases["devices"]
    for what, call in cases.items():
        name = "mismatch." + what
        try:
            call(name)
            found[what] = "no error"
        except (hvd.HorovodInternalError, ValueError) as error:
            text = str(error)
            found[what] = text[text.index(name):] if name in text else "it does not name %s: %s" % (name, text)
    return found


def main():
    rank.started()
    rounds = int(sys.argv[1])
    hvd.init()
    torch.set_num_threads(1)
    comparison = Comparison()
    # The first one tells each rank which GPU the others use; it may run on the host.
    for i in range(3):
        hvd.allreduce(torch.ones(ROWS * COLUMNS, device=DEVICE), name="first.%d" % i)
    before = basics.counter("gpu_operations")
    for seed in range(rounds):
        compare_kinds(comparison, seed)
        compare_order(comparison, seed)
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()
    on_gpu = basics.counter("gpu_operations") - before
    rank.record(compared=comparison.compared, differences=comparison.differences, on_gpu=on_gpu, errors=mismatches())
    hvd.shutdown()


main()
