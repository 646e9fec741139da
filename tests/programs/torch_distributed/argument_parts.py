"""Parts of groups.py: which tensors, sizes, ranks and short forms the calls take."""

import datetime
import functools

import torch
import torch.distributed as dist

from checks import refused, same

OPS = dist.ReduceOp


def sparse(rank, size):
    """As Gloo's: the sum, coalesced; ranks have other indices, one of them none."""
    gloo = dist.new_group(backend="gloo")
    for dense in ((), (3,)):
        indices = torch.tensor([[0, rank, 4, 0], [1, 2, 0, 1]])
        values = torch.arange(1.0, 5.0) if not dense else torch.arange(12.0).reshape(4, 3)
        if rank == size - 1:
            indices, values = indices[:, :0], values[:0]
        results = []
        for group in (None, gloo):
            tensor = torch.sparse_coo_tensor(indices, values, (5, 6) + dense)
            dist.all_reduce(tensor, group=group)
            results.append(tensor.coalesce())
        ours, theirs = results
        same("sparse", [ours.indices(), ours.values(), ours.to_dense()],
             [theirs.indices(), theirs.values(), theirs.to_dense()])
    refused(ValueError, "is not SUM", lambda: dist.all_reduce(tensor, OPS.MAX))


def dtypes(rank, size):
    """Whatever has bytes can be moved; sums of complex numbers; bool; empty tensors; not contiguous ones."""
    names = ("float8_e4m3fn", "float8_e5m2", "uint16", "uint32", "uint64", "complex64", "complex128", "bool", "int16")

    def bare(tensor):  # some dtypes have no equal()
        flat = tensor.contiguous().reshape(-1)
        return flat.view(torch.uint8) if flat.numel() else torch.empty(0, dtype=torch.uint8)

    for dtype in [getattr(torch, name) for name in names if hasattr(torch, name)]:
        for shape in ((4,), (3, 4), (0,), ()):
            of_rank = [((torch.arange(12) + r) % 3).float().to(dtype)[:torch.Size(shape).numel()].reshape(shape)
                       for r in range(size)]

            def check(what, ours, expected):
                same(f"{what} of {dtype} {shape}", [bare(t) for t in ours], [bare(t) for t in expected])

            tensor = of_rank[rank].clone()
            dist.broadcast(tensor, size - 1)
            check("broadcast", [tensor], of_rank[-1:])
            outputs = [torch.empty(shape, dtype=dtype) for _ in range(size)]
            dist.all_gather(outputs, of_rank[rank])
            check("all_gather", outputs, of_rank)
            outputs = [torch.empty(shape, dtype=dtype) for _ in range(size)] if rank == 0 else None
            dist.gather(of_rank[rank], outputs, 0)
            check("gather", outputs or [], of_rank if rank == 0 else [])
            output = torch.empty(shape, dtype=dtype)
            dist.scatter(output, of_rank if rank == 0 else None, 0)
            check("scatter", [output], [of_rank[rank]])
            outputs = [torch.empty(shape, dtype=dtype) for _ in range(size)]
            dist.all_to_all(outputs, [of_rank[rank]] * size)
            check("all_to_all", outputs, of_rank)
            if shape:
                output = torch.empty((size * shape[0],) + shape[1:], dtype=dtype)
                dist.all_gather_into_tensor(output, of_rank[rank])
                check("all_gather_into_tensor", output.chunk(size) if output.numel() else [], of_rank)
            following, before = (rank + 1) % size, (rank - 1) % size
            received = torch.empty(shape, dtype=dtype)
            works = [dist.isend(of_rank[rank], following), dist.irecv(received, before)]
            for work in works:
                work.wait()
            check("send", [received], [of_rank[before]])
    for dtype in (torch.complex64, torch.complex128):
        tensor = torch.tensor([1 + 2j, rank * 1j], dtype=dtype)
        dist.all_reduce(tensor)
        same("sum", [tensor], [torch.tensor([size + 2j * size, sum(range(size)) * 1j], dtype=dtype)])
        output = torch.zeros(1, dtype=dtype)
        dist.reduce_scatter_tensor(output, torch.arange(float(size)).to(dtype) * 1j)
        same("reduce_scatter", [output], [torch.tensor([1j * rank * size], dtype=dtype)])
    tensor = torch.tensor([rank == 0, True, False])
    dist.all_reduce(tensor, OPS.MAX)
    same("bool", [tensor], [torch.tensor([True, True, False])])
    dist.all_reduce(tensor, OPS.BAND)
    same("bool BAND", [tensor], [torch.tensor([True, True, False])])
    for op in (OPS.SUM, OPS.MAX, OPS.BOR):
        tensor = torch.zeros((0, 3), dtype=torch.int32)
        dist.all_reduce(tensor, op)
        output = torch.zeros(0, dtype=torch.int32)
        dist.reduce_scatter_tensor(output, output.clone(), op)
    whole = torch.zeros(4, 6)
    dist.all_reduce(whole[:, ::2].fill_(rank))
    right = torch.zeros(4, 6)
    right[:, ::2] = sum(range(size))
    same("columns", [whole], [right])
    output = torch.zeros(3, 2 * size).t()  # not contiguous
    dist.all_gather_into_tensor(output, torch.full((3, 2), float(rank)).t())
    same("all_gather_into_tensor, not contiguous", [output],
         [torch.arange(float(size)).repeat_interleave(2)[:, None].expand(-1, 3)])


