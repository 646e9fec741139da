"""One rank of neighbour_bench.py: synchronous allreduces, one after the other.

Commands come from the bench over a unix socket: the answer to `run SECONDS GAP BYTES` has the
microseconds of each allreduce and the CPU seconds that they took; `quit` ends the rank.
Before each allreduce a rank computes for GAP microseconds on average.
"""

import json
import os
import random
import socket
import time

import torch

import maypole.torch as hvd

BLOCK = 64  # allreduces between two looks at the clock


def compute(microseconds):
    end = time.perf_counter_ns() + random.uniform(0, 2 * microseconds) * 1e3
    while time.perf_counter_ns() < end:
        pass


def run(seconds, gap, size):
    """All ranks return after the same number of allreduces: rank 0 decides."""
    tensor = torch.ones(int(size) // 4)
    more = torch.ones(1)
    times = []
    hvd.barrier()
    cpu = time.process_time()
    begin = last = time.perf_counter_ns()
    end = begin + int(seconds * 1e9)
    while more.item() > 0:
        for _ in range(BLOCK):
            if gap > 0:
                compute(gap)
                last = time.perf_counter_ns()
            hvd.allreduce_(tensor, name=f"tensor.{int(size)}", op=hvd.Max)
            now = time.perf_counter_ns()
            times.append(now - last)
            last = now
        more.fill_(1.0 if hvd.rank() == 0 and now < end else 0.0)
        hvd.allreduce_(more, name="more", op=hvd.Max)
        last = time.perf_counter_ns()
    return {"us": [t / 1e3 for t in times], "cpu": time.process_time() - cpu,
            "seconds": (last - begin) / 1e9}


def main():
    torch.set_num_threads(1)
    hvd.init()
    conductor = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    conductor.connect(os.environ["NEIGHBOUR_BENCH_SOCKET"])
    with conductor.makefile("rw", encoding="ascii") as lines:
        print(hvd.rank(), file=lines, flush=True)
        for line in lines:
            words = line.split()
            if words[0] == "quit":
                break
            print(json.dumps(run(*map(float, words[1:]))), file=lines, flush=True)
    hvd.shutdown()


if __name__ == "__main__":
    main()
