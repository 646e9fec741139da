"""Traffic on torch's CUDA tensors while the program does what CUDA programs do with memory, graphs and streams.

    torch_allocators.py plain | graphs | out_of_memory

plain: tensors of changing sizes, empty_cache() between them, results used on other streams with record_stream().
graphs: a CUDA graph is captured and replayed while operations are pending; one whose capture calls an operation gets
a ValueError. out_of_memory: the GPU is full except for a few MiB; operations go through host memory, with the same
results, and later the memory is free for others. Without a GPU, the parts that need one are left out.
"""

import os
import sys
import time

import torch

import maypole.torch as hvd
import rank
from maypole.common import basics

DEVICE = torch.device(os.environ["DAY_DEVICE"])
CUDA = DEVICE.type == "cuda"


def reduce_and_check(elements, name, handles):
    x = torch.full((elements,), float(hvd.rank() + 1), device=DEVICE)
    handles.append((hvd.allreduce_async(x, name=name, op=hvd.Sum), elements))


def check_all(handles):
    total = hvd.size() * (hvd.size() + 1) / 2
    for handle, elements in handles:
        result = hvd.synchronize(handle)
        if result.numel() != elements or not bool((result == total).all()):
            raise AssertionError("a result of %d elements is wrong" % elements)
    handles.clear()


def plain():
    handles = []
    side = torch.cuda.Stream() if CUDA else None
    for turn in range(40 if CUDA else 5):
        for i, elements in enumerate((30000 + 1000 * turn, 2 << 20, 100, 500000 - turn)):
            reduce_and_check(elements, "plain.%d.%d" % (turn, i), handles)
        if CUDA:
            x = torch.ones(1 << 20, device=DEVICE)
            with torch.cuda.stream(side):
                side.wait_stream(torch.cuda.default_stream())
                reduced = hvd.allreduce(x, name="side.%d" % turn, op=hvd.Sum)
                x.record_stream(side)
            del x
            torch.cuda.current_stream().wait_stream(side)
            assert float(reduced.mean()) == hvd.size()
        if CUDA and turn % 5 == 4:
            torch.cuda.empty_cache()
        check_all(handles)
    return {}


def graphs():
    handles, refused = [], None
    x = torch.zeros(1 << 20, device=DEVICE)
    if CUDA:
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):  # torch wants a warm-up before a capture
            x + 1
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        for i in range(8):
            reduce_and_check(1 << 20, "before.%d" % i, handles)
        with torch.cuda.graph(graph):
            x += 1
        for turn in range(20):
            graph.replay()
            reduce_and_check(1 << 20, "during.%d" % turn, handles)
        check_all(handles)
        assert float(x.mean()) == 20.0
        other = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(other):
                hvd.allreduce(x, name="captured")
        except (ValueError, RuntimeError) as error:
            refused = "%s: %s" % (type(error).__name__, error)
        assert refused is not None and "captur" in refused, refused
    for i in range(8):
        reduce_and_check(1 << 20, "after.%d" % i, handles)
    check_all(handles)
    return {"refused": refused}


def out_of_memory():
    handles, taken = [], []
    for turn in range(3):  # the executor has its context then
        reduce_and_check(1 << 20, "before.%d" % turn, handles)
        check_all(handles)
    before = basics.counter("gpu_operations")
    if CUDA:
        free, _ = torch.cuda.mem_get_info()
        hvd.barrier()
        share = free // hvd.size() - (48 << 20)
        taken.append(torch.empty(share, dtype=torch.uint8, device=DEVICE))
        torch.cuda.synchronize()
        hvd.barrier()
    for turn in range(10):
        reduce_and_check(1 << 20, "full.%d" % turn, handles)
        check_all(handles)
    full = basics.counter("gpu_operations") - before
    taken.clear()
    if CUDA:
        torch.cuda.empty_cache()
    hvd.barrier()
    began, turn, later = time.monotonic(), 0, 0
    # Memory that could not be had is asked for again some time later.
    while later == 0 and (turn < 5 or CUDA and time.monotonic() - began < 10):
        reduce_and_check(1 << 20, "again.%d" % turn, handles)
        check_all(handles)
        turn += 1
        later = int(hvd.allreduce(torch.tensor(basics.counter("gpu_operations") - before - full), op=hvd.Min))
    if CUDA and later == 0:
        raise AssertionError("operations do not run on the GPU again, 10 s after its memory was free")
    return {"on_gpu_while_full": full, "on_gpu_again_after_s": round(time.monotonic() - began, 2)}


def main():
    rank.started()
    hvd.init()
    torch.set_num_threads(1)
    found = {"plain": plain, "graphs": graphs, "out_of_memory": out_of_memory}[sys.argv[1]]()
    if CUDA:
        torch.cuda.synchronize()
    rank.record(on_gpu=basics.counter("gpu_operations"), **found)
    hvd.shutdown()


main()
