"""Collectives on torch tensors that wait for their result.

The out-of-place functions are differentiable. Names, process sets, arrays of
other libraries, CUDA streams, errors and thread contract are as in async_ops;
these functions also raise the errors of synchronize().
"""

from collections.abc import Sequence
from typing import Any, Optional, Union

import torch

from maypole.common import operations
from maypole.common.collectives import member_names, reduction
from maypole.common.constants import Average, ReduceOp
from maypole.common.process_sets import ProcessSet, global_process_set, id_of
from maypole.torch import _autograd, _submissions
from maypole.torch._compiling import not_compiled
from maypole.torch._tensors import as_tensor
from maypole.torch.async_ops import grouped_allreduce_async_, synchronize
from maypole.torch.compression import Compression, CompressorLike, PowerSGD, compressor_of

__all__ = [
    "allgather", "allreduce", "allreduce_", "alltoall", "broadcast", "broadcast_", "grouped_allgather",
    "grouped_allreduce", "grouped_allreduce_", "grouped_reducescatter", "reducescatter",
]


@not_compiled
def allreduce(tensor: torch.Tensor,
              average: Optional[bool] = None,
              name: Optional[str] = None,
              compression: CompressorLike = Compression.none,
              op: Optional[ReduceOp] = None,
              prescale_factor: float = 1.0,
              postscale_factor: float = 1.0,
              process_set: ProcessSet = global_process_set) -> torch.Tensor:
    """Reduces `tensor` over the ranks into a new tensor of the same shape.

    Differentiable: the gradient is reduced in the same way.

    Args:
        tensor: any shape, the same on all ranks; it is not changed.
        average: older form of op: True for Average, False for Sum.
        name: ranks match the operation by this name; None: by the order of submission.
        compression: Compression.fp16 and bf16 send floats in 16 bits; Compression.powersgd(rank) needs a name
            and op Average or Sum.
        op: Average (default), Sum, Min, Max, Product, Adasum; see allreduce_async.
        prescale_factor: factor for the inputs.
        postscale_factor: factor for the result.
        process_set: the ranks that take part; all of them must make the call.

    Returns:
        A new tensor of the same shape and dtype, bit-equal on all ranks.

    Raises:
        ValueError: wrong arguments, or before init().
        HorovodInternalError: the operation failed: ranks disagreed on it, or a rank was lost.
    """
    return _reduced(_autograd.Allreduce, "allreduce", [tensor], name, False, compression, reduction(average, op),
                    prescale_factor, postscale_factor, process_set)[0]


def _reduced(function: Any, kind: str, tensors: Sequence[torch.Tensor], name: Optional[str], grouped: bool,
             compression: CompressorLike, op: ReduceOp, prescale: float, postscale: float,
             process_set: ProcessSet) -> list[torch.Tensor]:
    """Applies a function of _autograd to the compressed tensors, and returns the decompressed results."""
    names = member_names(name, len(tensors)) if grouped else [name]
    tensors = [as_tensor(tensor, kind, member) for tensor, member in zip(tensors, names)]
    compressors = [compressor_of(compression, member) for member in names]
    compressed = [compressor.compress(tensor) for compressor, tensor in zip(compressors, tensors)]
    if not compressed:
        return []
    results = function.apply(name, grouped, op, prescale, postscale, process_set, *(small for small, _ in compressed))
    return [compressor.decompress(result, ctx)
            for compressor, result, (_, ctx) in zip(compressors, results, compressed)]


@not_compiled
def allreduce_(tensor: torch.Tensor,
               average: Optional[bool] = None,
               name: Optional[str] = None,
               op: Optional[ReduceOp] = None,
               prescale_factor: float = 1.0,
               postscale_factor: float = 1.0,
               process_set: ProcessSet = global_process_set) -> torch.Tensor:
    """Allreduce in place: writes the result to `tensor` and returns it.

    Not differentiable. After an error the tensor's contents are undefined.
    """
    return operations.run(
        _submissions.changes(
            _submissions.allreduce(tensor, name, reduction(average, op),
                                   prescale_factor, postscale_factor,
                                   id_of(process_set), True, awaited=True),
            tensor))


