"""allreduce() and reducescatter() with compression and sparse tensors.

Names, process sets, errors and thread contract are as in mpi_ops.
"""

from collections.abc import Sequence
from typing import Any, Optional

import tensorflow as tf

from maypole.common import collectives
from maypole.common.collectives import reduction
from maypole.common.constants import OP_NAMES, Average, ReduceOp, Sum
from maypole.common.process_sets import ProcessSet, global_process_set, id_of
from maypole.tensorflow import _nodes, mpi_ops
from maypole.tensorflow._library import as_it_is
from maypole.tensorflow.compression import Compression, Compressor


@as_it_is
def allreduce(tensor: Any, average: Optional[bool] = None, device_dense: str = "",
              device_sparse: str = "", compression: type[Compressor] = Compression.none,
              op: Optional[ReduceOp] = None, prescale_factor: float = 1.0,
              postscale_factor: float = 1.0, name: Optional[str] = None,
              process_set: ProcessSet = global_process_set, ignore_name_scope: bool = False) -> Any:
    """Reduces `tensor` over the ranks; returns a new tensor of the same shape.

    Differentiable: the gradient is reduced in the same way.

    Args:
        tensor: any shape, the same on all ranks; or tf.IndexedSlices (op Average or Sum), for which the
            ranks' slices are gathered: indices of the result may repeat.
        average: older form of op: True for Average, False for Sum.
        device_dense: where operations of dense tensors are placed; "": where TensorFlow likes.
        device_sparse: where operations of tf.IndexedSlices are placed; "": where TensorFlow likes.
        compression: Compression.fp16 and bf16 send floats in 16 bits.
        op: Average (default), Sum, Min, Max, Product, Adasum (floats only). Integer averages truncate toward
            zero. For bool, Sum and Max mean OR, Product and Min mean AND.
        prescale_factor: factor for the inputs.
        postscale_factor: factor for the result.
        name: ranks match the operation by this name; None: by the order of submission.
        process_set: the ranks that take part; all of them must make the call.
        ignore_name_scope: in a graph, leave the name scopes out of the name.

    Raises:
        ValueError: wrong arguments, or before init().
        tf.errors.OpError: the operation failed: ranks disagreed on it, or a rank was lost.
    """
    op = reduction(average, op)
    if isinstance(tensor, tf.IndexedSlices):
        with tf.device(device_sparse):
            before, after = collectives.check_factors("allreduce", name, prescale_factor,
                                                      postscale_factor)
            return _sparse_allreduce(tensor, op, before * after, name, process_set,
                                     ignore_name_scope)
    return _dense_reduced("Allreduce", [tensor], device_dense, compression, name, op, prescale_factor,
                          postscale_factor, ignore_name_scope, process_set)[0]


def _dense_reduced(kind: str, tensors: Sequence[Any], device: str, compression: type[Compressor], name: Optional[str],
                   op: ReduceOp, prescale: float, postscale: float, ignore_name_scope: bool,
                   process_set: Any) -> list[Any]:
    """Reduces dense tensors as one operation."""
    with tf.device(device):
        pairs = [compression.compress(tensor) for tensor in tensors]
        reduced = mpi_ops._reduce(kind, [small for small, _ in pairs], name, op, prescale, postscale,
                                  ignore_name_scope, id_of(process_set))
        return [compression.decompress(result, ctx) for result, (_, ctx) in zip(reduced, pairs)]


def _sparse_allreduce(tensor: tf.IndexedSlices, op: ReduceOp, factor: float, name: Optional[str],
                      process_set: Any, ignore_name_scope: bool) -> tf.IndexedSlices:
    if op not in (Average, Sum):
        raise NotImplementedError(
            f"allreduce of tf.IndexedSlices: op={OP_NAMES[op]} needs dense tensors; use "
            "sparse_as_dense=True, or tf.convert_to_tensor()")
    if not tensor.values.shape.is_fully_defined() and _nodes.is_compiled():
        raise ValueError(
            f"{collectives.title('allreduce', name)} of tf.IndexedSlices (an embedding's gradient) in a function with "
            f"jit_compile=True: expected a fixed shape, got {tensor.values.shape}; use sparse_as_dense=True, or "
            "jit_compile=False")
    scale: Any = factor
    if op == Average:
        scale = factor / tf.cast(mpi_ops.size_op(id_of(process_set)), tf.float64)
    # Scales before gathering, so that all ranks get the same values.
    values, indices = mpi_ops.grouped_allgather(
        [_scaled(tensor.values, scale), tensor.indices], name, ignore_name_scope, process_set)
    return tf.IndexedSlices(values, indices, dense_shape=tensor.dense_shape)


