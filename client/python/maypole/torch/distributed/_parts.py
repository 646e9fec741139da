"""Turns the calls of a process group into operations of Maypole, and their results into the call's results.

Each function describes the operations of one call on one rank, and submits none. Ranks are those of the group; `op` is
torch's ReduceOp, with its factor where it has one.

What a rank sends must fit where it goes on the others. The library compares shapes where they must be equal on all
ranks; elsewhere a rank that cannot store what it has received as its outputs say gets an error when the operation ends,
so that the others do not wait for it.
"""

import functools
from collections.abc import Sequence
from functools import partial
from typing import Any, Callable, NamedTuple, Optional

import torch
from torch.distributed.distributed_c10d import ReduceOp

from maypole.common.constants import Average, Max, Min, Product, Sum
from maypole.common.exceptions import HorovodInternalError
from maypole.common.operations import Pending
from maypole.torch import _submissions

_REDUCTIONS = {
    ReduceOp.SUM: Sum,
    ReduceOp.AVG: Average,
    ReduceOp.MIN: Min,
    ReduceOp.MAX: Max,
    ReduceOp.PRODUCT: Product,
    ReduceOp.PREMUL_SUM: Sum,
}
_WITHOUT_FACTOR = {kind: op for kind, op in _REDUCTIONS.items() if kind != ReduceOp.PREMUL_SUM}
# Not reductions of Maypole: each rank computes them from all ranks' inputs.
_BITWISE = {
    ReduceOp.BAND: torch.bitwise_and,
    ReduceOp.BOR: torch.bitwise_or,
    ReduceOp.BXOR: torch.bitwise_xor,
}


class Part(NamedTuple):
    """One operation of a call.

    describe: given the name, the process set and whether the caller waits for it next (awaited), returns what
    operations.start() takes. finish: called with the result, unless that is in place. mark: ends the operation's name;
    says what the library does not compare, because calls of another kind, root or reduction run as the same operation.
    """

    describe: Callable[..., Pending]
    finish: Optional[Callable[[Any], None]] = None
    mark: str = ""


class GroupRanks:
    """The ranks of a group.

    Args:
        ranks: ranks in the job, by rank in the group.
        rank: this one's, in the group.
    """

    def __init__(self, ranks: list[int], rank: int):
        self.of_job = ranks
        self.rank, self.size = rank, len(ranks)
        # Ranks in the group, in the order of the process set, which is the job's.
        self.order = sorted(range(len(ranks)), key=ranks.__getitem__)
        self.in_order = self.order == list(range(len(ranks)))

    def ordered(self, of_ranks: Sequence[Any]) -> list[Any]:
        """Reorders values, one of each rank, from the order of the group to that of the process set."""
        self.checked(of_ranks)
        return list(of_ranks) if self.in_order else [of_ranks[rank] for rank in self.order]

    def checked(self, of_ranks: Sequence[Any]) -> Sequence[Any]:
        """Returns a list that must have an entry for each rank."""
        if len(of_ranks) != self.size:
            raise ValueError(f"a list has {len(of_ranks)} entries, expected one for each of the group's {self.size} "
                             "ranks")
        return of_ranks


# --- Reductions ---------------------------------------------------------------


def all_reduce(tensors: Sequence[torch.Tensor], op: Any) -> list[Part]:
    return [part for t in tensors for part in (_sparse(t, op) if t.is_sparse else [_reduced("all_reduce", t, op)])]


def reduce(ranks: GroupRanks, tensors: Sequence[torch.Tensor], op: Any, root: int) -> list[Part]:
    # On ranks other than the root the tensor keeps its values, as with Gloo.
    parts = [_reduced("reduce", t, op, None if ranks.rank == root else torch.empty_like(t)) for t in tensors]
    return [part._replace(mark=f".reduce_to_{root}{part.mark}") for part in parts]


