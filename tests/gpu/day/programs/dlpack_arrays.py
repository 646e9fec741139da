"""CuPy's arrays in maypole.torch, by DLPack; NumPy's if DAY_DEVICE is cpu. Submitted on CuPy's own stream."""

import contextlib
import os

import torch

import maypole.torch as hvd
import rank
from maypole.common import basics

if os.environ["DAY_DEVICE"] == "cuda":
    import cupy as arrays
else:
    import numpy as arrays


def main():
    rank.started()
    hvd.init()
    torch.set_num_threads(1)
    total = hvd.size() * (hvd.size() + 1) / 2
    stream = arrays.cuda.Stream(non_blocking=True) if hasattr(arrays, "cuda") else contextlib.nullcontext()
    for turn in range(10):
        with stream:  # what an array's consumer waits for is the work on CuPy's current stream
            x = arrays.full((400, 500), hvd.rank() + 1, dtype="float32")
            x *= 2
            hvd.allreduce_(x, name="array.%d" % turn, op=hvd.Sum)
            out = hvd.allreduce(x, name="new.%d" % turn)
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        if not bool((x == 2 * total).all()):
            raise AssertionError("turn %d: %s, expected %g" % (turn, x[:1, :4], 2 * total))
        if float(out.mean()) != 2 * total:
            raise AssertionError("turn %d: the average is %s" % (turn, out))
    rank.record(library=arrays.__name__, version=arrays.__version__, on_gpu=basics.counter("gpu_operations"))
    hvd.shutdown()


main()
