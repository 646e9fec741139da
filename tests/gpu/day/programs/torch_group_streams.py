"""torch.distributed on the backend maypole, with tensors of busy streams other than the default one.

The work that a stream has when an operation is called comes before the operation. The program waits for the operation's
end and uses the result at once, on another stream, whether its wait, the completion thread or a callback has taken the
result. Without a GPU there are no streams. Records how many results were right, and the differences.
"""

import contextlib
import os

import torch
import torch.distributed as dist

import maypole.torch.distributed  # noqa: F401
import rank
from maypole.common import basics

DEVICE = torch.device(os.environ["PROGRAMS_DEVICE"])
CUDA = DEVICE.type == "cuda"
ELEMENTS = 4 << 20 if CUDA else 4 << 10
ROUNDS = 12 if CUDA else 2


def on(stream):
    return torch.cuda.stream(stream) if CUDA else contextlib.nullcontext()


class Streams:

    def __init__(self):
        self.mine, self.other = (torch.cuda.Stream() if CUDA else None for _ in range(2))
        self.right, self.differences = 0, []
        self.work = torch.ones(4096, 4096, device=DEVICE) / 4096 if CUDA else None

    def is_busy(self):
        """Gives the current stream some milliseconds of work, before what follows."""
        for _ in range(20 if CUDA else 0):
            self.work = self.work @ self.work

    def made(self, value):
        """A tensor that gets its value late."""
        tensor = torch.zeros(ELEMENTS, device=DEVICE)
        self.is_busy()
        return tensor.fill_(value)

    def expect(self, what, tensor, value):
        """Checks on the other stream, which the caller has ordered after the result."""
        same = bool((tensor == value).all())
        self.right += same
        if not same:
            self.differences.append("%s: %s, expected %g" % (what, tensor[:4].tolist(), value))

    def all_reduce(self, turn):
        """Its end is taken by wait(), by the completion thread, or by polling."""
        for how in ("wait", "future", "poll"):
            with on(self.mine):
                x = self.made(dist.get_rank() + turn)
                work = dist.all_reduce(x, async_op=True)
                future = work.get_future() if how == "future" else None
            while how != "wait" and not work.is_completed():
                pass
            with on(self.other):
                if future is None:
                    work.wait()
                else:
                    future.wait()
                    work.wait()
                self.expect("all_reduce, " + how, x, sum(range(dist.get_world_size())) + turn * dist.get_world_size())

    def callback(self, turn):
        with on(self.mine):
            x = self.made(turn)
            doubled = dist.all_reduce(x, async_op=True).get_future().then(lambda f: f.value()[0] * 2)
        with on(self.other):
            self.expect("callback", doubled.wait(), 2.0 * turn * dist.get_world_size())

    def all_gather(self, turn):
        """The outputs are zeroed late, and must not be after the result."""
        size = dist.get_world_size()
        with on(self.mine):
            outputs = [self.made(-1.0) for _ in range(size)]
            work = dist.all_gather(outputs, self.made(dist.get_rank() + turn), async_op=True)
            future = work.get_future()
        while not work.is_completed():
            pass
        with on(self.other):
            work.wait()
            for source, output in enumerate(outputs):
                self.expect("all_gather", output, source + turn)
            future.wait()

    def point_to_point(self, turn):
        me, size = dist.get_rank(), dist.get_world_size()
        with on(self.mine):
            x, y = self.made(me + turn), self.made(-1.0)
            works = [dist.isend(x, (me + 1) % size), dist.irecv(y, (me - 1) % size)]
        with on(self.other):
            for work in works:
                work.wait()
            self.expect("irecv", y, (me - 1) % size + turn)

    def coalesced(self, turn):
        size = dist.get_world_size()
        with on(self.mine):
            xs = [self.made(n + turn) for n in range(3)]
            with dist.distributed_c10d._coalescing_manager(device=DEVICE, async_ops=True) as manager:
                for x in xs:
                    dist.all_reduce(x)
        with on(self.other):
            manager.wait()
            for n, x in enumerate(xs):
                self.expect("coalesced", x, size * (n + turn))


def main():
    rank.started()
    if CUDA:
        torch.cuda.set_device(DEVICE)
    dist.init_process_group("maypole")
    for _ in range(3):  # the first one tells each rank which GPU the others use
        dist.all_reduce(torch.ones(ELEMENTS, device=DEVICE))
    before = basics.counter("gpu_operations")
    streams = Streams()
    for turn in range(ROUNDS):
        for case in (streams.all_reduce, streams.callback, streams.all_gather, streams.point_to_point, streams.coalesced):
            case(turn)
    if CUDA:
        torch.cuda.synchronize()
    rank.record(right=streams.right, differences=streams.differences[:20],
                on_gpu=basics.counter("gpu_operations") - before)
    dist.barrier()
    dist.destroy_process_group()


main()
