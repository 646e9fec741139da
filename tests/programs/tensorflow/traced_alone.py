"""Rank 0 traces a step again, alone; for tensorflow_training_test.py. Each rank prints the error with which it ends.

The step's Python argument has changed, and rank 1 has no gradient of a variable, so rank 0 asks the others for theirs.
"""

import tensorflow as tf

import maypole.tensorflow as hvd

hvd.init()
a, b = tf.Variable([1.0, 2.0], name="first"), tf.Variable([[3.0]], name="second")


@tf.function
def train_step(x, kind):
    with tf.GradientTape() as tape:
        loss = kind * tf.reduce_sum(a) * tf.reduce_mean(x)
        if hvd.rank() == 0:
            loss += tf.reduce_sum(b)
    return hvd.DistributedGradientTape(tape).gradient(loss, [a, b])


for kind in (1, 1, 2 if hvd.rank() == 0 else 1):  # in the second step the ranks compare their weights
    try:
        train_step(tf.ones([4]), kind)
    except Exception as error:
        print("ended:", type(error).__name__, " ".join(str(error).split()), flush=True)
        raise SystemExit(3)
    print("stepped", flush=True)
