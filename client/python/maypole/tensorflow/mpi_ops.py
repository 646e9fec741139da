"""Collectives on TensorFlow tensors: eager, in tf.function, in compat.v1 graphs.

Names and gradients are Horovod's. Every tensor may be a tf.Tensor, a variable,
an array or a number, of float16, bfloat16, float32, float64, int8, int16, int32,
int64, uint8, uint16 or bool. process_set: the ranks that take part; all of them
must run the operation.

name: ranks match operations by it. Operations without a name are matched by the
order of the calls or, in a graph, by the order in which they were made.
ignore_name_scope: in a graph, the name scopes are not part of the name.

Thread contract: that of TensorFlow; no thread of its pools waits (from
TensorFlow 2.13 on). Errors: wrong arguments raise ValueError; a failed operation
raises one of tf.errors, with Maypole's text.
"""

import struct
from collections.abc import Sequence
from typing import Any, Optional, Union

import numpy as np
import tensorflow as tf

from maypole.arrays import same_on_all
from maypole.common import collectives
from maypole.common.constants import Adasum, ReduceOp
from maypole.common.process_sets import ProcessSet, global_process_set, id_of
from maypole.tensorflow import _equal_weights, _gradient_layouts, _nodes
from maypole.tensorflow._library import as_it_is
from maypole.tensorflow.util import groups_of, tf_variable

__all__ = [
    "allgather", "alltoall", "barrier", "broadcast", "broadcast_", "grouped_allgather", "join", "local_rank_op",
    "local_size_op", "process_set_included_op", "rank_op", "size_op",
]

# Limit of the bytes of variables that one operation broadcasts: until they are
# assigned, its results take as much memory again.
_GROUP_BYTES = 256 << 20


def _bits(factor: float) -> int:
    """Returns a double's bits as an integer, because attributes can be floats only."""
    return struct.unpack("@q", struct.pack("@d", factor))[0]


def _group_call(kind: str, values: Sequence[Any], name: Optional[str], ignore_name_scope: bool,
                attributes: dict[str, Any]) -> list[Any]:
    tensors = [tf.convert_to_tensor(value) for value in values]
    if not tensors:
        return []
    return list(_nodes.call(kind, {"tensors": tensors}, attributes, name, ignore_name_scope))


def _reduce(kind: str, values: Sequence[Any], name: Optional[str], op: ReduceOp, prescale: float,
            postscale: float, ignore_name_scope: bool, process_set: int) -> list[Any]:
    prescale, postscale = collectives.check_factors(kind.lower(), name, prescale, postscale)
    tensors = [tf.convert_to_tensor(value) for value in values]
    for tensor in tensors:
        if op == Adasum and not tensor.dtype.is_floating:
            raise ValueError(f"{collectives.title('allreduce', name)}: Adasum needs a floating point "
                             f"tensor, this one is {tensor.dtype.name}")
    return _group_call(kind, tensors, name, ignore_name_scope, {
        "reduce_op": op, "prescale_bits": _bits(prescale), "postscale_bits": _bits(postscale),
        "process_set_id": process_set})


@as_it_is
def allgather(tensor: Any, name: Optional[str] = None, ignore_name_scope: bool = False,
              process_set: ProcessSet = global_process_set) -> tf.Tensor:
    """Concatenates the ranks' tensors along dimension 0, in rank order.

    Args:
        tensor: [rows, ...]; the rows may differ between ranks. A scalar counts as one row.
        name: ranks match the operation by this name; None: by the order of submission.
        ignore_name_scope: in a graph, leave the name scopes out of the name.
        process_set: the ranks that take part; all of them must make the call.

    Returns:
        [all rows, ...]. Its gradient is this rank's rows of the averaged gradient.

    Raises:
        ValueError: wrong arguments, or before init().
        tf.errors.OpError: the operation failed: ranks disagreed on it, or a rank was lost.
    """
    return grouped_allgather([tensor], name, ignore_name_scope, process_set)[0]


@as_it_is
def grouped_allgather(tensors: Sequence[Any], name: Optional[str] = None,
                      ignore_name_scope: bool = False,
                      process_set: ProcessSet = global_process_set) -> list[tf.Tensor]:
    """allgather() of each tensor, as one operation; returns the list."""
    return _group_call("Allgather", tensors, name, ignore_name_scope,
                       {"process_set_id": id_of(process_set)})


@as_it_is
def broadcast(tensor: Any, root_rank: int, name: Optional[str] = None,
              ignore_name_scope: bool = False,
              process_set: ProcessSet = global_process_set) -> tf.Tensor:
    """Returns rank `root_rank`'s tensor on all ranks.

    Its gradient is the averaged gradient on the root, zero elsewhere.

    Args:
        tensor: any shape, the same on all ranks.
        root_rank: a rank of the job, not an index in the process set.
        name: ranks match the operation by this name; None: by the order of submission.
        ignore_name_scope: in a graph, leave the name scopes out of the name.
        process_set: the ranks that take part; all of them must make the call.

    Raises:
        ValueError: wrong arguments, or before init().
        tf.errors.OpError: the operation failed: ranks disagreed on it, or a rank was lost.
    """
    return _broadcast([tensor], root_rank, name, ignore_name_scope, id_of(process_set))[0]


def _broadcast(tensors: Sequence[Any], root_rank: int, name: Optional[str],
               ignore_name_scope: bool, process_set: int) -> list[tf.Tensor]:
    return _group_call("Broadcast", tensors, name, ignore_name_scope,
                       {"root_rank": collectives.check_root(name, root_rank),
                        "process_set_id": process_set})


