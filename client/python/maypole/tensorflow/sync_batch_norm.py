"""BatchNormalization with the statistics of all ranks' batches.

Each rank gathers all ranks' (number of values, mean, variance) of each channel
and combines them (Chan's formula), so that no precision is lost in a sum of
squares. Backward, the ranks' gradients of each row are summed. So gradients are
those of one layer that sees the whole batch, if the optimizer averages over the
ranks.

It is for the Keras that tf.keras is, 2 or 3. This module imports it.

Thread contract: that of Keras; all ranks run the same layers.
"""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from maypole.common import basics
from maypole.common.constants import Sum
from maypole.tensorflow._gradient_reduction import unique_name
from maypole.tensorflow.mpi_ops import allgather, rank_op
from maypole.tensorflow.reductions import allreduce

_KERAS_2 = hasattr(tf.keras.layers.BatchNormalization, "_assign_moving_average")


class SyncBatchNormalization(tf.keras.layers.BatchNormalization):
    """Like tf.keras.layers.BatchNormalization, over the batches of all ranks.

    Batches may differ in size; none may be empty. Without training, and with one rank, it is an ordinary
    BatchNormalization. fused must be False (raises ValueError): TensorFlow's fused kernel computes the
    statistics itself.

    Args:
        fused: must be False.
        **kwargs: as for tf.keras.layers.BatchNormalization.
    """

    def __init__(self, fused: bool = False, **kwargs: Any):
        if fused in (True, None):
            raise ValueError(
                f"SyncBatchNormalization(fused={fused}): expected fused=False, "
                "because a fused kernel normalizes with one rank's statistics")
        if _KERAS_2:
            kwargs["fused"] = False
        super().__init__(**kwargs)

    def _moments(self, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        """Overrides Keras' function for the statistics with those of all ranks.

        Arguments: reduction axes, keep_dims and, from Keras 2.13 on, the mask;
        in Keras 3 the mask.
        """
        mean, variance = super()._moments(inputs, *args, **kwargs)
        if not basics.is_elastic() and basics.size() == 1:
            return mean, variance
        if _KERAS_2:
            axes = args[0] if args else kwargs["reduction_axes"]
            mask = args[2] if len(args) > 2 else kwargs.get("mask")
        else:
            axes = self._reduction_axes
            mask = args[0] if args else kwargs.get("mask")
        return _of_all_ranks(
            mean, variance, _count(inputs, axes, mask),
            # Not after the layer: Keras numbers those that each process has made.
            unique_name(f"SyncBatchNormalization.{mean.shape.num_elements()}"))

    if _KERAS_2:  # whose layers can be part of a version 1 graph

        def call(self, inputs: Any, training: Any = None, **kwargs: Any) -> Any:
            """Normalizes with the moments of all ranks' inputs, in training."""
            outputs = super().call(inputs, training=training, **kwargs)
            # As layers of version 1 do, for control dependencies of a train_op.
            for update in getattr(self, "updates", None) or ():
                tf.compat.v1.add_to_collection(
                    tf.compat.v1.GraphKeys.UPDATE_OPS, update)
            return outputs


def _count(inputs: Any, axes: Sequence[int], mask: Any) -> Any:
    """Returns the number of this rank's values in each channel's statistics."""
    if mask is not None:
        return tf.reduce_sum(tf.cast(mask, tf.float32))
    shape = tf.shape(inputs)
    return tf.cast(tf.reduce_prod(tf.gather(shape, axes)), tf.float32)


def _of_all_ranks(mean: Any, variance: Any, count: Any,
                  name: str) -> tuple[Any, Any]:
    dtype = mean.dtype
    exact = tf.float64 if dtype == tf.float64 else tf.float32
    row = tf.concat([tf.reshape(tf.cast(part, exact), [-1])
                     for part in (count, mean, variance)], 0)
    rows = _gathered(row, name)
    channels = (tf.shape(rows)[1] - 1) // 2
    weights = rows[:, :1] / tf.reduce_sum(rows[:, :1])
    means = rows[:, 1:1 + channels]
    variances = rows[:, 1 + channels:]
    mean_of_all = tf.reduce_sum(weights * means, 0)
    apart = means - mean_of_all
    variance_of_all = tf.reduce_sum(weights * (variances + apart * apart), 0)
    return tuple(
        tf.cast(tf.ensure_shape(tf.reshape(part, tf.shape(like)), like.shape),
                dtype)
        for part, like in ((mean_of_all, mean), (variance_of_all, variance)))


def _gathered(row: Any, name: str) -> Any:
    """Gathers the rows of all ranks, [ranks, length]."""

    @tf.custom_gradient
    def gather(own: Any) -> Any:
        rows = allgather(own[tf.newaxis, :], name=name,
                             ignore_name_scope=True)

        def gradient(upstream: Any) -> Any:
            # The sum: hvd.allgather's own gradient would be the average.
            total = allreduce(upstream, op=Sum, name=f"{name}.gradient",
                                  ignore_name_scope=True)
            return total[rank_op()]

        return rows, gradient

    return gather(row)
