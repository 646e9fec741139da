"""Callbacks for model.fit(); all ranks must use the same ones, in the same order.

    callbacks = [
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        hvd.callbacks.MetricAverageCallback(),
        hvd.callbacks.LearningRateWarmupCallback(initial_lr=0.1 * hvd.size(), warmup_epochs=5),
        hvd.callbacks.LearningRateScheduleCallback(initial_lr=0.1 * hvd.size(), multiplier=0.1,
                                                   start_epoch=30),
    ]

Each class' arguments are described in maypole._keras, at the class that it inherits from.
"""

import keras

from maypole._keras import callbacks as _callbacks
from maypole._keras import schedules as _schedules

_Callback = keras.callbacks.Callback


class BroadcastGlobalVariablesCallback(_callbacks.BroadcastGlobalVariables,
                                       _callbacks.ForTraining, _Callback):
    __doc__ = _callbacks.BroadcastGlobalVariables.__doc__


class MetricAverageCallback(_callbacks.MetricAverage, _callbacks.ForTraining, _Callback):
    __doc__ = _callbacks.MetricAverage.__doc__


class LearningRateScheduleCallback(_schedules.LearningRateSchedule, _callbacks.ForTraining,
                                   _Callback):
    __doc__ = _schedules.LearningRateSchedule.__doc__


class LearningRateWarmupCallback(_schedules.LearningRateWarmup, _callbacks.ForTraining, _Callback):
    __doc__ = _schedules.LearningRateWarmup.__doc__


class BestModelCheckpoint(_callbacks.BestModelCheckpoint, keras.callbacks.ModelCheckpoint):
    __doc__ = _callbacks.BestModelCheckpoint.__doc__