def sizes(rank, size):
    """What is sent does not fit where it goes: an error on each rank that sees it, which names the sizes."""
    def of(*numbers):
        return [torch.full((n,), float(rank)) for n in numbers]

    def check(text, function):
        refused(dist.DistBackendError, text, function)

    last, rest = size - 1, size - 2
    sent = [3, 1] + [2] * rest if rank == 0 else [1, 3] + [2] * rest if rank == 1 else [2] * size
    if rank < 2:
        text = f"ranks have sent {sent} elements to its rank {rank}, whose output expects {[2] * size}"
        check("all_to_all_single, call ", lambda: dist.all_to_all_single(*of(2 * size, 2 * size), [2] * size, sent))
        check(text, lambda: dist.all_to_all(of(*[2] * size), of(*sent)))
    else:
        dist.all_to_all_single(*of(2 * size, 2 * size), [2] * size, sent)
        dist.all_to_all(of(*[2] * size), of(*sent))
    check(f"ranks have sent {[2] * size} elements to its rank {rank}, whose output expects {[2] * last + [1]}",
          lambda: dist.all_to_all_single(*of(2 * size - 1, 2 * size), [2] * last + [1], [2] * size))
    mine = 5 if rank == 0 else 3 if rank == 1 else 4
    check("rank 0 submitted [*, 5], rank 1 submitted [*, 3]", lambda: dist.all_gather(of(*[4] * size), *of(mine)))
    check(f"expects {[3, 4] + [4] * rest}", lambda: dist.all_gather(of(3, *[4] * (size - 1)), *of(mine)))
    check(f"the result has {3 * size} elements of torch.float32, the outputs {[4] * size} of torch.float32",
          lambda: dist.all_gather(of(*[4] * size), *of(3)))
    check(f"the result has {3 * size} elements of torch.float32, the outputs [{4 * size}] of torch.float32",
          lambda: dist.all_gather_into_tensor(*of(4 * size, 3)))
    check("the result has 2 elements of torch.float32, the outputs [3] of",
          lambda: dist.reduce_scatter_tensor(*of(3, 2 * size)))
    for op in (OPS.SUM, OPS.MAX):
        check("the result has 2 elements of torch.float32, the outputs [3] of",
              lambda: dist.reduce_scatter(*of(3), of(*[2] * size), op))
    check(f"the result has {rank + 1} elements of torch.float32, the outputs [9] of",
          lambda: dist.reduce_scatter(*of(9), of(*range(1, size + 1))))
    whole = torch.zeros(2 * size, dtype=torch.int32)
    check("elements of torch.float32, the outputs [2] of torch.int32",
          lambda: dist.reduce_scatter_tensor(whole[:2], *of(2 * size)))
    check(f"elements of torch.float32, the outputs [{2 * size}] of torch.int32",
          lambda: dist.all_gather_into_tensor(whole, *of(2)))
    refused(ValueError, f"a list has 1 entries, expected one for each of the group's {size} ranks",
            lambda: dist.group.WORLD.alltoall(of(1), of(1)).wait())
    gather = functools.partial(dist.gather, *of(6 if rank == 1 else 4), of(*[4] * size) if rank == 0 else None)
    scatter = functools.partial(dist.scatter, *of(1 if rank == 1 else 2), of(*[2] * size) if rank == 0 else None)
    for function, sees, text in ((gather, 0, f"sent {[4, 6] + [4] * rest} elements to its rank 0"),
                                 (scatter, 1, f"sent {[2] + [0] * last} elements to its rank 1")):
        if rank == sees:
            check(text, function)
        else:
            function()