def _other_variables(difference: str) -> ValueError:
    return ValueError(f"broadcast of variables: the ranks pass different ones: {difference}; all ranks must create and "
                      "build the same model and optimizer: optimizer.build(model.trainable_variables) makes those of "
                      "a Keras optimizer that has not stepped yet")


@as_it_is
def broadcast_(variables: Sequence[Any], root_rank: int, name: Optional[str] = None,
               process_set: ProcessSet = global_process_set) -> list[Any]:
    """Overwrites variables on all ranks with those of rank `root_rank`.

    Args:
        variables: a list of tf.Variable (also reference variables of compat.v1) or Keras variables, with the
            same shapes and dtypes on all ranks.
        root_rank: a rank of the job.
        name: ranks match the operation by this name; None: by the order of submission.
        process_set: the ranks that take part; all of them must make the call.

    Raises:
        ValueError: in eager execution, on all ranks, if ranks pass different variables.

    Returns:
        The results of the assignments: in eager execution, when they are done; in a graph, the tensors or
        operations that make them.
    """
    number = id_of(process_set)
    assigned: list[Any] = []
    variables = [tf_variable(variable) for variable in variables]
    if tf.executing_eagerly():
        labels = [f"{i}: {v.dtype.base_dtype.name}{v.shape}" for i, v in enumerate(variables)]
        same_on_all.gather(np.zeros(0), labels, f"{name or 'broadcast'}.shapes", process_set, _other_variables)
    with _nodes.together():
        for group in groups_of(variables, lambda variable: variable, _GROUP_BYTES):
            values = _broadcast([variable.read_value() for variable in group], root_rank,
                                f"{name or 'broadcast'}.{len(assigned)}", False, number)
            assigned += [variable.assign(value) for variable, value in zip(group, values)]
    return assigned


@as_it_is
def alltoall(tensor: Any, splits: Any = None, name: Optional[str] = None,
             ignore_name_scope: bool = False, process_set: ProcessSet = global_process_set
             ) -> Union[tf.Tensor, tuple[tf.Tensor, tf.Tensor]]:
    """Sends each rank some rows of `tensor`.

    Args:
        tensor: [rows, ...]: all dimensions except the first must be the same on all ranks.
        splits: how many rows go to each rank of the set, in rank order; None: equal parts.
        name: ranks match the operation by this name; None: by the order of submission.
        ignore_name_scope: in a graph, leave the name scopes out of the name.
        process_set: the ranks that take part; all of them must make the call.

    Returns:
        The received rows, in rank order; if splits is given, a pair of these and of how many came from each
        rank (int32). The gradient of each row goes back to the rank that sent it.

    Raises:
        ValueError: wrong arguments, or before init().
        tf.errors.OpError: the operation failed: ranks disagreed on it, or a rank was lost.
    """
    tensor = tf.convert_to_tensor(tensor)
    given = tf.constant([], tf.int32) if splits is None else tf.cast(splits, tf.int32)
    rows, received = _nodes.call(
        "Alltoall", {"tensor": tensor, "splits": given}, {"process_set_id": id_of(process_set)},
        name, ignore_name_scope)
    return rows if splits is None else (rows, received)


@as_it_is
def join() -> tf.Tensor:
    """Declares that this rank has no more inputs; ends when all ranks have called it.

    Until then the other ranks can run operations. This rank contributes a neutral input to reductions (Average
    still divides by the number of all ranks), and no rows to allgather and alltoall.

    Returns:
        The rank that joined last (int32, a scalar).
    """
    last = _nodes.call("Join", {}, {}, None)
    if tf.executing_eagerly():
        _gradient_layouts.share()  # the agreements that the others have made meanwhile
        _equal_weights.forget()  # the ranks have made different numbers of steps
    else:
        _equal_weights.stop()
    return last


@as_it_is
def barrier(process_set: ProcessSet = global_process_set) -> Any:
    """Ends when all ranks of the set have run it. In a graph: the tf.Operation.

    Args:
        process_set: the ranks that take part; all of them must make the call.
    """
    return _nodes.call("Barrier", {}, {"process_set_id": id_of(process_set)}, None)


@as_it_is
def size_op(process_set_id: int = 0, name: Optional[str] = None) -> tf.Tensor:
    """The number of ranks of a process set when the operation runs (int32).

    In an elastic job it changes, while size() in a graph is a constant.

    Args:
        process_set_id: the process set's id; 0: all ranks of the job.
        name: the operation's name.
    """
    return _nodes.place("size", process_set_id, name)


@as_it_is
def process_set_included_op(process_set_id: int = 0, name: Optional[str] = None) -> tf.Tensor:
    """1 if this rank is in the process set when the operation runs, else 0 (int32).

    Args:
        process_set_id: the process set's id; 0: all ranks of the job.
        name: the operation's name.
    """
    return _nodes.place("process_set_included", process_set_id, name)


@as_it_is
def local_size_op(name: Optional[str] = None) -> tf.Tensor:
    """The number of the job's ranks on this node when the operation runs (int32).

    Args:
        name: the operation's name.
    """
    return _nodes.place("local_size", 0, name)


@as_it_is
def rank_op(name: Optional[str] = None) -> tf.Tensor:
    """This process's rank when the operation runs (int32).

    Args:
        name: the operation's name.
    """
    return _nodes.place("rank", 0, name)


@as_it_is
def local_rank_op(name: Optional[str] = None) -> tf.Tensor:
    """This process's rank on its node when the operation runs (int32).

    Args:
        name: the operation's name.
    """
    return _nodes.place("local_rank", 0, name)
