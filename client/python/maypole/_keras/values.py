"""Collectives on numbers and arrays of any backend, outside of a step; the results are NumPy's.

Thread contract: any thread.
"""

import sys
from typing import Any, Optional

import numpy as np

from maypole import arrays
from maypole.common.collectives import reduction
from maypole.common.constants import Average, ReduceOp


def session() -> Any:
    """Returns Keras 2's session under tf.compat.v1.disable_eager_execution(); None otherwise."""
    tf = sys.modules.get("tensorflow")
    if tf is None or tf.compat.v1.executing_eagerly_outside_functions():
        return None
    return tf.compat.v1.keras.backend.get_session()


def as_array(value: Any) -> np.ndarray:
    """Returns a number, an array, or a tensor or variable of a backend as an array."""
    if hasattr(value, "detach"):  # a torch tensor, possibly on a GPU
        value = value.detach().cpu()
    elif hasattr(value, "numpy"):  # a variable, or a tensor of TensorFlow
        current = session()
        value = value.numpy() if current is None else current.run(value)
    return np.asarray(value)


def assign(variable: Any, value: Any) -> None:
    """Assigns the value to a variable of a backend."""
    current = session()
    if current is None:
        variable.assign(value)
    else:  # adds nothing to the graph
        start = variable.initializer
        current.run(start, {start.inputs[1]: as_array(value)})


def _as_given(value: Any, result: np.ndarray) -> Any:
    """Returns the result as a number if `value` is one."""
    return result.item() if isinstance(value, (bool, int, float)) else result


def allreduce(value: Any, name: Optional[str] = None, average: Optional[bool] = None,
              prescale_factor: float = 1.0, postscale_factor: float = 1.0,
              op: Optional[ReduceOp] = None, compression: Any = None) -> Any:
    """Reduces the value over all ranks; returns a NumPy array, or a number if the value is one.

    Args:
        value: a number, array, tensor or variable, of the same shape on all ranks.
        name: ranks match the operation by this name; None: by the order of submission.
        average: older form of op.
        prescale_factor: factor for the inputs.
        postscale_factor: factor for the result.
        op: Average (default), Sum, Min, Max, Product.
        compression: Compression.fp16 sends floats in 16 bits; others have no effect, because NumPy has no
            bfloat16.

    Returns:
        A new array of the same shape and dtype, bit-equal on all ranks.

    Raises:
        ValueError: for wrong arguments.
        HorovodInternalError: a rank is lost.
    """
    op = reduction(average, op)
    array = as_array(value)
    small = array
    if getattr(compression, "__name__", "") == "FP16Compressor" and array.dtype.kind == "f":
        small = array.astype(np.float16)
    result = arrays.allreduce(small, name=name, op=op, prescale_factor=prescale_factor,
                              postscale_factor=postscale_factor)
    return _as_given(value, result.astype(array.dtype, copy=False))


def allgather(value: Any, name: Optional[str] = None) -> np.ndarray:
    """Concatenates the values of all ranks along their first dimension, in which they may differ.

    Numbers count as arrays of one row.

    Args:
        value: a number, array, tensor or variable; the first dimension may differ between ranks.
        name: ranks match the operation by this name; None: by the order of submission.

    Returns:
        [all rows, ...], in rank order.

    Raises:
        ValueError: wrong arguments, or before init().
        HorovodInternalError: the operation failed: ranks disagreed on it, or a rank was lost.
    """
    return arrays.allgather(np.atleast_1d(as_array(value)), name=name)


def broadcast(value: Any, root_rank: int, name: Optional[str] = None) -> Any:
    """Returns rank root_rank's value.

    Args:
        value: a number, array, tensor or variable, of the same shape on all ranks.
        root_rank: a rank of the job (not an index in the process set), in the set.
        name: ranks match the operation by this name; None: by the order of submission.

    Returns:
        A new array with the root's values.

    Raises:
        ValueError: wrong arguments, or before init().
        HorovodInternalError: the operation failed: ranks disagreed on it, or a rank was lost.
    """
    return _as_given(value, arrays.broadcast(as_array(value), root_rank, name=name))


def reducescatter(value: Any, name: Optional[str] = None, op: ReduceOp = Average) -> np.ndarray:
    """Reduces the values over all ranks; returns this rank's rows.

    The first ranks get one more row if the rows cannot be divided equally.

    Args:
        value: a number, array, tensor or variable, of the same shape on all ranks.
        name: ranks match the operation by this name; None: by the order of submission.
        op: Average or Sum.

    Returns:
        [this rank's rows, ...]: of r rows on n ranks each rank gets r // n, and the first r % n ranks one more.

    Raises:
        ValueError: wrong arguments, or before init().
        HorovodInternalError: the operation failed: ranks disagreed on it, or a rank was lost.
    """
    return arrays.reducescatter(as_array(value), name=name, op=op)
