"""As maypole.keras.callbacks, for tf.keras."""

from tensorflow import keras

from maypole._keras import callbacks as _callbacks
from maypole._keras import schedules as _schedules

__all__ = [
    "BestModelCheckpoint", "BroadcastGlobalVariablesCallback", "LearningRateScheduleCallback",
    "LearningRateWarmupCallback", "MetricAverageCallback",
]


class BroadcastGlobalVariablesCallback(_callbacks.BroadcastGlobalVariables,
                                       _callbacks.ForTraining, keras.callbacks.Callback):
    """As maypole.keras.callbacks.BroadcastGlobalVariablesCallback."""


class MetricAverageCallback(_callbacks.MetricAverage, _callbacks.ForTraining, keras.callbacks.Callback):
    """As maypole.keras.callbacks.MetricAverageCallback."""


class LearningRateScheduleCallback(_schedules.LearningRateSchedule, _callbacks.ForTraining,
                                   keras.callbacks.Callback):
    """As maypole.keras.callbacks.LearningRateScheduleCallback."""


class LearningRateWarmupCallback(_schedules.LearningRateWarmup, _callbacks.ForTraining, keras.callbacks.Callback):
    """As maypole.keras.callbacks.LearningRateWarmupCallback."""


class BestModelCheckpoint(_callbacks.BestModelCheckpoint, keras.callbacks.ModelCheckpoint):
    """As maypole.keras.callbacks.BestModelCheckpoint."""