def default_device(rank, size):
    """Calls in a block that makes tensors on another device, as programs that build models have it."""
    with torch.device("meta"):
        indices = torch.tensor([[rank]], device="cpu")
        tensor = torch.sparse_coo_tensor(indices, torch.ones(1, device="cpu"), (size,), device="cpu")
        dist.all_reduce(tensor)
        outputs = [torch.zeros(r, device="cpu") for r in range(size)]
        dist.all_gather(outputs, torch.full((rank,), float(rank), device="cpu"))
        dist.barrier()
    same("sparse", [tensor.to_dense()], [torch.ones(size)])
    same("all_gather", outputs, [torch.full((r,), float(r)) for r in range(size)])


def ranks(rank, size):
    """Roots and peers that are no ranks."""
    x, group = torch.ones(2), dist.group.WORLD
    for what, role, function in (("broadcast", "root", lambda: dist.broadcast(x, size)),
                                 ("reduce", "root", lambda: dist.reduce(x, size)),
                                 ("gather", "root", lambda: group.gather([], x, size)),
                                 ("scatter", "root", lambda: group.scatter(x, [], size)),
                                 ("send", "destination", lambda: dist.send(x, size)),
                                 ("recv", "source", lambda: dist.recv(x, size))):
        refused(ValueError, f"{what} of group 'world': the {role} is {size}, expected a rank of 0 to {size - 1}", function)
    refused(ValueError, f"recv of group 'world': the source is {rank}, which is this rank", lambda: dist.recv(x, rank))


def short_forms(rank, size):
    """A group's methods with tensors in place of lists, and single arguments in place of options."""
    group = dist.group.WORLD
    total = sum(range(size))

    def check(what, expected, call):
        x = torch.full((3,), float(rank))
        call(x).wait()
        same(what, [x], [torch.full((3,), float(expected))])

    def rows():
        return [torch.full((3,), float(r)) for r in range(size)]

    for what, expected, call in (("allreduce([x], op)", size - 1, lambda x: group.allreduce([x], OPS.MAX)),
                                 ("allreduce(x, op)", size - 1, lambda x: group.allreduce(x, OPS.MAX)),
                                 ("allreduce(x, op=)", size - 1, lambda x: group.allreduce(x, op=OPS.MAX)),
                                 ("allreduce(x)", total, lambda x: group.allreduce(x)),
                                 ("broadcast(x, root)", 1, lambda x: group.broadcast(x, 1)),
                                 ("broadcast(x, root=)", 1, lambda x: group.broadcast(x, root=1)),
                                 ("reduce(x, root, op)", rank if rank else size - 1,
                                  lambda x: group.reduce(x, 0, OPS.MAX)),
                                 ("scatter", rank, lambda x: group.scatter(x, rows() if rank == 0 else [], 0)),
                                 ("reduce_scatter", size * rank, lambda x: group.reduce_scatter(x, rows(), OPS.SUM))):
        check(what, expected, call)
    outputs = [torch.zeros(3) for _ in range(size)]
    group.allgather(outputs, torch.full((3,), float(rank))).wait()
    same("allgather", outputs, rows())
    outputs = [torch.zeros(3) for _ in range(size)] if rank == 0 else []
    group.gather(outputs, torch.full((3,), float(rank)), 0).wait()
    same("gather", outputs, rows())
    group.barrier(datetime.timedelta(seconds=30)).wait()


def inference(rank, size):
    """Results for tensors of inference mode, which the completion thread, or code after the block, stores."""
    with torch.inference_mode():
        outputs = [[torch.zeros(2) for _ in range(size)] for _ in range(2)]
        works = [dist.all_gather(each, torch.full((2,), float(rank)), async_op=True) for each in outputs]
        future = works[0].get_future()
    future.wait()
    works[1].wait()
    for each in outputs:
        same("all_gather", each, [torch.full((2,), float(r)) for r in range(size)])
