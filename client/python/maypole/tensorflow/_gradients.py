"""Gradients of the collectives, as in Horovod.

The gradient of a reduction is reduced in the same way; that of allgather and
broadcast is averaged. These operations have the forward operation's name with
`.gradient` appended, and its process set. All ranks of the set must compute the
gradient.
"""

import struct
from collections.abc import Sequence
from typing import Any, Optional

import tensorflow as tf

from maypole.common.constants import Average, Sum
from maypole.tensorflow import _nodes, _xla, mpi_ops
from maypole.tensorflow._library import ASYNC

Tensors = Sequence[Any]


def _gradient_of(kind: str) -> Any:
    """Registers a function as the gradient of the collective Maypole`kind`.

    The function gets the operation, and the tensors and upstream gradients of
    the group's members that have a gradient (integers have none); it returns
    their gradients.
    """

    def register(function: Any) -> Any:

        def gradient(op: Any, *grads: Any) -> Any:
            members = [i for i, grad in enumerate(grads) if grad is not None]
            results: list[Any] = [None] * len(op.inputs)
            if members:
                found = function(op, [op.inputs[i] for i in members], [grads[i] for i in members])
                for i, result in zip(members, found):
                    results[i] = result
            return results

        if ASYNC:
            tf.RegisterGradient("Maypole" + kind)(gradient)
        else:
            # Wait has one more input, the handle, which has no gradient.
            tf.RegisterGradient(f"Maypole{kind}Wait")(gradient)
            tf.no_gradient(f"Maypole{kind}Submit")
        _xla.GRADIENTS[kind] = function
        return function

    return register


def _name(op: Any) -> Optional[str]:
    name = op.get_attr("tensor_name").decode()
    return name + ".gradient" if name else None


def _factor(op: Any, attribute: str) -> float:
    return struct.unpack("@d", struct.pack("@q", op.get_attr(attribute)))[0]


def _set(op: Any) -> int:
    return op.get_attr("process_set_id")


@_gradient_of("Allreduce")
def _of_allreduce(op: Any, _: Tensors, grads: Tensors) -> list[Any]:
    return mpi_ops._reduce("Allreduce", grads, _name(op), op.get_attr("reduce_op"),
                           _factor(op, "prescale_bits"), _factor(op, "postscale_bits"), False,
                           _set(op))


@_gradient_of("Reducescatter")
def _of_reducescatter(op: Any, _: Tensors, grads: Tensors) -> list[Any]:
    factor = _factor(op, "prescale_bits") * _factor(op, "postscale_bits")
    if op.get_attr("reduce_op") == Sum:  # a sum is multiplied by the number of ranks
        size = mpi_ops.size_op(_set(op))
        grads = [grad * tf.cast(size, grad.dtype) for grad in grads]
    if factor != 1.0:
        grads = [grad * tf.cast(factor, grad.dtype) for grad in grads]
    return mpi_ops._group_call("Allgather", grads, _name(op), False,
                               {"process_set_id": _set(op)})


@_gradient_of("Allgather")
def _of_allgather(op: Any, tensors: Tensors, grads: Tensors) -> list[Any]:
    means = mpi_ops._reduce("Allreduce", grads, _name(op), Average, 1.0, 1.0, False, _set(op))
    rows = tf.stack([tf.shape(t)[0] if t.shape.rank != 0 else 1 for t in tensors])
    (counts,) = mpi_ops._group_call("Allgather", [rows[tf.newaxis]], _rows_name(op), False,
                                    {"process_set_id": _set(op)})
    first = tf.reduce_sum(counts[:_nodes.place("process_set_rank", _set(op))], axis=0)
    own = [mean[first[i]:first[i] + rows[i]] for i, mean in enumerate(means)]
    return [tf.reshape(part, tf.shape(t)) for part, t in zip(own, tensors)]


def _rows_name(op: Any) -> Optional[str]:
    name = _name(op)
    return None if name is None else name + ".rows"


@_gradient_of("Broadcast")
def _of_broadcast(op: Any, _: Tensors, grads: Tensors) -> list[Any]:
    means = mpi_ops._reduce("Allreduce", grads, _name(op), Average, 1.0, 1.0, False, _set(op))
    is_root = tf.equal(mpi_ops.rank_op(), op.get_attr("root_rank"))
    return [tf.where(is_root, mean, tf.zeros_like(mean)) for mean in means]


@_gradient_of("Alltoall")
def _of_alltoall(op: Any, tensors: Tensors, grads: Tensors) -> list[Any]:
    # The gradient of the received splits, if any, comes second.
    rows, _ = _nodes.call("Alltoall", {"tensor": grads[0], "splits": op.outputs[1]},
                          {"process_set_id": _set(op)}, _name(op))
    return [tf.reshape(rows, tf.shape(tensors[0]))]
