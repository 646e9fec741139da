"""Training under torchrun --max-restarts: the last rank dies once; torchrun restarts all ranks from the checkpoint.

restarts.py DIRECTORY: keeps the checkpoint there. Rank 0 prints 'trained: STEPS after RESTARTS restarts, sum VALUE'.
"""

import os
import signal
import sys

import torch
import torch.distributed as dist

import maypole.torch.distributed  # noqa: F401 - torch before 2.15 does not find the backend itself

STEPS = 8
DIES_AT = 5


def main():
    path, restarts = os.path.join(sys.argv[1], "checkpoint"), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    dist.init_process_group("maypole")
    rank, size = dist.get_rank(), dist.get_world_size()
    step, weight = torch.load(path) if os.path.exists(path) else (0, torch.zeros(3))
    while step < STEPS:
        if step == DIES_AT and restarts == 0 and rank == size - 1:
            os.kill(os.getpid(), signal.SIGKILL)
        gradient = torch.full((3,), float(step + rank))
        dist.all_reduce(gradient)
        weight = weight + gradient
        step += 1
        if rank == 0:
            torch.save((step, weight), path + ".new")
            os.rename(path + ".new", path)
        dist.barrier()  # nobody goes on before it is there
    if rank == 0:
        print(f"trained: {step} after {restarts} restarts, sum {weight.sum().item():g}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