@not_compiled
def grouped_allreduce(
        tensors: Sequence[torch.Tensor],
        average: Optional[bool] = None,
        name: Optional[str] = None,
        compression: CompressorLike = Compression.none,
        op: Optional[ReduceOp] = None,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
        process_set: ProcessSet = global_process_set) -> list[torch.Tensor]:
    """Reduces each of `tensors`; returns the list of results.

    Arguments are those of allreduce. Members are named `<name>.<i>of<n>`; all or none are submitted.
    Differentiable.
    """
    return _reduced(_autograd.Allreduce, "allreduce", tensors, name, True, compression, reduction(average, op),
                    prescale_factor, postscale_factor, process_set)


@not_compiled
def grouped_allreduce_(
        tensors: Sequence[torch.Tensor],
        average: Optional[bool] = None,
        name: Optional[str] = None,
        op: Optional[ReduceOp] = None,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
        process_set: ProcessSet = global_process_set) -> list[torch.Tensor]:
    """grouped_allreduce in place: results are written to `tensors`."""
    return synchronize(
        grouped_allreduce_async_(tensors, average, name, op, prescale_factor,
                                 postscale_factor, process_set))


def _at_least_1d(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.reshape(1) if tensor.dim() == 0 else tensor


@not_compiled
def allgather(tensor: torch.Tensor,
              name: Optional[str] = None,
              process_set: ProcessSet = global_process_set) -> torch.Tensor:
    """Concatenates the ranks' `tensor`s along dimension 0, in rank order.

    The first dimension may differ between ranks (and may be 0), the others must not. A scalar counts as one
    element. Differentiable.

    Args:
        tensor: [rows, ...]: the number of rows may differ between ranks (and may be 0), the rest must not.
        name: ranks match the operation by this name; None: by the order of submission.
        process_set: the ranks that take part; all of them must make the call.

    Returns:
        [all rows, ...], in rank order.

    Raises:
        ValueError: wrong arguments, or before init().
        HorovodInternalError: the operation failed: ranks disagreed on it, or a rank was lost.
    """
    tensor = as_tensor(tensor, "allgather", name)
    return _autograd.Allgather.apply(name, False, process_set, _at_least_1d(tensor))[0]


@not_compiled
def grouped_allgather(
        tensors: Sequence[torch.Tensor],
        name: Optional[str] = None,
        process_set: ProcessSet = global_process_set) -> list[torch.Tensor]:
    """Gathers each of `tensors`; returns the list of results.

    Members are named `<name>.<i>of<n>`; all or none are submitted. Differentiable.

    Args:
        tensors: a sequence of tensors, each as in the function of one.
        name: ranks match the operation by this name; None: by the order of submission.
        process_set: the ranks that take part; all of them must make the call.
    """
    tensors = [as_tensor(tensor, "allgather", member)
               for tensor, member in zip(tensors, member_names(name, len(tensors)))]
    if not tensors:
        return []
    return list(_autograd.Allgather.apply(name, True, process_set, *map(_at_least_1d, tensors)))


@not_compiled
def broadcast(tensor: torch.Tensor,
              root_rank: int,
              name: Optional[str] = None,
              process_set: ProcessSet = global_process_set) -> torch.Tensor:
    """Returns a new tensor with the values of rank `root_rank`'s `tensor`.

    Differentiable: the averaged gradient goes to the root.

    Args:
        tensor: any shape and dtype, the same on all ranks.
        root_rank: a rank of the job (not an index in the process set); it must be in the set. Shape and dtype
            must be the same on all ranks.
        name: ranks match the operation by this name; None: by the order of submission.
        process_set: the ranks that take part; all of them must make the call.

    Raises:
        ValueError: wrong arguments, or before init().
        HorovodInternalError: the operation failed: ranks disagreed on it, or a rank was lost.
    """
    return _autograd.Broadcast.apply(tensor, root_rank, name, process_set)


@not_compiled
def broadcast_(tensor: torch.Tensor,
               root_rank: int,
               name: Optional[str] = None,
               process_set: ProcessSet = global_process_set) -> torch.Tensor:
    """Broadcast in place: writes the root's values to `tensor`, returns it."""
    return operations.run(
        _submissions.changes(
            _submissions.broadcast(tensor, root_rank, name, id_of(process_set),
                                   True, awaited=True), tensor))


@not_compiled
def alltoall(
    tensor: torch.Tensor,
    splits: Any = None,
    name: Optional[str] = None,
    process_set: ProcessSet = global_process_set
) -> Union[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
    """Sends each rank some rows of `tensor`; returns the rows received.

    Args:
        tensor: [rows, ...]: all dimensions except the first must be the same on all ranks.
        splits: how many rows go to each rank of the set, in rank order: a list or an int32 or int64 tensor;
            None: equal parts.
        name: ranks match the operation by this name; None: by the order of submission.
        process_set: the ranks that take part; all of them must make the call.

    Returns:
        The rows from all ranks, in rank order; if splits is given, a pair of these rows and of how many came
        from each rank (int32 on the CPU, or the dtype and device of `splits`). Differentiable.

    Raises:
        ValueError: wrong arguments, or before init().
        HorovodInternalError: the operation failed: ranks disagreed on it, or a rank was lost.
    """
    rows, received = _autograd.Alltoall.apply(tensor, splits, name,
                                              process_set)
    return rows if splits is None else (rows, received)


def _scattered(tensors: Sequence[torch.Tensor], name: Optional[str], grouped: bool, compression: CompressorLike,
               op: ReduceOp, prescale: float, postscale: float, process_set: ProcessSet) -> list[torch.Tensor]:
    op = reduction(None, op)
    if isinstance(compression, PowerSGD):
        raise ValueError("reducescatter: Compression.powersgd serves allreduce "
                         "only, because it sends no rows; use fp16 or bf16")
    return _reduced(_autograd.Reducescatter, "reducescatter", tensors, name, grouped, compression, op, prescale,
                    postscale, process_set)


@not_compiled
def reducescatter(tensor: torch.Tensor,
                  name: Optional[str] = None,
                  compression: CompressorLike = Compression.none,
                  op: ReduceOp = Average,
                  process_set: ProcessSet = global_process_set,
                  prescale_factor: float = 1.0,
                  postscale_factor: float = 1.0) -> torch.Tensor:
    """Reduces `tensor` over the ranks; returns this rank's rows of the result.

    Differentiable, as an allreduce is: the gradient is gathered and, for a sum, multiplied by the number of
    ranks.

    Args:
        tensor: has at least one dimension, and the same shape on all ranks.
        name: ranks match the operation by this name; None: by the order of submission.
        compression: Compression.fp16 and bf16 send floats in 16 bits.
        op: Average or Sum. With r rows and n ranks, each rank gets r // n rows, and the first r % n ranks one
            more.
        process_set: the ranks that take part; all of them must make the call.
        prescale_factor: factor for the inputs.
        postscale_factor: factor for the result.

    Raises:
        ValueError: wrong arguments, or before init().
        HorovodInternalError: the operation failed: ranks disagreed on it, or a rank was lost.
    """
    return _scattered([tensor], name, False, compression, op, prescale_factor, postscale_factor, process_set)[0]


@not_compiled
def grouped_reducescatter(
        tensors: Sequence[torch.Tensor],
        name: Optional[str] = None,
        compression: CompressorLike = Compression.none,
        op: ReduceOp = Average,
        process_set: ProcessSet = global_process_set,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0) -> list[torch.Tensor]:
    """A reducescatter of each of `tensors`; returns the list of results.

    Arguments are those of reducescatter. Members are named `<name>.<i>of<n>`; all or none are submitted.
    Differentiable.
    """
    return _scattered(tensors, name, True, compression, op, prescale_factor, postscale_factor, process_set)
