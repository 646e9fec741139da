"""Broadcasts variables and Python objects.

All ranks of the set must call these, with the same names. Thread contract: that
of mpi_ops; the object functions: one thread at a time per name. Errors: those of
mpi_ops; the object functions raise HorovodInternalError.
"""

from collections.abc import Sequence
from typing import Any, Callable, Optional

import tensorflow as tf

from maypole.common import objects
from maypole.common.process_sets import ProcessSet, global_process_set
from maypole.tensorflow import mpi_ops
from maypole.tensorflow._library import as_it_is

__all__ = [
    "allgather_object", "broadcast_global_variables", "broadcast_object", "broadcast_object_fn", "broadcast_variables",
]


@as_it_is
def broadcast_variables(variables: Sequence[Any], root_rank: int,
                        process_set: ProcessSet = global_process_set, inplace: bool = False) -> Any:
    """As mpi_ops.broadcast_(), but in a graph returns one operation for all variables.

    inplace is accepted for compatibility: the variables are always overwritten.
    """
    assigned = mpi_ops.broadcast_(variables, root_rank, "broadcast_variables", process_set)
    if tf.executing_eagerly():
        return None
    return tf.group(*assigned)


@as_it_is
def broadcast_global_variables(root_rank: int) -> Any:
    """Returns an operation that broadcasts all global variables of a compat.v1 graph.

    Args:
        root_rank: a rank of the job (not an index in the process set), in the set.

    Raises:
        RuntimeError: in eager execution, which has none.
    """
    if tf.executing_eagerly():
        raise RuntimeError("hvd.broadcast_global_variables() does not support eager execution, "
                           "where TensorFlow does not know all variables; use "
                           "hvd.broadcast_variables(<model or optimizer>.variables, root_rank)")
    return broadcast_variables(tf.compat.v1.global_variables(), root_rank)


def broadcast_object(obj: Any, root_rank: int = 0, session: Any = None,
                     name: Optional[str] = None, process_set: ProcessSet = global_process_set) -> Any:
    """Returns rank `root_rank`'s `obj` on all ranks; the other ranks' `obj` is ignored.

    The object is pickled (by cloudpickle if it is installed). This is not an operation of TensorFlow, so
    `session` is not needed.

    Args:
        obj: what pickle or cloudpickle can write.
        root_rank: a rank of the job (not an index in the process set), in the set.
        session: the session of a compat.v1 graph; None: the default session.
        name: ranks match the operation by this name; None: by the order of submission.
        process_set: the ranks that take part; all of them must make the call.
    """
    return objects.broadcast_object(obj, root_rank, name, process_set)


def broadcast_object_fn(root_rank: int = 0, session: Any = None, name: Optional[str] = None,
                        process_set: ProcessSet = global_process_set) -> Callable[[Any], Any]:
    """broadcast_object() with these arguments, as a function of the object.

    Args:
        root_rank: a rank of the job (not an index in the process set), in the set.
        session: the session of a compat.v1 graph; None: the default session.
        name: ranks match the operation by this name; None: by the order of submission.
        process_set: the ranks that take part; all of them must make the call.
    """

    def broadcast(obj: Any) -> Any:
        return broadcast_object(obj, root_rank, session, name, process_set)

    return broadcast


def allgather_object(obj: Any, session: Any = None, name: Optional[str] = None,
                     process_set: ProcessSet = global_process_set) -> list[Any]:
    """Returns the list of all ranks' `obj`s, in rank order. See broadcast_object().

    Args:
        obj: what pickle or cloudpickle can write.
        session: the session of a compat.v1 graph; None: the default session.
        name: ranks match the operation by this name; None: by the order of submission.
        process_set: the ranks that take part; all of them must make the call.
    """
    return objects.allgather_object(obj, name, process_set)
