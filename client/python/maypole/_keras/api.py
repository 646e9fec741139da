"""The functions of maypole.keras and maypole.tensorflow.keras, for the Keras that these pass.

Thread contract: that of the functions there.
"""

from collections.abc import Sequence
from typing import Any, Optional

from maypole._keras import backends, saving, variables
from maypole._keras.reduction import Reduction
from maypole.common import training_arguments
from maypole.common.compression import NoneCompressor
from maypole.common.constants import Average, ReduceOp
from maypole.common.process_sets import ProcessSet, global_process_set


def distributed_optimizer(keras: Any, optimizer: Any, name: Any, compression: Any,
                          sparse_as_dense: bool, gradient_predivide_factor: float, op: ReduceOp,
                          num_groups: int, groups: Any, backward_passes_per_step: int = 1,
                          average_aggregated_gradients: bool = False,
                          process_set: ProcessSet = global_process_set, local_layers: Any = None,
                          scale_local_gradients: bool = True) -> Any:
    """See DistributedOptimizer() and PartialDistributedOptimizer() of maypole.keras."""
    training_arguments.groups_of(num_groups, groups)
    passed, keras = keras, backends.keras_of(optimizer, keras)
    compression = backends.translated(compression, passed, keras)
    if local_layers is not None and not isinstance(local_layers, (list, tuple)):
        local_layers = [local_layers]
    reduction = Reduction(backends.gradients_of(keras), name, compression, sparse_as_dense, op,
                          gradient_predivide_factor, backward_passes_per_step,
                          average_aggregated_gradients, process_set, local_layers or (), scale_local_gradients)
    if backends.is_keras3(keras):
        from maypole._keras import keras3
        return keras3.distribute(optimizer, reduction)
    from maypole._keras import keras2
    return keras2.distribute(keras, optimizer, reduction)


class Functions:
    """The functions that both modules share, for the Keras of one of them.

    DistributedOptimizer() is not among them: the order of its parameters differs between the modules.
    """

    def __init__(self, keras: Any):
        self._keras = keras

    def PartialDistributedOptimizer(
            self,
            optimizer: Any,
            name: Optional[str] = None,
            device_dense: str = "",
            device_sparse: str = "",
            compression: Any = NoneCompressor,
            sparse_as_dense: bool = False,
            gradient_predivide_factor: float = 1.0,
            op: ReduceOp = Average,
            backward_passes_per_step: int = 1,
            average_aggregated_gradients: bool = False,
            groups: Any = None,
            process_set: ProcessSet = global_process_set,
            local_layers: Any = None,
            scale_local_gradients: bool = True) -> Any:
        """As DistributedOptimizer(), but the gradients of local_layers stay on their rank.

        Args:
            optimizer: the optimizer of this rank.
            name: a part of the operations' names.
            device_dense: where operations of dense tensors are placed; "": where TensorFlow likes.
            device_sparse: where operations of tf.IndexedSlices are placed; "": where TensorFlow likes.
            compression: Compression.none, or fp16 or bf16, which send floats in 16 bits.
            sparse_as_dense: reduce sparse gradients as dense ones; otherwise they are gathered.
            gradient_predivide_factor: with Average, gradients are divided by it before and multiplied by it after
                the sum.
            op: Average (default), Sum or Adasum.
            backward_passes_per_step: the number of passes whose gradients a step sums.
            average_aggregated_gradients: divide the sum over passes by their number.
            groups: accepted, without effect: the coordinator groups operations itself.
            process_set: the ranks whose gradients are reduced.
            local_layers: a layer or a list of layers; their variables differ between ranks (pass them as
                local_variables to BroadcastGlobalVariablesCallback). The optimizer's method
                register_local_var(variable) adds variables.
            scale_local_gradients: local gradients are divided by the number of ranks, so that they are on the scale
                of averages over the global batch.
        """
        return distributed_optimizer(
            self._keras, optimizer, name, compression, sparse_as_dense, gradient_predivide_factor, op,
            0, groups, backward_passes_per_step, average_aggregated_gradients, process_set,
            local_layers, scale_local_gradients)

    def broadcast_global_variables(self, root_rank: int) -> None:
        """Overwrites all global variables of a TensorFlow graph with rank root_rank's.

        For Keras 2 in graph mode. Keras 3 has no global variables: a RuntimeError says what to use.

        Args:
            root_rank: a rank of the job (not an index in the process set), in the set.
        """
        if backends.is_keras3(self._keras):
            raise RuntimeError("broadcast_global_variables: Keras 3 has no global variables; use "
                               "callbacks.BroadcastGlobalVariablesCallback(root_rank)")
        from maypole.tensorflow import functions
        functions.broadcast_global_variables(root_rank)

    def load_model(self, filepath: Any, custom_optimizers: Optional[Sequence[type]] = None,
                   custom_objects: Any = None, compression: Any = NoneCompressor,
                   legacy_opts: bool = False, average_aggregated_gradients: Optional[bool] = None) -> Any:
        """As keras.models.load_model(), with the optimizer's state; the optimizer is a DistributedOptimizer().

        Args:
            filepath: .keras, .h5, or (Keras 2) the directory of a SavedModel; saved with or without Maypole.
            custom_optimizers: classes of optimizers that are not Keras' own.
            custom_objects: passed to Keras.
            compression: passed to DistributedOptimizer(); call it on model.optimizer to set its other arguments.
            legacy_opts: names of optimizers are those of keras.optimizers.legacy.
            average_aggregated_gradients: needed if the optimizer accumulates gradients over passes, because files do
                not say it: False as DistributedOptimizer(backward_passes_per_step=n), True as Keras'
                gradient_accumulation_steps=n.

        Raises:
            ValueError: the optimizer accumulates, and average_aggregated_gradients is None.
        """

        def distribute(optimizer: Any) -> Any:
            passes = getattr(variables.optimizer_of(optimizer), "gradient_accumulation_steps", None) or 1
            if passes > 1 and average_aggregated_gradients is None:
                raise ValueError(
                    f"load_model: the optimizer accumulates gradients over {passes} passes, and the file does not say "
                    "whether a step uses their sum or their average; give average_aggregated_gradients=False for the "
                    "sum, as after DistributedOptimizer(backward_passes_per_step=...), or True, as in Keras")
            return distributed_optimizer(self._keras, optimizer, None, compression, False, 1.0, Average, 0, None,
                                         passes, bool(average_aggregated_gradients))

        return saving.load_model(self._keras, distribute, filepath, custom_optimizers, custom_objects, legacy_opts)
