"""Each kind of mismatch: records this rank's error, and checks that the job continues."""

import torch

import maypole.torch as hvd
import rank


def attempt(submit):
    try:
        hvd.synchronize(submit())
    except hvd.HorovodInternalError as e:
        return str(e)
    return "no error"


def main():
    hvd.init()
    ends = hvd.add_process_set([0, hvd.size() - 1])
    odd = hvd.rank() == hvd.size() - 1
    cases = {
        "shape": lambda: hvd.allreduce_async(torch.ones(4 if odd else 3), name="grad.w", op=hvd.Sum),
        "dtype": lambda: hvd.allreduce_async(
            torch.ones(3, dtype=torch.float64 if odd else torch.float32), name="grad.w", op=hvd.Sum),
        "op": lambda: hvd.allreduce_async(torch.ones(3), name="grad.w", op=hvd.Average if odd else hvd.Sum),
        "prescale": lambda: hvd.allreduce_async(
            torch.ones(3), name="grad.w", op=hvd.Sum, prescale_factor=0.5 if odd else 1.0),
        "root": lambda: hvd.broadcast_async(torch.ones(3), root_rank=1 if odd else 0, name="grad.w"),
        "max": lambda: hvd.allreduce_async(torch.ones(3), name="grad.w", op=hvd.Max if odd else hvd.Product),
        "scatter": lambda: hvd.reducescatter_async(torch.ones(5 if odd else 4, 2), "grad.w"),
        "exchange": lambda: hvd.alltoall_async(torch.ones(4, 3 if odd else 2), [1] * 4, "grad.w"),
        "set": lambda: hvd.allreduce_async(torch.ones(4 if odd else 3), name="grad.w", process_set=ends)
        if ends.included() else None,
        "group": lambda: hvd.grouped_allreduce_async(
            [torch.ones(2), torch.ones(4 if odd else 3), torch.ones(2)], name="grad.w"),
        "gather": lambda: hvd.allgather_async(torch.ones(2, 5 if odd else 4), name="grad.w"),
    }
    texts = {}
    for name, submit in cases.items():
        texts[name] = attempt(submit)
        # The name is free again and the job goes on.
        total = hvd.allreduce(torch.ones(3), name="grad.w", op=hvd.Sum)
        assert total.tolist() == [hvd.size()] * 3, total
    x = torch.ones(3) * (hvd.rank() + 1)
    handle = hvd.allreduce_async(x, name="twice", op=hvd.Sum)
    hvd.barrier()
    hvd.synchronize(handle)
    if hvd.rank() == 0:
        first = hvd.allreduce_async(x, name="late", op=hvd.Sum)
        try:
            hvd.allreduce_async(x, name="late", op=hvd.Sum)
            texts["duplicate"] = "no error"
        except ValueError as e:
            texts["duplicate"] = str(e)
        rank.touch("tried")
    else:
        rank.await_file("tried")
        first = hvd.allreduce_async(x, name="late", op=hvd.Sum)
    texts["late"] = hvd.synchronize(first).tolist()
    rank.record(**texts)
    hvd.shutdown()


if __name__ == "__main__":
    main()
