"""Recipes of TensorFlow and Keras: tapes, version 1 and Keras' optimizers, eager and in functions; see whole_batch.py."""

import itertools
import random

import numpy as np
import tensorflow as tf

import maypole.tensorflow as hvd
import maypole.tensorflow.keras as hvd_keras
import whole_batch

hvd.init()
keras = tf.keras
KERAS3 = hasattr(keras, "ops")
ROWS, STEPS, WORDS = 4 * hvd.size(), 3, 7


class Model:
    """A linear layer, a table of words, and a variable that only rows with a flag use, of which some ranks have none."""

    def __init__(self, seed):
        numbers = np.random.RandomState(seed)
        self._names = itertools.count()
        self.variables = {name: self._variable(name, numbers.randn(*shape).astype(np.float32)) for name, shape in (
            ("w", (6, 4)), ("b", (4,)), ("table", (WORDS, 4)), ("rare", (4,)), ("never", (3,)))}
        self.x = numbers.randn(STEPS, ROWS, 6).astype(np.float32)
        self.words = numbers.randint(0, WORDS, (STEPS, ROWS)).astype(np.int64)
        self.flags = numbers.rand(STEPS, ROWS) < 0.15

    @staticmethod
    def _variable(name, value):
        return keras.Variable(value, name=name) if KERAS3 else tf.Variable(value, name=name)

    def tensors(self):
        """The variables as a tape knows them."""
        return [v.value if KERAS3 else v for v in self.variables.values()]

    def loss(self, step, rows):
        w, b, table, rare, _ = self.tensors()
        hidden = tf.tanh(rows.of(self.x[step]) @ w + b) + tf.gather(table, rows.of(self.words[step]))
        flags = rows.of(self.flags[step])
        if flags.any():  # in Python, so that a rank may have no gradient
            hidden += tf.constant(flags[:, None].astype(np.float32)) * rare
        return tf.reduce_mean(hidden * hidden)

    def values(self):
        return {name: np.array(v) for name, v in self.variables.items()}


def as_dense(gradient):
    """Momentum and squares of slices are others than those of the whole tensor."""
    return gradient if gradient is None else tf.convert_to_tensor(gradient)


def optimizer_of(choose):
    """(its text, its maker): for Keras."""
    clip = choose([{}, {"clipnorm": 0.05}, {"global_clipnorm": 0.1}, {"clipvalue": 0.01}])
    kind, kwargs = choose([("SGD", {"learning_rate": 0.1}), ("SGD", {"learning_rate": 0.1, "momentum": 0.9}),
                           ("Adam", {"learning_rate": 0.01}), ("RMSprop", {"learning_rate": 0.01}),
                           ("SGD", {"learning_rate": 0.1, "weight_decay": 0.01} if KERAS3 else {"learning_rate": 0.1})])
    kwargs = {**kwargs, **clip}
    return f"{kind} {kwargs}", lambda: getattr(keras.optimizers, kind)(**kwargs)


def with_tape(seed, choose, in_function):
    op, options = choose([(hvd.Average, {}), (hvd.Sum, {}), (hvd.Average, {"gradient_predivide_factor": 2.0})])
    options = {**options, "sparse_as_dense": choose([True, False]), "groups": choose([None, None, 1, 2])}
    rate = 0.1 / hvd.size() if op == hvd.Sum else 0.1

    def train(rows):
        model = Model(seed)

        def step(number):
            with tf.GradientTape() as tape:
                loss = model.loss(number, rows)
            if rows.distributed:
                tape = hvd.DistributedGradientTape(tape, op=op, **options)
            for variable, gradient in zip(model.variables.values(), tape.gradient(loss, model.tensors())):
                if gradient is not None:  # what no rank uses shrinks only with the others
                    variable.assign(0.99 * tf.convert_to_tensor(variable)
                                    - (rate if rows.distributed else 0.1) * tf.convert_to_tensor(gradient))

        for number in range(STEPS):
            (tf.function(step) if in_function else step)(number)
        return model.values()

    return f"tape op={op} {options}", train, 1e-4


def with_keras(seed, choose, in_function):
    text, make = optimizer_of(choose)
    passes = choose([1, 1, 1, STEPS]) if KERAS3 or text.startswith("SGD") else 1
    options = {"sparse_as_dense": passes > 1 or choose([True, False]), "backward_passes_per_step": passes,
               "average_aggregated_gradients": True}
    own_loop = choose([None, None, "_aggregate_gradients"])

    def train(rows):
        model = Model(seed)
        if passes > 1:  # Keras forgets the sum of a variable without a gradient in the last pass
            model.flags[:, 0] = True
        optimizer = hvd_keras.DistributedOptimizer(make(), **options) if rows.distributed else make()
        if hasattr(optimizer, "build"):
            optimizer.build(list(model.variables.values()))

        def step(numbers):
            with tf.GradientTape() as tape:
                loss = tf.add_n([model.loss(number, rows) for number in numbers]) / len(numbers)
            gradients = tape.gradient(loss, model.tensors())
            if options["sparse_as_dense"]:
                gradients = [as_dense(g) for g in gradients]
            pairs = list(zip(gradients, model.variables.values()))
            if rows.distributed and own_loop:
                pairs = getattr(optimizer, own_loop)(pairs)
            optimizer.apply_gradients(pairs)

        run = (lambda numbers: tf.function(lambda: step(numbers))()) if in_function and passes == 1 else step
        if passes > 1 and not rows.distributed:
            run(range(STEPS))
        else:
            for number in range(STEPS):
                run([number])
        return model.values()

    return f"keras {text} {options} {own_loop}", train, 1e-3


def with_version_1(seed, choose, in_function):
    del in_function
    v1 = tf.compat.v1.train
    text, make = choose([("GradientDescent", lambda: v1.GradientDescentOptimizer(0.1)),
                         ("Momentum", lambda: v1.MomentumOptimizer(0.1, 0.9)), ("Adam", lambda: v1.AdamOptimizer(0.01))])
    options = {"sparse_as_dense": choose([True, False])}

    def train(rows):
        model = Model(seed)
        variables = [tf.Variable(v, name=name) for name, v in model.values().items()]
        model.tensors = lambda: variables
        optimizer = hvd.DistributedOptimizer(make(), **options) if rows.distributed else make()
        for number in range(STEPS):
            pairs = optimizer.compute_gradients(lambda: model.loss(number, rows), variables)
            optimizer.apply_gradients([(as_dense(g) if options["sparse_as_dense"] else g, v) for g, v in pairs])
        return {v.name: v.numpy() for v in variables}

    return f"version 1 {text} {options}", train, 1e-3


def make(seed):
    choose = random.Random(seed).choice
    way = choose([with_tape, with_keras, with_keras, with_version_1])
    in_function = choose([True, False])
    what, train, tolerance = way(seed, choose, in_function)
    return f"{what} in_function={in_function}", train, tolerance


whole_batch.main(make)
