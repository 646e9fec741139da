"""As maypole.keras.elastic, for tf.keras."""

from tensorflow import keras

from maypole._keras import callbacks as _callbacks
from maypole._keras import elastic as _elastic
from maypole._keras.elastic import KerasState, run
from maypole.common.elastic import ObjectState, State, request_departure, reset

_Callback = keras.callbacks.Callback


class CommitStateCallback(_elastic.CommitState, _callbacks.ForTraining, _Callback):
    __doc__ = _elastic.CommitState.__doc__


class UpdateBatchStateCallback(_elastic.UpdateBatchState, _callbacks.ForTraining, _Callback):
    __doc__ = _elastic.UpdateBatchState.__doc__


class UpdateEpochStateCallback(_elastic.UpdateEpochState, _callbacks.ForTraining, _Callback):
    __doc__ = _elastic.UpdateEpochState.__doc__
