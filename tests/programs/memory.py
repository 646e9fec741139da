"""A rank that uses its board, fills its arena, and frees it, each when the test requests it.

usage: memory.py [TENSOR_BYTES]   size of the arena's tensors; 0: no arena
"""

import sys

import torch

import maypole.torch as hvd
import rank
from maypole import _native


def reduced(tensor, name):
    tensor.fill_(float(hvd.rank() + 1))
    hvd.allreduce_(tensor, name=name, op=hvd.Sum)
    return float(tensor[0]), float(tensor[-1])


def expect_sum(tensor, name):
    want = float(sum(range(1, hvd.size() + 1)))
    got = reduced(tensor, name)
    if got != (want, want):
        raise AssertionError("%s is %s and should be %g" % (name, got, want))


def touch_all():
    """Uses every place of the rings, and a pool buffer."""
    expect_sum(torch.empty(16 << 20), "large")
    expect_sum(torch.empty(16), "small")


def fill_arena(size):
    """Fills the arena; returns its tensors, and the error of the one that did not fit."""
    addresses = []
    while True:
        try:
            addresses.append(_native.library().allocate(size))
        except _native.StatusError as error:
            return addresses, error


def main():
    size = int(sys.argv[1]) if len(sys.argv) > 1 else 0
    torch.set_num_threads(1)
    rank.started()
    hvd.init()
    touch_all()
    rank.touch("used.%d" % hvd.rank())
    seen = {}
    if size > 0:
        rank.await_file("fill")
        mine = hvd.empty(size // 4)
        addresses, error = fill_arena(size)
        seen = {"tensors": 1 + len(addresses), "code": error.code, "text": str(error)}
        expect_sum(mine, "in the arena")
        touch_all()
        rank.touch("full.%d" % hvd.rank())
        rank.await_file("free")
        for address in addresses:
            _native.library().free(address)
        del mine
        touch_all()
        rank.touch("freed.%d" % hvd.rank())
    rank.await_file("end")
    rank.record(**seen)
    hvd.shutdown()


if __name__ == "__main__":
    main()
