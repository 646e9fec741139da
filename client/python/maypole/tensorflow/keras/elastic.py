"""As maypole.keras.elastic, for tf.keras."""

from tensorflow import keras

from maypole._keras import callbacks as _callbacks
from maypole._keras import elastic as _elastic
from maypole._keras.elastic import KerasState, run
from maypole.common.elastic import ObjectState, State, request_departure, reset

__all__ = [
    "CommitStateCallback", "KerasState", "ObjectState", "State", "UpdateBatchStateCallback", "UpdateEpochStateCallback",
    "request_departure", "reset", "run",
]


class CommitStateCallback(_elastic.CommitState, _callbacks.ForTraining, keras.callbacks.Callback):
    """As maypole.keras.elastic.CommitStateCallback."""


class UpdateBatchStateCallback(_elastic.UpdateBatchState, _callbacks.ForTraining, keras.callbacks.Callback):
    """As maypole.keras.elastic.UpdateBatchStateCallback."""


class UpdateEpochStateCallback(_elastic.UpdateEpochState, _callbacks.ForTraining, keras.callbacks.Callback):
    """As maypole.keras.elastic.UpdateEpochStateCallback."""
