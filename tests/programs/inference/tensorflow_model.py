"""The model of tensorflow_train.py and tensorflow_load.py."""

import tensorflow as tf


class Model(tf.Module):
    def __init__(self):
        super().__init__()
        self.w = tf.Variable(tf.random.normal([4, 1]))
        self.b = tf.Variable(tf.zeros([1]))

    @tf.function(input_signature=[tf.TensorSpec([None, 4])])
    def __call__(self, x):
        return x @ self.w + self.b
