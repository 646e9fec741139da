"""Every step has its own names, as if they contained a step counter.

usage: new_names.py STEPS NAMES SLOTS
   STEPS steps of NAMES names each; then one rank uses more than SLOTS at once.
"""

import sys

import torch

import maypole.torch as hvd
import rank


def step(number, names, some):
    """Runs a step; returns the number of wrong values."""
    prefix = "step.%d." % number
    handles = []
    for i in range(names):
        tensor = torch.full((1 + 700 * (i % 5),), float((hvd.rank() + 1) * (number + i)))
        want = torch.full_like(tensor, float(sum(range(1, hvd.size() + 1)) * (number + i)))
        handles.append((hvd.allreduce_async_(tensor, name=prefix + "grad.%d" % i, op=hvd.Sum), want))
    rows = torch.full((hvd.rank() + 1, 2), float(number))
    want = torch.full((sum(range(1, hvd.size() + 1)), 2), float(number))
    handles.append((hvd.allgather_async(rows, name=prefix + "rows"), want))
    root = number % hvd.size()
    value = torch.full((3,), float(number if hvd.rank() == root else -1))
    handles.append((hvd.broadcast_async(value, root, name=prefix + "value"), torch.full((3,), float(number))))
    if some.included():
        mine = torch.full((4,), float(number))
        handles.append((hvd.allreduce_async_(mine, name=prefix + "some", op=hvd.Sum, process_set=some),
                        torch.full((4,), float(some.size() * number))))
    wrong = sum(not torch.equal(hvd.synchronize(handle), want) for handle, want in reversed(handles))
    steady = hvd.allreduce(torch.full((2,), float(number)), name="steady", op=hvd.Max)
    return wrong + (not torch.equal(steady, torch.full((2,), float(number))))


def too_many(slots):
    """Rank 0 uses more names than there are slots; the texts of its errors."""
    def submit(i):
        return hvd.allreduce_async_(torch.full((3,), float(i)), name="more.%d" % i, op=hvd.Sum)

    refused = []
    if hvd.rank() == 0:
        handles = [submit(i) for i in range(slots + 2)]
        for handle in handles[slots:]:
            try:
                hvd.synchronize(handle)
            except hvd.HorovodInternalError as error:
                refused.append(str(error))
        rank.touch("refused")
    else:
        rank.await_file("refused")
        handles = [submit(i) for i in range(slots)]
    wrong = sum(not torch.equal(hvd.synchronize(handle), torch.full((3,), float(i * hvd.size())))
                for i, handle in enumerate(handles[:slots]))
    return refused, wrong


def main():
    steps, names, slots = (int(a) for a in sys.argv[1:4])
    torch.set_num_threads(1)
    rank.started()
    hvd.init()
    some = hvd.add_process_set([0] if hvd.size() == 2 else [0, hvd.size() - 1])
    wrong = sum(step(number, names, some) for number in range(1, steps + 1))
    refused, wrong_later = too_many(slots)
    # And the job goes on.
    wrong += wrong_later + step(steps + 1, names, some)
    rank.record(wrong=wrong, refused=refused)
    hvd.shutdown()


if __name__ == "__main__":
    main()