def reduce_scatter(ranks: GroupRanks, outputs: Sequence[torch.Tensor], inputs: Sequence[Sequence[torch.Tensor]],
                   op: Any) -> list[Part]:
    parts = []
    for output, rows in zip(outputs, inputs):
        sizes = ranks.checked([t.numel() for t in rows])
        if len(set(sizes)) == 1:
            parts.append(_scattered(ranks, output, torch.cat([_rows(t) for t in rows]), op))
        else:  # a part of any size for each rank: reduced as one tensor, then cut
            start = sum(sizes[:ranks.rank])
            parts.append(_reduced_part(output, _joined(rows), start, sizes[ranks.rank], op))
    return parts


def reduce_scatter_single(ranks: GroupRanks, outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor],
                          op: Any) -> list[Part]:
    parts = []
    for output, tensor in zip(outputs, inputs):
        if tensor.numel() % ranks.size != 0:
            raise ValueError(f"reduce_scatter_tensor: the input has {tensor.numel()} elements, expected "
                             f"{ranks.size} times the output's {output.numel()}")
        parts.append(_scattered(ranks, output, tensor.reshape(ranks.size, tensor.numel() // ranks.size), op))
    return parts


def barrier() -> list[Part]:
    # A reduction, because it is matched by the group's order like all others.
    return [_allreduce(torch.zeros(1, dtype=torch.uint8, device="cpu"), Sum, 1.0)._replace(mark=".barrier")]


def _red_op(op: Any) -> Any:
    """The ReduceOp.RedOpType of the reduction in torch's options."""
    return getattr(op, "op", op)


def _factor(op: Any) -> float:
    """The factor of a PREMUL_SUM; 1 for others."""
    return float(op.__getstate__()[1]) if _red_op(op) == ReduceOp.PREMUL_SUM else 1.0


def _reduction(kind: Any) -> Any:
    if kind not in _REDUCTIONS:
        raise ValueError(f"{kind} is not a reduction of the backend 'maypole'; use SUM, AVG, PREMUL_SUM, MIN, MAX, "
                         "PRODUCT, BAND, BOR or BXOR")
    return _REDUCTIONS[kind]


def _allreduce(tensor: torch.Tensor, op: Any, factor: float) -> Part:
    return Part(partial(_submissions.allreduce, tensor, op=op, prescale=factor, postscale=1.0, in_place=True))


def _reduced(what: str, tensor: torch.Tensor, op: Any, into: Optional[torch.Tensor] = None) -> Part:
    """Reduces `tensor` into itself, or into another tensor of its shape and strides.

    what: the call, for errors.
    """
    kind = _red_op(op)
    target = tensor if into is None else into
    reduction = _WITHOUT_FACTOR.get(kind)  # one look-up per call: torch's enums are slow to hash
    factor = 1.0
    if reduction is None:
        if kind in _BITWISE:
            if tensor.dtype.is_floating_point or tensor.dtype.is_complex:
                raise ValueError(f"{what}: {kind.name} needs a tensor of integers or bool, this one is of "
                                 f"{tensor.dtype}")
            return Part(partial(_submissions.allgather, _rows(tensor)), partial(_copy_bitwise, target, kind),
                        f".{kind.name}")
        reduction, factor = _reduction(kind), _factor(op)
    if into is not None:
        into.copy_(tensor)
    return _allreduce(target, reduction, factor)


def _scattered(ranks: GroupRanks, output: torch.Tensor, rows: torch.Tensor, op: Any) -> Part:
    """Writes this rank's row of the reduction of `rows` to `output`."""
    if _red_op(op) in (ReduceOp.SUM, ReduceOp.AVG, ReduceOp.PREMUL_SUM):
        ordered = rows if ranks.in_order else rows[ranks.order]
        return Part(partial(_submissions.reducescatter, ordered, op=_reduction(_red_op(op)), prescale=_factor(op),
                            postscale=1.0), partial(_copy_whole, output))
    return _reduced_part(output, rows.reshape(-1), ranks.rank * rows.shape[1], rows.shape[1], op)


def _reduced_part(output: torch.Tensor, whole: torch.Tensor, start: int, size: int, op: Any) -> Part:
    """Writes `size` elements of the reduction of `whole`, from `start` on, to `output`."""
    into = torch.empty_like(whole)
    reduced = _reduced("reduce_scatter", whole, op, into)

    def finish(result: Any) -> None:
        if reduced.finish is not None:
            reduced.finish(result)
        _copy_whole(output, into[start:start + size])

    return reduced._replace(finish=finish, mark=f".reduce_scatter{reduced.mark}")


def _sparse(tensor: torch.Tensor, op: Any) -> list[Part]:
    """Sums sparse tensors of one shape into `tensor`: each rank adds up all ranks' indices and values."""
    if _red_op(op) != ReduceOp.SUM:
        raise ValueError(f"all_reduce of a sparse tensor: {op} is not SUM, which is the only one, as with Gloo")
    own = tensor.coalesce()
    gathered: list[torch.Tensor] = []

    def finish(values: torch.Tensor) -> None:
        tensor.copy_(torch.sparse_coo_tensor(gathered[0].t(), values, tensor.shape, device=tensor.device).coalesce())

    return [Part(partial(_submissions.allgather, own.indices().t().contiguous()), gathered.append),
            Part(partial(_submissions.allgather, own.values()), finish)]


# --- Moving data --------------------------------------------------------------


def broadcast(ranks: GroupRanks, tensors: Sequence[torch.Tensor], root: int) -> list[Part]:
    return [Part(partial(_submissions.broadcast, t, ranks.of_job[root], in_place=True)) for t in tensors]


def all_gather(ranks: GroupRanks, outputs: Sequence[Sequence[torch.Tensor]],
               inputs: Sequence[torch.Tensor]) -> list[Part]:
    parts = []
    for into, tensor in zip(outputs, inputs):
        outputs_in_order = ranks.ordered(into)
        if len({t.numel() for t in into}) == 1:
            parts.append(Part(partial(_submissions.allgather, _rows(tensor)), partial(_copy_parts, outputs_in_order)))
        else:  # an alltoall says how much comes from each rank
            parts.append(_exchange(ranks, _joined([tensor] * ranks.size), [tensor.numel()] * ranks.size,
                                   outputs_in_order, [t.numel() for t in outputs_in_order], ".all_gather"))
    return parts


def all_gather_single(ranks: GroupRanks, outputs: Sequence[torch.Tensor],
                      inputs: Sequence[torch.Tensor]) -> list[Part]:
    parts = []
    for output, tensor in zip(outputs, inputs):
        finish = partial(_copy_whole, output) if ranks.in_order else partial(_copy_rows, output, ranks.order)
        parts.append(Part(partial(_submissions.allgather, _rows(tensor)), finish))
    return parts


def gather(ranks: GroupRanks, outputs: Sequence[Sequence[torch.Tensor]], inputs: Sequence[torch.Tensor],
           root: int) -> list[Part]:
    parts = []
    for number, tensor in enumerate(inputs):
        flat = tensor.reshape(-1)
        splits = [flat.numel() if rank == root else 0 for rank in ranks.order]
        into = ranks.ordered(outputs[number]) if ranks.rank == root else []
        parts.append(_exchange(ranks, flat, splits, into, [t.numel() for t in into] or [0] * ranks.size,
                               f".gather_to_{root}"))
    return parts


def scatter(ranks: GroupRanks, outputs: Sequence[torch.Tensor], inputs: Sequence[Sequence[torch.Tensor]],
            root: int) -> list[Part]:
    parts = []
    for number, output in enumerate(outputs):
        sent = ranks.ordered(inputs[number]) if ranks.rank == root else []
        flat = _joined(sent) if sent else output.new_empty(0)
        parts.append(_exchange(ranks, flat, [t.numel() for t in sent] or [0] * ranks.size, [output],
                               [output.numel() if rank == root else 0 for rank in ranks.order],
                               f".scatter_from_{root}"))
    return parts


def all_to_all(ranks: GroupRanks, outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]) -> list[Part]:
    sent, into = ranks.ordered(inputs), ranks.ordered(outputs)
    return [_exchange(ranks, _joined(sent), [t.numel() for t in sent], into, [t.numel() for t in into])]


def all_to_all_single(ranks: GroupRanks, output: torch.Tensor, tensor: torch.Tensor, output_splits: Sequence[int],
                      input_splits: Sequence[int]) -> list[Part]:
    size = ranks.size
    for what, given, of in (("input", input_splits, tensor), ("output", output_splits, output)):
        rows = of.shape[0] if of.dim() else 0
        if (sum(given) != rows or len(given) != size) if given else rows % size != 0:
            raise ValueError(f"all_to_all_single: the {what} has {rows} rows, which {list(given) or size} do not "
                             "divide among the ranks")
    splits = list(input_splits) or [tensor.shape[0] // size] * size
    into_splits = list(output_splits) or [output.shape[0] // size] * size
    into: Sequence[torch.Tensor] = [output]
    if not ranks.in_order:
        tensor = torch.cat(ranks.ordered(tensor.split(splits)))
        splits = ranks.ordered(splits)
        into = ranks.ordered(output.split(into_splits))
    return [_exchange(ranks, tensor, splits, into,
                      [rows * output.shape[1:].numel() for rows in ranks.ordered(into_splits)])]


def _exchange(ranks: GroupRanks, tensor: torch.Tensor, splits: Sequence[int], outputs: Sequence[torch.Tensor],
              expected: list[int], mark: str = "") -> Part:
    """An alltoall; the received rows are cut into the outputs, one after the other.

    Args:
        ranks: the group's ranks; what follows is in the order of the process set.
        tensor: what is sent, in rows.
        splits: the number of rows for each rank.
        outputs: get what is received.
        expected: the number of elements that the outputs have for each rank.
        mark: as Part's.
    """

    def finish(result: tuple[torch.Tensor, torch.Tensor]) -> None:
        sizes = [rows * tensor.shape[1:].numel() for rows in result[1].tolist()]
        if sizes != expected:
            sent, room = ([by_rank for _, by_rank in sorted(zip(ranks.order, each))] for each in (sizes, expected))
            raise HorovodInternalError(f"the group's ranks have sent {sent} elements to its rank {ranks.rank}, whose "
                                       f"output expects {room}")
        _copy_parts(outputs, result[0])

    return Part(partial(_submissions.alltoall, tensor, splits), finish, mark)


def _rows(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor as one row, so that allgather concatenates whole tensors of any shape."""
    return tensor.reshape(1, -1)


def _joined(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """The elements of all tensors, one after the other."""
    dtype = tensors[0].dtype
    flat = [t.reshape(-1) for t in tensors]
    if dtype.is_floating_point and flat[0].element_size() == 1:  # float8: older versions of torch cannot concatenate it
        return torch.cat([t.view(torch.uint8) for t in flat]).view(dtype)
    return torch.cat(flat)


# --- What becomes of results --------------------------------------------------


def _check(outputs: Sequence[torch.Tensor], result: torch.Tensor) -> None:
    """Checks that the outputs together have the elements of the result."""
    sizes = [output.numel() for output in outputs]
    if sum(sizes) != result.numel() or any(output.dtype != result.dtype for output in outputs):
        dtypes = ", ".join(sorted({str(output.dtype) for output in outputs}))
        raise HorovodInternalError(f"the result has {result.numel()} elements of {result.dtype}, the outputs {sizes} "
                                   f"of {dtypes}")


def _copy_whole(output: torch.Tensor, result: torch.Tensor) -> None:
    _check([output], result)
    output.copy_(result.view(output.shape))


def _copy_rows(output: torch.Tensor, order: list[int], result: torch.Tensor) -> None:
    """Copies row i of the result to row order[i] of the output."""
    rows = torch.empty_like(result)
    rows[order] = result
    _copy_whole(output, rows)


def _copy_parts(outputs: Sequence[torch.Tensor], result: torch.Tensor) -> None:
    """Cuts the result into the outputs, one after the other."""
    _check(outputs, result)
    flat, start = result.reshape(-1), 0
    for output in outputs:
        output.copy_(flat[start:start + output.numel()].view(output.shape))
        start += output.numel()


def _copy_bitwise(output: torch.Tensor, kind: Any, result: torch.Tensor) -> None:
    output.copy_(functools.reduce(_BITWISE[kind], list(result)).view(output.shape))
