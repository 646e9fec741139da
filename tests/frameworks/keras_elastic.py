"""An elastic Keras training for keras_elastic_test.py; writes the lines that tests/elastic/train.py describes.

Each global batch depends on the step only, and the ranks share it. So however ranks come and go, the weights are those
of one process that makes the same steps.

KERAS_PASSES=2: gradients of two batches are applied as one, so that commits come between the two (and are put off). A
rank that is lost takes its own gradients with it, so in this case each rank trains on whole batches.

KERAS_OWN_RATE=1: rank 1 lowers its learning rate after the first epoch, which ends the job.
"""

import hashlib
import json
import os
import sys
import time

import numpy as np

import keras
import maypole.keras as hvd

DIR = os.environ["MAYPOLE_TEST_DIR"]
STEPS, BATCH = 20, 12  # of an epoch; samples of all ranks
PASSES = int(os.environ.get("KERAS_PASSES", 1))

_random = np.random.RandomState(1)
X = _random.rand(STEPS, BATCH, 4)
Y = X.sum(2, keepdims=True) * _random.rand(STEPS, BATCH, 1)


def say(**values):
    sys.stdout.write(json.dumps(values) + "\n")
    sys.stdout.flush()


def make_model(optimizer):
    keras.utils.set_random_seed(3)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(6, activation="tanh"), keras.layers.Dense(1)])
    model.compile(optimizer, keras.losses.MeanSquaredError())
    return model


def sgd():
    return keras.optimizers.SGD(0.02, momentum=0.8)


class Say(keras.callbacks.Callback):
    def __init__(self, state):
        super().__init__()
        self.state = state

    def on_train_batch_end(self, batch, logs=None):
        say(step=self.state.epoch * STEPS + self.state.batch, epoch=self.state.epoch, rank=hvd.rank(), size=hvd.size(),
            pid=os.getpid(), at=time.monotonic())
        time.sleep(0.005)


class OwnRate(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        if hvd.rank() == 1 and "KERAS_OWN_RATE" in os.environ:
            self.model.optimizer.learning_rate = 0.01


@hvd.elastic.run
def train(state):
    while not state.finished:
        each = BATCH // hvd.size() if PASSES == 1 else BATCH
        mine = slice(hvd.rank() * each, (hvd.rank() + 1) * each) if PASSES == 1 else slice(None)
        x, y = X[state.batch:, mine].reshape(-1, 4), Y[state.batch:, mine].reshape(-1, 1)
        state.model.fit(x, y, batch_size=each, shuffle=False, verbose=0, callbacks=[
            hvd.elastic.UpdateBatchStateCallback(state), Say(state), OwnRate(), hvd.elastic.UpdateEpochStateCallback(state),
            hvd.elastic.CommitStateCallback(state, batches_per_commit=3)])
        state.finished = hvd.broadcast(os.path.exists(os.path.join(DIR, "finish")), 0, name="finish")
        state.commit()


def main():
    keras.backend.set_floatx("float64")
    hvd.init()
    model = make_model(hvd.DistributedOptimizer(sgd(), backward_passes_per_step=PASSES,
                                                average_aggregated_gradients=True))
    state = hvd.elastic.KerasState(model, epoch=0, batch=0, finished=False)
    train(state)
    alone = make_model(sgd())
    alone.fit(X.reshape(-1, 4), Y.reshape(-1, 1), batch_size=BATCH * PASSES, epochs=state.epoch, shuffle=False,
              verbose=0)
    weights = np.concatenate([w.ravel() for w in model.get_weights()])
    expected = np.concatenate([w.ravel() for w in alone.get_weights()])
    say(end=True, weights=hashlib.sha256(weights.tobytes()).hexdigest(), history=state.epoch,
        replayed=max(0.0, float(abs(weights - expected).max()) - 1e-6))  # Keras' loss is of float32


if __name__ == "__main__":
    main()
