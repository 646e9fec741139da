"""The out-of-place collectives as autograd functions.

Gradients are as in Horovod: backward() of a reduction reduces the gradient in
the same way; backward() of allgather and broadcast averages it. The operations
of backward() have the name of the forward operation with `.backward` appended,
and the same process set.

Thread contract: that of autograd; all ranks of the set must run backward().
"""

from collections.abc import Sequence
from typing import Any, Optional

import torch

from maypole.common import basics, operations
from maypole.common.constants import Average, ReduceOp, Sum
from maypole.common.process_sets import ProcessSet, id_of
from maypole.torch import _submissions, async_ops


def now(pending: operations.Pending) -> Any:
    """Submits a prepared operation and waits for its result."""
    return operations.start(pending).wait()


def _backward_name(name: Optional[str]) -> Optional[str]:
    # It may be of the same kind as the forward operation, so it needs its own
    # name.
    return None if name is None else f"{name}.backward"


class Allreduce(torch.autograd.Function):
    """Backward: the same reduction of the gradient."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, name: Optional[str], op: ReduceOp, prescale: float,
                postscale: float, process_set: ProcessSet) -> torch.Tensor:
        ctx.arguments = (_backward_name(name), op, prescale, postscale,
                         process_set)
        return now(
            _submissions.allreduce(tensor, name, op, prescale, postscale,
                                   id_of(process_set), False, awaited=True))

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
        reduced = Allreduce.apply(grad, *ctx.arguments)
        return (reduced,) + (None,) * 5


class GroupedAllreduce(torch.autograd.Function):
    """Backward: the same reduction of the gradients."""

    @staticmethod
    def forward(ctx: Any, name: Optional[str], op: ReduceOp, prescale: float, postscale: float,
                process_set: ProcessSet, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.arguments = (_backward_name(name), op, prescale, postscale,
                         process_set)
        return tuple(
            async_ops.synchronize(
                async_ops.grouped_allreduce_async(tensors, None, name, op,
                                                  prescale, postscale,
                                                  process_set)))

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[Any, ...]:
        reduced = GroupedAllreduce.apply(*ctx.arguments, *grads)
        return (None,) * 5 + reduced


def _own_rows(grads: Sequence[torch.Tensor], rows: Sequence[int],
              name: Optional[str], process_set: ProcessSet) -> list[torch.Tensor]:
    """Averages each gathered gradient; returns the rows that this rank sent."""
    means = GroupedAllreduce.apply(name, Average, 1.0, 1.0, process_set, *grads)
    counts = now(
        _submissions.allgather(
            torch.tensor([rows], dtype=torch.int64, device="cpu"), name,
            id_of(process_set), awaited=True))
    first = counts[:process_set.rank()].sum(dim=0).tolist()
    return [
        mean.narrow(0, first[i], rows[i]) for i, mean in enumerate(means)
    ]


class Allgather(torch.autograd.Function):
    """Backward: this rank's rows of the averaged gradient."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, name: Optional[str], process_set: ProcessSet) -> torch.Tensor:
        pending = _submissions.allgather(tensor, name, id_of(process_set),
                                         awaited=True)
        ctx.rows = tensor.shape[0]
        ctx.name, ctx.process_set = _backward_name(name), process_set
        return now(pending)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
        (own,) = _own_rows([grad], [ctx.rows], ctx.name, ctx.process_set)
        return own, None, None


class GroupedAllgather(torch.autograd.Function):
    """Backward: as Allgather, for each tensor."""

    @staticmethod
    def forward(ctx: Any, name: Optional[str], process_set: ProcessSet,
                *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        handle = async_ops.grouped_allgather_async(tensors, name, process_set)
        ctx.rows = [tensor.shape[0] for tensor in tensors]
        ctx.name, ctx.process_set = _backward_name(name), process_set
        return tuple(async_ops.synchronize(handle))

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[Any, ...]:
        own = _own_rows(grads, ctx.rows, ctx.name, ctx.process_set)
        return (None, None, *own)


class Broadcast(torch.autograd.Function):
    """Backward: the averaged gradient on the root, zero elsewhere."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, root_rank: int, name: Optional[str],
                process_set: ProcessSet) -> torch.Tensor:
        ctx.root_rank = root_rank
        ctx.name, ctx.process_set = _backward_name(name), process_set
        return now(
            _submissions.broadcast(tensor, root_rank, name, id_of(process_set),
                                   False, awaited=True))

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
        mean = Allreduce.apply(grad, ctx.name, Average, 1.0, 1.0,
                               ctx.process_set)
        if basics.rank() != ctx.root_rank:
            mean = mean * 0
        return mean, None, None, None


class Alltoall(torch.autograd.Function):
    """Backward: the rows of the gradient go back to where they came from."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, splits: Any, name: Optional[str],
                process_set: ProcessSet) -> tuple[torch.Tensor, ...]:
        rows, received = now(
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


def _scattered_gradient(grad: torch.Tensor, op: ReduceOp, prescale: float,
                        postscale: float, process_set: ProcessSet) -> torch.Tensor:
    # As for an allreduce with the same reduction: a sum counts n times.
    scale = prescale * postscale * ((process_set.size() or 1) if op == Sum else 1)
    return grad if scale == 1.0 else grad * scale


class Reducescatter(torch.autograd.Function):
    """Backward: the ranks' gathered gradients; for a sum, times their number."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, name: Optional[str], op: ReduceOp, prescale: float,
                postscale: float, process_set: ProcessSet) -> torch.Tensor:
        ctx.reduction = (op, prescale, postscale, process_set)
        ctx.name = _backward_name(name)
        return now(
            _submissions.reducescatter(tensor, name, op, prescale, postscale,
                                       id_of(process_set), awaited=True))

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
        gathered = Allgather.apply(_scattered_gradient(grad, *ctx.reduction),
                                   ctx.name, ctx.reduction[-1])
        return (gathered,) + (None,) * 5


class GroupedReducescatter(torch.autograd.Function):
    """Backward: as Reducescatter, for each tensor."""

    @staticmethod
    def forward(ctx: Any, name: Optional[str], op: ReduceOp, prescale: float, postscale: float,
                process_set: ProcessSet, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.reduction = (op, prescale, postscale, process_set)
        ctx.name = _backward_name(name)
        return tuple(
            async_ops.synchronize(
                async_ops.grouped_reducescatter_async(tensors, name, op,
                                                      process_set, prescale,
                                                      postscale)))

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[Any, ...]:
        scaled = [_scattered_gradient(grad, *ctx.reduction) for grad in grads]
        gathered = GroupedAllgather.apply(ctx.name, ctx.reduction[-1], *scaled)
        return (None,) * 5 + gathered
