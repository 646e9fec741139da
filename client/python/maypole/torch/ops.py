"""Collectives on torch tensors that wait for their result.

The out-of-place ones are differentiable. Names, errors and the thread contract
are those of async_ops; in addition the errors of synchronize() come from here.
"""

from typing import Any, List, Optional, Sequence, Tuple

import torch

from maypole.common import basics, process_sets
from maypole.common.constants import Average
from maypole.common.process_sets import global_process_set
from maypole.torch import async_ops
from maypole.torch.async_ops import (grouped_allreduce_async,
                                     grouped_allreduce_async_, reduction,
                                     synchronize)
from maypole.torch.compression import Compression


def _backward_name(name: Optional[str]) -> Optional[str]:
    # Of the same kind as the forward operation, so it needs a name of its own.
    return None if name is None else f"{name}.backward"


class _Allreduce(torch.autograd.Function):
    """Backward: the same reduction of the gradient."""

    @staticmethod
    def forward(ctx, tensor, name, op, prescale, postscale):
        ctx.arguments = (_backward_name(name), op, prescale, postscale)
        return async_ops.allreduce_now(tensor, None, name, op, prescale,
                                       postscale)

    @staticmethod
    def backward(ctx, grad):
        name, op, prescale, postscale = ctx.arguments
        reduced = _Allreduce.apply(grad, name, op, prescale, postscale)
        return reduced, None, None, None, None


class _GroupedAllreduce(torch.autograd.Function):
    """Backward: the same reduction of the gradients."""

    @staticmethod
    def forward(ctx, name, op, prescale, postscale, *tensors):
        ctx.arguments = (_backward_name(name), op, prescale, postscale)
        return tuple(
            synchronize(
                grouped_allreduce_async(tensors, None, name, op, prescale,
                                        postscale)))

    @staticmethod
    def backward(ctx, *grads):
        reduced = _GroupedAllreduce.apply(*ctx.arguments, *grads)
        return (None, None, None, None) + reduced


class _Allgather(torch.autograd.Function):
    """Backward: the averaged gradient's rows that are this rank's."""

    @staticmethod
    def forward(ctx, tensor, name):
        ctx.rows = tensor.shape[0]
        ctx.name = _backward_name(name)
        return async_ops.allgather_now(tensor, name)

    @staticmethod
    def backward(ctx, grad):
        mean = allreduce(grad, name=ctx.name, op=Average)
        rows = async_ops.allgather_now(
            torch.tensor([ctx.rows], dtype=torch.int64), ctx.name).tolist()
        rank = basics.rank()
        return mean.narrow(0, sum(rows[:rank]), rows[rank]), None


class _Broadcast(torch.autograd.Function):
    """Backward: the averaged gradient on the root, zero elsewhere."""

    @staticmethod
    def forward(ctx, tensor, root_rank, name):
        ctx.root_rank = root_rank
        ctx.name = _backward_name(name)
        return async_ops.broadcast_now(tensor, None, root_rank, name)

    @staticmethod
    def backward(ctx, grad):
        mean = allreduce(grad, name=ctx.name, op=Average)
        if basics.rank() != ctx.root_rank:
            mean = mean * 0
        return mean, None, None


def allreduce(tensor: torch.Tensor,
              average: Optional[bool] = None,
              name: Optional[str] = None,
              compression: Any = Compression.none,
              op: Optional[int] = None,
              prescale_factor: float = 1.0,
              postscale_factor: float = 1.0,
              process_set: Any = global_process_set) -> torch.Tensor:
    """Reduces `tensor` over all ranks into a new tensor of the same shape.

    tensor: any shape, the same on all ranks; it is not changed.
    average: older form of op: True for Average, False for Sum.
    compression: Compression.fp16 sends floats as float16.
    op: Average (default), Sum. Integers are averaged truncating toward zero.
    prescale_factor, postscale_factor: inputs, result are multiplied by it.
    Differentiable: the gradient is reduced in the same way.
    """
    process_sets.check(process_set)
    op = reduction(average, op)
    small, ctx = compression.compress(tensor)
    reduced = _Allreduce.apply(small, name, op, prescale_factor,
                               postscale_factor)
    return compression.decompress(reduced, ctx)


def allreduce_(tensor: torch.Tensor,
               average: Optional[bool] = None,
               name: Optional[str] = None,
               op: Optional[int] = None,
               prescale_factor: float = 1.0,
               postscale_factor: float = 1.0,
               process_set: Any = global_process_set) -> torch.Tensor:
    """allreduce in place: writes the result to `tensor` and returns it.

    Not differentiable. After an error the tensor's contents are undefined.
    """
    process_sets.check(process_set)
    return async_ops.allreduce_now(tensor, tensor, name,
                                   reduction(average, op), prescale_factor,
                                   postscale_factor)


def grouped_allreduce(
        tensors: Sequence[torch.Tensor],
        average: Optional[bool] = None,
        name: Optional[str] = None,
        compression: Any = Compression.none,
        op: Optional[int] = None,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
        process_set: Any = global_process_set) -> List[torch.Tensor]:
    """Reduces each of `tensors`; returns the list of results.

    Arguments are those of allreduce. Members are submitted as
    `<name>.<i>of<n>`; that a group is accepted or refused as a whole comes in a
    later version. Differentiable.
    """
    process_sets.check(process_set)
    op = reduction(average, op)
    compressed = [compression.compress(tensor) for tensor in tensors]
    if not compressed:
        return []
    reduced: Tuple[torch.Tensor, ...] = _GroupedAllreduce.apply(
        name, op, prescale_factor, postscale_factor,
        *(small for small, _ in compressed))
    return [
        compression.decompress(tensor, ctx)
        for tensor, (_, ctx) in zip(reduced, compressed)
    ]


def grouped_allreduce_(
        tensors: Sequence[torch.Tensor],
        average: Optional[bool] = None,
        name: Optional[str] = None,
        op: Optional[int] = None,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
        process_set: Any = global_process_set) -> List[torch.Tensor]:
    """grouped_allreduce in place: results are written to `tensors`."""
    return synchronize(
        grouped_allreduce_async_(tensors, average, name, op, prescale_factor,
                                 postscale_factor, process_set))


def allgather(tensor: torch.Tensor,
              name: Optional[str] = None,
              process_set: Any = global_process_set) -> torch.Tensor:
    """Concatenates all ranks' `tensor`s along dimension 0, in rank order.

    The first dimension may differ between ranks (and be 0), the others not. A
    scalar counts as one element. Differentiable.
    """
    process_sets.check(process_set)
    if isinstance(tensor, torch.Tensor) and tensor.dim() == 0:
        tensor = tensor.reshape(1)
    return _Allgather.apply(tensor, name)


def broadcast(tensor: torch.Tensor,
              root_rank: int,
              name: Optional[str] = None,
              process_set: Any = global_process_set) -> torch.Tensor:
    """Returns a new tensor with the values of rank `root_rank`'s `tensor`.

    Shape and dtype are the same on all ranks. Differentiable: the averaged
    gradient goes to the root.
    """
    process_sets.check(process_set)
    return _Broadcast.apply(tensor, root_rank, name)


def broadcast_(tensor: torch.Tensor,
               root_rank: int,
               name: Optional[str] = None,
               process_set: Any = global_process_set) -> torch.Tensor:
    """broadcast in place: writes the root's values to `tensor`, returns it."""
    process_sets.check(process_set)
    return async_ops.broadcast_now(tensor, tensor, root_rank, name)
