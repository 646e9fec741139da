"""Elastic training with Keras: docs/elastic.md and docs/keras.md.

For example:

    @hvd.elastic.run
    def train(state):
        model.fit(..., initial_epoch=state.epoch, epochs=10, callbacks=[
            hvd.elastic.UpdateEpochStateCallback(state),
            hvd.elastic.UpdateBatchStateCallback(state),
            hvd.elastic.CommitStateCallback(state, batches_per_commit=30)])

    train(hvd.elastic.KerasState(model, epoch=0, batch=0))
"""

import keras

from maypole._keras import callbacks as _callbacks
from maypole._keras import elastic as _elastic
from maypole._keras.elastic import KerasState, run
from maypole.common.elastic import ObjectState, State, request_departure, reset

__all__ = [
    "CommitStateCallback", "KerasState", "ObjectState", "State", "UpdateBatchStateCallback", "UpdateEpochStateCallback",
    "request_departure", "reset", "run",
]


class CommitStateCallback(_elastic.CommitState, _callbacks.ForTraining, keras.callbacks.Callback):
    """Commits the state every batches_per_commit batches, and at the end of each epoch.

    After the last batch of an epoch it commits only once, at the epoch's end, which is after the validation. If fit()
    does not know how many batches there are (a generator without steps_per_epoch), it may also commit before.

    It must come after the callbacks that update the state.

    Args:
        state: a KerasState.
        batches_per_commit: a positive integer.
    """


class UpdateBatchStateCallback(_elastic.UpdateBatchState, _callbacks.ForTraining, keras.callbacks.Callback):
    """Keeps state.batch, the number of the epoch's batches that are done.

    After a change of ranks the epoch continues there: pass the remaining batches to fit().

    Args:
        state: a KerasState with batch=0.
    """


class UpdateEpochStateCallback(_elastic.UpdateEpochState, _callbacks.ForTraining, keras.callbacks.Callback):
    """Keeps state.epoch, the number of epochs done since the beginning of all training.

    Pass fit(initial_epoch=state.epoch, epochs=all), with which Keras' epochs are those of all training, as schedules
    of the learning rate need; or fit(epochs=all - state.epoch), with which Keras counts from 0 each time.

    Args:
        state: a KerasState with epoch=0.
    """
