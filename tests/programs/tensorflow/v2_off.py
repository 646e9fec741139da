"""A TensorFlow 1 script: tf.disable_v2_behavior() makes variables references and conditions switches."""

import numpy as np
import tensorflow.compat.v1 as tf

import maypole.tensorflow as hvd
import rank


def main():
    tf.disable_v2_behavior()
    hvd.init()
    w = tf.get_variable("w", initializer=np.ones(2, np.float32) * (hvd.rank() + 1))
    table = tf.get_variable("table", initializer=np.ones([3, 1], np.float32))
    assert type(w).__name__ == "RefVariable", w
    loss = tf.reduce_sum(w) * (hvd.rank() + 1.0) + tf.reduce_sum(tf.gather(table, [hvd.rank()]))
    step = tf.train.get_or_create_global_step()
    optimizer = hvd.DistributedOptimizer(tf.train.MomentumOptimizer(1.0, 0.0), backward_passes_per_step=2,
                                         sparse_as_dense=True)
    train_op = optimizer.minimize(loss, global_step=step)
    steps = []
    with tf.train.MonitoredTrainingSession(hooks=[hvd.BroadcastGlobalVariablesHook(0)]) as session:
        for _ in range(4):
            session.run(train_op)
            steps.append([float(session.run(w)[0]), session.run(table)[:, 0].tolist(), int(session.run(step))])
    rank.record(steps=steps)
    hvd.shutdown()


main()