def _scaled(values: Any, factor: Any) -> Any:
    """Returns the values times the factor, a number or a scalar tensor; scales integers like libmaypole."""
    if isinstance(factor, float) and factor == 1.0:
        return values
    if values.dtype.is_floating:
        return values * tf.cast(factor, values.dtype)
    return tf.saturate_cast(tf.cast(values, tf.float64) * factor, values.dtype)


@as_it_is
def grouped_allreduce(tensors: Sequence[Any], average: Optional[bool] = None,
                      device_dense: str = "", device_sparse: str = "",
                      compression: type[Compressor] = Compression.none, op: Optional[ReduceOp] = None,
                      prescale_factor: float = 1.0, postscale_factor: float = 1.0,
                      process_set: ProcessSet = global_process_set, ignore_name_scope: bool = False,
                      name: Optional[str] = None) -> list[Any]:
    """allreduce() of each tensor, as one operation; returns the list.

    Arguments are those of allreduce(). Each tf.IndexedSlices among the tensors is reduced by an operation of
    its own, all dense tensors by one operation.
    """
    op = reduction(average, op)
    if not tensors:
        return []
    collectives.check_name("allreduce", name)  # before names are derived from it
    results: list[Any] = list(tensors)
    dense = [i for i, t in enumerate(tensors) if not isinstance(t, tf.IndexedSlices)]
    for i in set(range(len(tensors))).difference(dense):
        results[i] = allreduce(tensors[i], None, device_dense, device_sparse, compression, op,
                               prescale_factor, postscale_factor,
                               None if name is None else f"{name}.sparse{i}", process_set,
                               ignore_name_scope)
    reduced = _dense_reduced("Allreduce", [tensors[i] for i in dense], device_dense, compression, name, op,
                             prescale_factor, postscale_factor, ignore_name_scope, process_set)
    for i, result in zip(dense, reduced):
        results[i] = result
    return results


def _check_scattered(tensors: Sequence[Any], op: ReduceOp) -> None:
    if any(isinstance(tensor, tf.IndexedSlices) for tensor in tensors):
        raise NotImplementedError("reducescatter: tf.IndexedSlices cannot be scattered; convert "
                                  "it with tf.convert_to_tensor() first")
    if op not in (Average, Sum):
        raise NotImplementedError(f"reducescatter: op={OP_NAMES.get(op, op)}, expected Average or Sum")


@as_it_is
def reducescatter(tensor: Any, device_dense: str = "", compression: type[Compressor] = Compression.none,
                  op: ReduceOp = Average, name: Optional[str] = None,
                  process_set: ProcessSet = global_process_set, ignore_name_scope: bool = False,
                  prescale_factor: float = 1.0, postscale_factor: float = 1.0) -> Any:
    """Reduces `tensor` over the ranks; returns this rank's rows of the result.

    Differentiable: the gradient is gathered and, for a sum, multiplied by the number of ranks.

    Args:
        tensor: [rows, ...], the same shape on all ranks.
        device_dense: where operations of dense tensors are placed; "": where TensorFlow likes.
        compression: Compression.none, or fp16 or bf16, which send floats in 16 bits.
        op: Average or Sum. With r rows and n ranks, each rank gets r // n rows, and the first r % n ranks one
            more.
        name: ranks match the operation by this name; None: by the order of submission.
        process_set: the ranks that take part; all of them must make the call.
        ignore_name_scope: in a graph, leave the name scopes out of the name.
        prescale_factor: factor for the inputs.
        postscale_factor: factor for the result.

    Raises:
        ValueError: wrong arguments, or before init().
        tf.errors.OpError: the operation failed: ranks disagreed on it, or a rank was lost.
    """
    return grouped_reducescatter([tensor], device_dense, compression, op, process_set, prescale_factor,
                                 postscale_factor, name, ignore_name_scope)[0]


@as_it_is
def grouped_reducescatter(tensors: Sequence[Any], device_dense: str = "",
                          compression: type[Compressor] = Compression.none, op: ReduceOp = Average,
                          process_set: ProcessSet = global_process_set, prescale_factor: float = 1.0,
                          postscale_factor: float = 1.0, name: Optional[str] = None,
                          ignore_name_scope: bool = False) -> list[Any]:
    """reducescatter() of each tensor, as one operation; returns the list."""
    _check_scattered(tensors, op)
    return _dense_reduced("Reducescatter", tensors, device_dense, compression, name, op, prescale_factor,
                          postscale_factor, ignore_name_scope, process_set)
