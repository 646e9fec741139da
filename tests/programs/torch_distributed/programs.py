"""Programs of torch.distributed on the backend maypole and on Gloo, in the same ranks: the same losses and weights.

    programs.py [NAME ...]     without names: all but those of checkpoints, which need CHECKPOINTS (a directory)

$REFERENCE names another backend than Gloo: nccl, for CUDA tensors ($PROGRAMS_DEVICE, see training.py). With two
ranks the backends must agree bit for bit (a sum of two is the same in either order), with more up to rounding. Rank 0
prints 'equal: NAME; NAME', and a line for each program that differs or fails; then the status is 1.
"""

import importlib
import os
import sys
import time
import traceback

import data_parallel
import torch
import torch.distributed as dist

import maypole.torch.distributed  # noqa: F401 - torch before 2.15 does not find the backend itself

PROGRAMS = dict(data_parallel.PROGRAMS)
CHECKPOINT_PROGRAMS = {}
if tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 11):  # older versions lack what these are made of, or have it elsewhere
    for module in map(importlib.import_module, ("sharded", "pipelines", "compiled_programs")):
        PROGRAMS.update(module.PROGRAMS)
        CHECKPOINT_PROGRAMS.update(getattr(module, "CHECKPOINT_PROGRAMS", {}))
# Sums of three or more halves have another rounding in another order, at each step.
REFERENCE = os.environ.get("REFERENCE", "gloo")
ROUGH = {"DDP, fp16 hook": 1e-4, "DDP, bf16 hook": 1e-3, "FSDP1, mixed precision": 1e-3}


def init_reference(rank, size):
    """Makes the other backend's group of all ranks."""
    os.environ["NCCL_HOSTID"] = f"rank-{rank}"  # so that NCCL takes ranks of one GPU, which it refuses on one host
    store = dist.FileStore(os.path.join(os.environ["MAYPOLE_TEST_DIR"], "reference"), size)
    dist.init_process_group(REFERENCE, store=store, rank=rank, world_size=size)


def difference(name, ours, theirs, size):
    """What is not equal; None if all is."""
    if len(ours) != len(theirs):
        return f"{len(ours)} values, with {REFERENCE} {len(theirs)}"
    limit = ROUGH.get(name, 1e-6)
    for number, (a, b) in enumerate(zip(ours, theirs)):
        if not (torch.equal(a, b) if size == 2 else torch.allclose(a, b, rtol=10 * limit, atol=limit)):
            apart = (a - b).abs().max().item() if a.shape == b.shape else None
            return f"value {number} of {len(ours)}, shapes {a.shape} and {b.shape}, is up to {apart} from {REFERENCE}'s"
    return None


def run(backend, programs, names, results):
    """Runs each; results[name]: its values, or the error's text."""
    for name in names:
        begin = time.monotonic()
        try:
            results[name] = [value.detach().clone() for value in programs[name]()]
            assert results[name], name
        except Exception:
            results[name] = traceback.format_exc()
        if os.environ["RANK"] == "0":
            print(f"{backend}: {name}: {time.monotonic() - begin:.2f} s", file=sys.stderr, flush=True)


def compare(names, ours, theirs, rank, size):
    """Prints rank 0's summary; returns whether all are equal on this rank."""
    equal = []
    for name in names:
        failed = [f"failed on {backend}: {result[name]}" for backend, result in (("maypole", ours), (REFERENCE, theirs))
                  if isinstance(result[name], str)]
        wrong = failed[0] if failed else difference(name, ours[name], theirs[name], size)
        if wrong is None:
            equal.append(name)
        else:
            print(f"rank {rank}: {name}: {wrong}", flush=True)
    if rank == 0:
        print("equal: " + "; ".join(equal), flush=True)
    return equal == names


def main():
    names = sys.argv[1:] or list(PROGRAMS)
    programs = {**PROGRAMS, **CHECKPOINT_PROGRAMS}
    torch.set_num_threads(1)
    ours, theirs = {}, {}
    dist.init_process_group("maypole")
    rank, size = dist.get_rank(), dist.get_world_size()
    run("maypole", programs, names, ours)
    dist.destroy_process_group()
    init_reference(rank, size)
    run(REFERENCE, programs, names, theirs)
    dist.destroy_process_group()
    if not compare(names, ours, theirs, rank, size):
        sys.exit(1)


if __name__ == "__main__":
    main()
