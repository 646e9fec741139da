"""Callbacks for model.fit(); all ranks must use the same ones, in the same order.

For example:

    callbacks = [
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        hvd.callbacks.MetricAverageCallback(),
        hvd.callbacks.LearningRateWarmupCallback(initial_lr=0.1 * hvd.size(), warmup_epochs=5),
        hvd.callbacks.LearningRateScheduleCallback(initial_lr=0.1 * hvd.size(), multiplier=0.1,
                                                   start_epoch=30),
    ]
"""

import keras

from maypole._keras import callbacks as _callbacks
from maypole._keras import schedules as _schedules

__all__ = [
    "BestModelCheckpoint", "BroadcastGlobalVariablesCallback", "LearningRateScheduleCallback",
    "LearningRateWarmupCallback", "MetricAverageCallback",
]


class BroadcastGlobalVariablesCallback(_callbacks.BroadcastGlobalVariables,
                                       _callbacks.ForTraining, keras.callbacks.Callback):
    """At the beginning of training, gives all ranks the variables of rank root_rank.

    States of random number generators stay as they are.

    Args:
        root_rank: the rank whose variables all ranks get.
        device: accepted, without effect.
        local_variables: variables that stay as they are.
    """


class MetricAverageCallback(_callbacks.MetricAverage, _callbacks.ForTraining, keras.callbacks.Callback):
    """At the end of each epoch, replaces the logs by their averages over all ranks.

    It must come before callbacks that use the logs, such as ReduceLROnPlateau.

    Args:
        device: accepted, without effect.

    Raises:
        ValueError: in training, on all ranks, if one rank has a metric that another does not have.
    """


class LearningRateScheduleCallback(_schedules.LearningRateSchedule, _callbacks.ForTraining,
                                   keras.callbacks.Callback):
    """From start_epoch to before end_epoch the learning rate is initial_lr * multiplier(epoch).

    Args:
        initial_lr: the rate to which the multiplier is applied.
        multiplier: a function of the epoch, or a number m for m ** (epoch - start_epoch).
        start_epoch: the first epoch in which the rate is set.
        end_epoch: the first epoch in which it is no longer set; None: never.
        staircase: set the rate at the beginning of each epoch only; otherwise before each batch, with epoch + batch /
            steps_per_epoch.
        momentum_correction: multiply the optimizer's momentum when the rate changes, by the same factor.
        steps_per_epoch: needed if staircase is False and fit() does not know it.
    """


class LearningRateWarmupCallback(_schedules.LearningRateWarmup, _callbacks.ForTraining, keras.callbacks.Callback):
    """Raises the learning rate from initial_lr / size() to initial_lr within warmup_epochs.

    Args:
        initial_lr: the rate after the warm-up, normally that of one rank times size().
        warmup_epochs: how many epochs it takes.
        momentum_correction: multiply the optimizer's momentum when the rate changes, by the same factor.
        steps_per_epoch: needed if fit() does not know it.
        verbose: 1: rank 0 prints a line when the warm-up is over.
    """


class BestModelCheckpoint(_callbacks.BestModelCheckpoint, keras.callbacks.ModelCheckpoint):
    """ModelCheckpoint(save_best_only=True) on rank 0; the other ranks do not write.

    Args:
        monitor: which of the logs decides.
        verbose: as for ModelCheckpoint.
        save_weights_only: as for ModelCheckpoint.
        mode: as for ModelCheckpoint.
        save_freq: as for ModelCheckpoint.
        filepath: the file; or set the attribute `filepath` before training.
    """
