"""The functions of maypole.keras and maypole.tensorflow.keras, for the Keras that they pass.

Thread contract: as of the functions there.
"""

from typing import Any

from maypole._keras import backends, saving
from maypole._keras.reduction import Reduction, checked_groups
from maypole.common.constants import Average, ReduceOp
from maypole.common.process_sets import ProcessSet, global_process_set


def distributed_optimizer(keras: Any, optimizer: Any, name: Any, compression: Any,
                          sparse_as_dense: bool, gradient_predivide_factor: float, op: ReduceOp,
                          num_groups: int, groups: Any, backward_passes_per_step: int = 1,
                          average_aggregated_gradients: bool = False,
                          process_set: ProcessSet = global_process_set, local_layers: Any = None,
                          scale_local_gradients: bool = True) -> Any:
    """See DistributedOptimizer() and PartialDistributedOptimizer() of maypole.keras."""
    passed, keras = keras, backends.keras_of(optimizer, keras)
    compression = backends.translated(compression, passed, keras)
    if local_layers is not None and not isinstance(local_layers, (list, tuple)):
        local_layers = [local_layers]
    reduction = Reduction(backends.gradients_of(keras), name, compression, sparse_as_dense, op,
                          gradient_predivide_factor, backward_passes_per_step,
                          average_aggregated_gradients, checked_groups(num_groups, groups),
                          process_set, local_layers or (), scale_local_gradients)
    if backends.is_keras3(keras):
        from maypole._keras import keras3
        return keras3.distribute(optimizer, reduction)
    from maypole._keras import keras2
    return keras2.distribute(keras, optimizer, reduction)


def load_model(keras: Any, filepath: Any, custom_optimizers: Any, custom_objects: Any,
               compression: Any, legacy_opts: bool) -> Any:
    """See maypole.keras.load_model()."""

    def distribute(optimizer: Any) -> Any:
        return distributed_optimizer(keras, optimizer, None, compression, False, 1.0, Average, 0,
                                     None)

    return saving.load_model(keras, distribute, filepath, custom_optimizers, custom_objects,
                             legacy_opts)


def broadcast_global_variables(keras: Any, root_rank: int) -> None:
    """See maypole.keras.broadcast_global_variables()."""
    if backends.is_keras3(keras):
        raise RuntimeError("broadcast_global_variables: Keras 3 has no global variables; use "
                           "callbacks.BroadcastGlobalVariablesCallback(root_rank)")
    from maypole.tensorflow import functions
    functions.broadcast_global_variables(root_rank)
