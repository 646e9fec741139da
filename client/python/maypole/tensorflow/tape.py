"""Gradient tapes whose gradients are those of all ranks.

    with tf.GradientTape() as tape:
        loss = ...
    tape = DistributedGradientTape(tape)
    gradients = tape.gradient(loss, model.trainable_variables)

Thread contract: that of tf.GradientTape; all ranks must request the gradients of the same sources, in the same order.
"""

from typing import Any

import tensorflow as tf

from maypole.common.constants import Average, ReduceOp
from maypole.common.process_sets import ProcessSet, global_process_set
from maypole.common.training_arguments import groups_of
from maypole.tensorflow._gradient_reduction import GradientReduction
from maypole.tensorflow.compression import Compression, Compressor


class _DistributedGradientTape(tf.GradientTape):
    """A tf.GradientTape that reduces the gradients of another one.

    Everything else is passed on to the other tape, which may be persistent, be
    passed in its `with` block or after it, and be of a class derived from
    tf.GradientTape.
    """

    def __init__(self, tape: tf.GradientTape, reduction: GradientReduction):
        super().__init__()
        self._inner = tape
        self._reduction = reduction

    def register_local_source(self, source: Any) -> None:
        """Makes the source's gradient stay on this rank. source: one, or a structure of them."""
        self._reduction.local.register(source)

    def gradient(self, target: Any, sources: Any, output_gradients: Any = None,
                 unconnected_gradients: Any = tf.UnconnectedGradients.NONE,
                 use_generic_names: bool = False) -> Any:
        """As tf.GradientTape.gradient(), with gradients reduced over the ranks, in the structure of `sources`.

        If a rank's target does not depend on a source, but another rank's target does, the rank contributes zeros.
        use_generic_names: name the operations by position, for ranks whose
        sources have different names. (In Horovod it is in the position of
        unconnected_gradients, so a bool there is taken for it.) Raises
        ValueError, on all ranks, if ranks have different sources.
        """
        if isinstance(unconnected_gradients, bool):
            use_generic_names = unconnected_gradients
            unconnected_gradients = tf.UnconnectedGradients.NONE
        gradients = self._inner.gradient(
            target, sources, output_gradients,
            unconnected_gradients=unconnected_gradients)
        # Not expanded, because an IndexedSlices is one gradient.
        reduced = self._reduction(tf.nest.flatten(gradients, expand_composites=False), tf.nest.flatten(sources),
                                  use_generic_names)
        return tf.nest.pack_sequence_as(sources, reduced)

    def get_local_and_global_gradients(
            self, target: Any, sources: Any, output_gradients: Any = None,
            use_generic_names: bool = False) -> tuple[list[Any], list[Any]]:
        """(gradients of local sources, reduced gradients of the others), each in the order of the flattened sources."""
        flat = tf.nest.flatten(sources)
        gradients = self.gradient(target, flat, output_gradients,
                                  use_generic_names=use_generic_names)
        local: list[Any] = []
        others: list[Any] = []
        for source, gradient in zip(flat, gradients):
            (local if source in self._reduction.local
             else others).append(gradient)
        return local, others

    def __enter__(self) -> "_DistributedGradientTape":
        self._inner.__enter__()
        return self

    def __exit__(self, *error: Any) -> Any:
        return self._inner.__exit__(*error)

    def watch(self, tensor: Any) -> None:
        self._inner.watch(tensor)

    def stop_recording(self) -> Any:
        return self._inner.stop_recording()

    def reset(self) -> None:
        self._inner.reset()

    def watched_variables(self) -> Any:
        return self._inner.watched_variables()

    def jacobian(self, *args: Any, **kwargs: Any) -> Any:
        """Of this rank: Jacobians are not reduced."""
        return self._inner.jacobian(*args, **kwargs)

    def batch_jacobian(self, *args: Any, **kwargs: Any) -> Any:
        """Of this rank: Jacobians are not reduced."""
        return self._inner.batch_jacobian(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if name == "_inner":
            raise AttributeError(name)
        return getattr(self._inner, name)


def DistributedGradientTape(gradtape: tf.GradientTape,
                            device_dense: str = "",
                            device_sparse: str = "",
                            compression: type[Compressor] = Compression.none,
                            sparse_as_dense: bool = False,
                            op: ReduceOp = Average,
                            gradient_predivide_factor: float = 1.0,
                            num_groups: int = 0,
                            groups: Any = None,
                            process_set: ProcessSet = global_process_set,
                            scale_local_gradients: bool = True
                           ) -> _DistributedGradientTape:
    """Wraps a tf.GradientTape: its gradient() is then that of all ranks.

    Args:
        gradtape: a tf.GradientTape.
        device_dense: where operations of dense tensors are placed; "": where TensorFlow likes.
        device_sparse: where operations of tf.IndexedSlices are placed; "": where TensorFlow likes.
        compression: hvd.Compression.fp16 halves the bytes sent.
        sparse_as_dense: reduce an IndexedSlices as a tensor of the full shape.
        op: Average, Sum, or another of the reductions.
        gradient_predivide_factor: the gradients are divided by it before the sum, and by the number of ranks
            over it after the sum; for op=Average only.
        num_groups: the older name of groups.
        groups: None: groups of a few megabytes. A number of groups, or a list of lists of variables: those are
            reduced together.
        process_set: the ranks that take part.
        scale_local_gradients: divide gradients of local sources by the number of ranks.

    Raises:
        ValueError: for options that cannot be combined.
    """
    groups = groups_of(num_groups, groups)
    return _DistributedGradientTape(gradtape, GradientReduction(
        "DistributedGradientTape", device_dense, device_sparse, compression, sparse_as_dense, op,
        gradient_predivide_factor, groups, process_set, scale_local_gradients))


def PartialDistributedGradientTape(gradtape: tf.GradientTape,
                                   device_dense: str = "",
                                   device_sparse: str = "",
                                   compression: type[Compressor] = Compression.none,
                                   sparse_as_dense: bool = False,
                                   op: ReduceOp = Average,
                                   gradient_predivide_factor: float = 1.0,
                                   num_groups: int = 0,
                                   groups: Any = None,
                                   process_set: ProcessSet = global_process_set,
                                   local_layers: Any = None,
                                   scale_local_gradients: bool = True
                                  ) -> _DistributedGradientTape:
    """As DistributedGradientTape, except for layers that each rank trains alone.

    Args:
        gradtape: a tf.GradientTape.
        device_dense: where operations of dense tensors are placed; "": where TensorFlow likes.
        device_sparse: where operations of tf.IndexedSlices are placed; "": where TensorFlow likes.
        compression: Compression.none, or fp16 or bf16, which send floats in 16 bits.
        sparse_as_dense: reduce sparse gradients as dense ones; otherwise they are gathered.
        op: Average (default), Sum or Adasum.
        gradient_predivide_factor: with Average, gradients are divided by it before and multiplied by it after
            the sum.
        num_groups: the older name of groups.
        groups: None: groups of a few megabytes. A number of groups, or a list of lists of variables: those are
            reduced together.
        process_set: the ranks whose gradients are reduced.
        local_layers: None, a Keras layer or a list of them. The gradients of their trainable weights are not
            reduced.
        scale_local_gradients: divide gradients that stay on their rank by the number of ranks, like the
            gradients of the averaged loss.

    Raises:
        ValueError: for anything else.
    """
    if local_layers is None:
        local_layers = []
    elif not isinstance(local_layers, (list, tuple, set)):
        local_layers = [local_layers]
    for layer in local_layers:
        if not isinstance(layer, (tf.keras.layers.Layer, tf.Module)):
            raise ValueError(f"local_layers: {layer!r} is a "
                             f"{type(layer).__name__}, expected a Keras layer")
    tape = DistributedGradientTape(
        gradtape, device_dense, device_sparse, compression, sparse_as_dense, op,
        gradient_predivide_factor, num_groups, groups, process_set,
        scale_local_gradients)
    for layer in local_layers:
        for variable in layer.trainable_variables:
            tape.register_local_source(variable)
    return tape
