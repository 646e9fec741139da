"""A rank has no memory for a gathered result: records the error of each rank.

usage: no_room.py VICTIM
"""

import resource
import sys

import torch

import maypole.torch as hvd
import rank

BYTES = 64 << 20  # of each rank's tensor


def mapped():
    with open("/proc/self/status") as f:
        return next(int(line.split()[1]) for line in f if line.startswith("VmSize")) << 10


def main():
    torch.set_num_threads(1)
    hvd.init()
    hvd.allgather(torch.ones(8), name="warm")
    tensor = torch.ones(BYTES, dtype=torch.uint8)
    if hvd.rank() == int(sys.argv[1]):
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (mapped() + BYTES // 2, hard))
    error = None
    try:
        hvd.allgather(tensor, name="large")
    except hvd.HorovodInternalError as e:
        error = str(e)
    rank.record(error=error)


if __name__ == "__main__":
    main()
