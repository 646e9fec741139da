"""Tensors and a name that are easily found in the traffic of the network.

An allreduce sums numbers, so one node submits the bytes and the others zeros.
Records the texts that have come back, or the error of init.
"""

import torch

import maypole.torch as hvd
import rank

NAME = "gradient.of.plan.nine"
LARGE = b"the weights of the model; "
SMALL = b"a small input..."
STEPS = 20


def tensor(text, count):
    if hvd.rank() != 0:
        return torch.zeros(len(text) * count, dtype=torch.uint8)
    return torch.frombuffer(bytearray(text * count), dtype=torch.uint8)


def main():
    torch.set_num_threads(1)
    try:
        hvd.init()
    except Exception as error:  # what the test wants to know
        rank.record(error=str(error))
        return
    got = []
    for _ in range(STEPS):  # names that come again go another way
        large = hvd.allreduce(tensor(LARGE, 40000), op=hvd.Sum, name=NAME)
        small = hvd.allreduce(tensor(SMALL, 4), op=hvd.Sum, name="small")
        got = [bytes(large.numpy().tobytes()) == LARGE * 40000, bytes(small.numpy().tobytes()) == SMALL * 4]
    rank.record(got=got)
    hvd.shutdown()


main()
