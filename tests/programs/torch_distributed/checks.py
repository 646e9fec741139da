"""What programs of this folder check results with."""

import torch
import torch.distributed as dist

TORCH = tuple(int(n) for n in torch.__version__.split(".")[:2])


def same(what, ours, right):
    for a, b in zip(ours, right):
        if a.dtype != b.dtype or a.shape != b.shape or not torch.equal(a, b):
            raise AssertionError(f"{what}: rank {dist.get_rank()} has {a}, expected {b}")


def refused(error, text, function):
    try:
        function()
    except error as e:
        assert text in str(e), e
    else:
        raise AssertionError(f"no error: {text}")
