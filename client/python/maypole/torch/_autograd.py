"""The out-of-place collectives as autograd functions.

Gradients are as in Horovod: backward() of a reduction reduces the gradient in
the same way; backward() of allgather and broadcast averages it. The operations
of backward() have the name of the forward operation with `.backward` appended,
and the same process set.

Functions of several tensors take `grouped`: True if these are the members of a
group, named `<name>.<i>of<n>`; False for one tensor, which has the name itself.

Thread contract: that of autograd; all ranks of the set must run backward().
"""

from collections.abc import Sequence
from typing import Any, Callable, Optional

import torch

from maypole.common import basics, operations
from maypole.common.collectives import member_names
from maypole.common.constants import Average, ReduceOp, Sum
from maypole.common.process_sets import ProcessSet, id_of
from maypole.torch import _submissions

Tensors = tuple[torch.Tensor, ...]


def _results(tensors: Sequence[torch.Tensor], name: Optional[str], grouped: bool,
             describe: Callable[[torch.Tensor, Optional[str]], operations.Pending]) -> Tensors:
    """Submits describe(tensor, its name) of all tensors, and waits for their results."""
    if not grouped:
        return (operations.run(describe(tensors[0], name)),)
    return tuple(operations.start_group([
        describe(tensor, member) for tensor, member in zip(tensors, member_names(name, len(tensors)))]).wait())


def _backward_name(name: Optional[str]) -> Optional[str]:
    # The backward operation may have the kind of the forward one, so it needs a
    # name of its own.
    return None if name is None else f"{name}.backward"


class Allreduce(torch.autograd.Function):
    """Backward: the same reduction of the gradients."""

    @staticmethod
    def forward(ctx: Any, name: Optional[str], grouped: bool, op: ReduceOp, prescale: float, postscale: float,
                process_set: ProcessSet, *tensors: torch.Tensor) -> Tensors:
        ctx.arguments = (_backward_name(name), grouped, op, prescale, postscale, process_set)
        number = id_of(process_set)
        return _results(tensors, name, grouped, lambda tensor, member: _submissions.allreduce(
            tensor, member, op, prescale, postscale, number, False, awaited=not grouped))

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[Any, ...]:
        return (None,) * 6 + Allreduce.apply(*ctx.arguments, *grads)


def _own_rows(grads: Sequence[torch.Tensor], rows: Sequence[int],
              name: Optional[str], process_set: ProcessSet) -> list[torch.Tensor]:
    """Averages each gathered gradient; returns the rows that this rank sent."""
    means = Allreduce.apply(name, True, Average, 1.0, 1.0, process_set, *grads)
    counts = operations.run(
        _submissions.allgather(
            torch.tensor([rows], dtype=torch.int64, device="cpu"), name,
            id_of(process_set), awaited=True))
    first = counts[:process_set.rank()].sum(dim=0).tolist()
    return [
        mean.narrow(0, first[i], rows[i]) for i, mean in enumerate(means)
    ]


class Allgather(torch.autograd.Function):
    """Backward: this rank's rows of the averaged gradients."""

    @staticmethod
    def forward(ctx: Any, name: Optional[str], grouped: bool, process_set: ProcessSet,
                *tensors: torch.Tensor) -> Tensors:
        number = id_of(process_set)
        gathered = _results(tensors, name, grouped, lambda tensor, member: _submissions.allgather(
            tensor, member, number, awaited=not grouped))
        ctx.rows = [tensor.shape[0] for tensor in tensors]
        ctx.name, ctx.process_set = _backward_name(name), process_set
        return gathered

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[Any, ...]:
        return (None, None, None, *_own_rows(grads, ctx.rows, ctx.name, ctx.process_set))


class Broadcast(torch.autograd.Function):
    """Backward: the averaged gradient on the root, zero elsewhere."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, root_rank: int, name: Optional[str],
                process_set: ProcessSet) -> torch.Tensor:
        ctx.root_rank = root_rank
        ctx.name, ctx.process_set = _backward_name(name), process_set
        return operations.run(
            _submissions.broadcast(tensor, root_rank, name, id_of(process_set),
                                   False, awaited=True))

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
        (mean,) = Allreduce.apply(ctx.name, False, Average, 1.0, 1.0, ctx.process_set, grad)
        if basics.rank() != ctx.root_rank:
            mean = mean * 0
        return mean, None, None, None


class Alltoall(torch.autograd.Function):
    """Backward: each row of the gradient goes back to the rank that sent the row."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, splits: Any, name: Optional[str],
                process_set: ProcessSet) -> Tensors:
        rows, received = operations.run(
            _submissions.alltoall(tensor, splits, name, id_of(process_set),
                                  awaited=True))
        ctx.received = received.clone()  # the caller may change `received`
        ctx.name, ctx.process_set = _backward_name(name), process_set
        ctx.mark_non_differentiable(received)
        return rows, received

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor, _: Any) -> tuple[Any, ...]:
        rows, _ = Alltoall.apply(grad, ctx.received, ctx.name, ctx.process_set)
        return rows, None, None, None


class Reducescatter(torch.autograd.Function):
    """Backward: the ranks' gathered gradients; for a sum, times their number."""

    @staticmethod
    def forward(ctx: Any, name: Optional[str], grouped: bool, op: ReduceOp, prescale: float, postscale: float,
                process_set: ProcessSet, *tensors: torch.Tensor) -> Tensors:
        number = id_of(process_set)
        scattered = _results(tensors, name, grouped, lambda tensor, member: _submissions.reducescatter(
            tensor, member, op, prescale, postscale, number, awaited=not grouped))
        # As for an allreduce with the same reduction: a sum is multiplied by the number of ranks.
        ctx.scale = prescale * postscale * ((process_set.size() or 1) if op == Sum else 1)
        ctx.arguments = (_backward_name(name), grouped, process_set)
        return scattered

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[Any, ...]:
        scaled = grads if ctx.scale == 1.0 else [grad * ctx.scale for grad in grads]
        return (None,) * 6 + Allgather.apply(*ctx.arguments, *scaled)
