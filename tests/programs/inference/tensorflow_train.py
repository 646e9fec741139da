"""As torch_train.py, with a tf.Module: a SavedModel and a checkpoint."""

import os

import maypole.tensorflow as hvd
import numpy as np
import rank
import tensorflow as tf

import tensorflow_model

hvd.init()
tf.random.set_seed(hvd.rank() + 1)
model = tensorflow_model.Model()
optimizer = tf.keras.optimizers.SGD(0.1)


@tf.function
def step(x, y):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((model(x) - y) ** 2)
    tape = hvd.DistributedGradientTape(tape)
    optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
    return loss


hvd.broadcast_variables(model.variables, root_rank=0)
losses = []
for _ in range(20):
    x = tf.random.normal([8, 4])
    losses.append(float(step(x, tf.reduce_sum(x, 1, keepdims=True))))

if hvd.rank() == 0:
    x = tf.random.normal([16, 4])
    np.savez(os.path.join(rank.DIR, "predicted.npz"), x=x.numpy(), y=model(x).numpy())
    tf.saved_model.save(model, os.path.join(rank.DIR, "saved"))
    tf.train.Checkpoint(model=model).write(os.path.join(rank.DIR, "checkpoint"))
    # A function with a collective becomes a part of what is saved.
    model.mean = tf.function(lambda x: hvd.allreduce(model(x), name="mean"), [tf.TensorSpec([8, 4])])
    tf.saved_model.save(model, os.path.join(rank.DIR, "with_allreduce"))
rank.record(losses=losses)
hvd.shutdown()
