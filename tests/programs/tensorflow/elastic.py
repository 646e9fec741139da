"""Elastic training with TensorFlow: elastic.py DIRECTORY RANKS KIND PASSES, where KIND is keras, rates, legacy, graph or apart.

Rank 1 kills itself once, two steps after a commit; training ends after a process has taken its place. Each rank writes
its final values to DIRECTORY/end.RANK.json; `apart` there is their difference from those of one process with all rows.

PASSES: gradients of this many steps are applied as one. With 3, commits and changes of ranks come when the gradients of
one or two steps are waiting (not of Keras, whose state puts such commits off). A rank that is lost takes its own gradients with it, so in this case all ranks have all
rows.

KIND rates: the program lowers its learning rate in its tenth step, and the state does not have it; so a new process
that takes the place of another one ends with an error, as does the other rank. Their successors begin anew.

KIND apart: graphs in which rank 0 alone trains a second variable; refused when the state is synchronized.
"""

import json
import os
import signal
import sys
import time

import numpy as np
import tensorflow as tf

import maypole.tensorflow as hvd

DIR, RANKS, KIND, PASSES = sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
STEPS = 30
# With PASSES=3, Keras' state commits after 12 steps and at the 21st, which are whole, and not after 4 and 8.
COMMIT, DEATH, LONELY_STEPS = (4, 14, 21) if KIND == "keras" else (5, 12, 20)
X = np.random.RandomState(1).randn(STEPS, 12, 3)
Y = X.sum(2, keepdims=True).clip(-1, 1)


def dies_once(step):
    if step == DEATH and hvd.rank() == 1:
        try:
            os.close(os.open(os.path.join(DIR, "died"), os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return
        os.kill(os.getpid(), signal.SIGKILL)


def distributed_optimizer(optimizer):
    return hvd.DistributedOptimizer(optimizer, backward_passes_per_step=PASSES, average_aggregated_gradients=True)


class Keras:
    """A Keras model, its optimizer, and a step that is traced once."""

    def __init__(self, distributed=True, start=None):
        tf.keras.backend.set_floatx("float64")
        self.model = tf.keras.Sequential([tf.keras.layers.Input([3]), tf.keras.layers.Dense(4, "tanh"),
                                          tf.keras.layers.Dense(1)])
        self.optimizer = tf.keras.optimizers.SGD(0.05, momentum=0.8)
        if distributed and PASSES > 1:
            self.optimizer = distributed_optimizer(self.optimizer)
        if start is not None:
            self.set(start)

        @tf.function(input_signature=[tf.TensorSpec([None, 3], tf.float64), tf.TensorSpec([None, 1], tf.float64)])
        def step(x, y):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((self.model(x) - y)**2)
            if distributed and PASSES == 1:
                tape = hvd.DistributedGradientTape(tape)
            weights = self.model.trainable_variables
            self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights))

        self.step = step

    def state(self, **values):
        return hvd.elastic.TensorFlowKerasState(self.model, self.optimizer, **values)

    def weights(self):
        return [w.tolist() for w in self.model.get_weights()]

    def set(self, weights):
        self.model.set_weights([np.array(w) for w in weights])


class Rates(Keras):
    """See the head of this file."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.traced, self.made = self.step, 0
        self.step = self.counted

    def counted(self, x, y):
        self.made += 1
        if self.made == 10:
            self.optimizer.learning_rate.assign(0.02)
        self.traced(x, y)

    def state(self, **values):
        return hvd.elastic.TensorFlowState(self.model.variables, **values)


class Legacy:
    """A variable, and an optimizer of tf.compat.v1.train that runs eagerly."""

    def __init__(self, distributed=True, start=None):
        self.w = tf.Variable(np.zeros([3, 1]) if start is None else np.array(start[0]))
        self.optimizer = tf.compat.v1.train.GradientDescentOptimizer(0.05)
        if distributed:
            self.optimizer = distributed_optimizer(self.optimizer)

    def step(self, x, y):
        self.optimizer.minimize(lambda: tf.reduce_mean((tf.tanh(x @ self.w) - y)**2), var_list=[self.w])

    def state(self, **values):
        return hvd.elastic.TensorFlowState(variables=[self.w], **values)

    def weights(self):
        return [self.w.numpy().tolist()]


class Graph:
    """A version 1 graph and its MonitoredTrainingSession."""

    def __init__(self, distributed=True, start=None):
        v1 = tf.compat.v1
        self.graph = tf.Graph()
        with self.graph.as_default():
            tf.compat.v1.set_random_seed(os.getpid())
            self.x, self.y = v1.placeholder(tf.float64, [None, 3]), v1.placeholder(tf.float64, [None, 1])
            self.w = v1.get_variable("w", [3, 1], tf.float64)
            loss = self.loss()
            optimizer = v1.train.MomentumOptimizer(0.05, 0.8)
            if distributed:
                optimizer = distributed_optimizer(optimizer)
            self.train_op = optimizer.minimize(loss)
            self.session = v1.train.MonitoredTrainingSession()  # finalizes the graph
        if start is not None:
            with self.graph.as_default():
                self.w.load(np.array(start[0]), self.session)

    def loss(self):
        return tf.reduce_mean((tf.tanh(self.x @ self.w) - self.y)**2)

    def step(self, x, y):
        self.session.run(self.train_op, {self.x: x, self.y: y})

    def state(self, **values):
        with self.graph.as_default():
            return hvd.elastic.TensorFlowState(session=self.session, **values)

    def weights(self):
        return [self.session.run(self.w).tolist()]


class Apart(Graph):
    """Its ranks have gradients of different variables."""

    def loss(self):
        bias = tf.compat.v1.get_variable("bias", [1], tf.float64)
        return super().loss() + (tf.reduce_sum(bias) if hvd.rank() == 0 else 0)


def main():
    hvd.init()
    kind = {"keras": Keras, "rates": Rates, "legacy": Legacy, "graph": Graph, "apart": Apart}[KIND]
    training = kind()
    sizes = []

    @hvd.elastic.run
    def train(state):
        while state.step < STEPS:
            # A new process may enter here, and must before the end.
            while (hvd.size() < RANKS and state.step in (0, LONELY_STEPS)):
                time.sleep(0.05)
                state.commit()
            rows = slice(hvd.rank(), None, hvd.size()) if PASSES == 1 else slice(None)
            training.step(X[state.step][rows], Y[state.step][rows])
            state.step += 1
            sizes.append(hvd.size())
            if state.step % COMMIT == 0:
                state.commit()
            dies_once(state.step)

    state = training.state(step=0, first=training.weights())
    state.register_reset_callbacks([lambda: print("reset", hvd.size(), flush=True)])
    train(state)
    alone = kind(distributed=False, start=state.first)
    # The mean of equal batches' gradients is that of all their rows.
    for x, y in zip(X.reshape(STEPS // PASSES, -1, 3), Y.reshape(STEPS // PASSES, -1, 1)):
        alone.step(x, y)
    apart = max(float(np.abs(np.array(a) - np.array(b)).max()) for a, b in zip(training.weights(), alone.weights()))
    moved = max(float(np.abs(np.array(a) - np.array(b)).max()) for a, b in zip(training.weights(), state.first))
    with open(os.path.join(DIR, "end.%d.json" % hvd.rank()), "w") as f:
        json.dump({"apart": apart, "moved": moved, "steps": len(sizes), "sizes": sorted(set(sizes)),
                   "weights": training.weights()}, f)
    hvd.shutdown()


main()
