"""Trains a small CNN on Fashion-MNIST as scripts for TensorFlow 1 do: a graph,
a MonitoredTrainingSession, and the hook that broadcasts the variables.

    maypolerun -np 4 --nodes 2 python3 examples/tensorflow1_fashion_mnist.py

Comments with (hvd) mark the lines that distributed training adds to a script.
"""

import argparse
import time

import numpy as np
import tensorflow.compat.v1 as tf

import fashion_mnist_data
import maypole.tensorflow as hvd


def parse_arguments():
    parser = argparse.ArgumentParser(
        description="Trains on Fashion-MNIST as TensorFlow 1 does.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--data-dir", default=fashion_mnist_data.DIRECTORY,
                        help="directory with the four *-ubyte.gz files")
    parser.add_argument("--steps", type=int, default=2000,
                        help="steps of one rank; N ranks make 1/N of them")
    parser.add_argument("--batch-size", type=int, default=64,
                        help="images per step and rank")
    parser.add_argument("--lr", type=float, default=0.0125,
                        help="learning rate of one rank; the example uses it "
                        "times the number of ranks")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--limit", type=int, default=None,
                        help="use only the first LIMIT images of each set")
    parser.add_argument("--checkpoint-dir", default=None,
                        help="where rank 0 saves checkpoints, and goes on")
    return parser.parse_args()


def weights(name, shape):
    scale = np.sqrt(6.0 / np.prod(shape[:-1]))
    return tf.get_variable(
        name, shape, initializer=tf.random_uniform_initializer(-scale, scale))


def network(images):
    """Two convolutions and two linear layers; returns logits [n, 10]."""
    x = images
    for i, (inputs, outputs) in enumerate(((1, 16), (16, 32))):
        x = tf.nn.conv2d(x, weights(f"conv{i}", [3, 3, inputs, outputs]),
                         strides=1, padding="SAME")
        x = tf.nn.relu(tf.nn.max_pool2d(x, 2, 2, "VALID"))
    x = tf.reshape(x, [-1, 7 * 7 * 32])
    x = tf.nn.relu(x @ weights("linear0", [7 * 7 * 32, 64]))
    return x @ weights("linear1", [64, 10])


def feeds(arguments, data, placeholders):
    """This rank's batches, epoch after epoch, without an end."""
    epoch = 0
    while True:
        epoch += 1
        for batch in fashion_mnist_data.share(
                len(data[1]), arguments.batch_size, arguments.seed + epoch,
                hvd.rank(), hvd.size()):
            yield dict(zip(placeholders, (part[batch] for part in data)))


def main():
    tf.disable_eager_execution()
    arguments = parse_arguments()
    hvd.init()  # (hvd)
    train = fashion_mnist_data.load(arguments.data_dir, "train",
                                    arguments.limit)
    tests = fashion_mnist_data.load(arguments.data_dir, "t10k",
                                    arguments.limit)
    tf.set_random_seed(arguments.seed)
    images = tf.placeholder(tf.float32, [None, 28, 28, 1])
    labels = tf.placeholder(tf.int64, [None])
    logits = network(images)
    loss = tf.losses.sparse_softmax_cross_entropy(labels, logits)
    correct = tf.reduce_sum(
        tf.cast(tf.equal(tf.argmax(logits, 1), labels), tf.int32))
    # (hvd) The sum of all ranks' counts, and the mean of their losses.
    all_correct = hvd.allreduce(correct, name="correct", op=hvd.Sum)
    last_loss = tf.placeholder(tf.float32, [])
    mean_loss = hvd.allreduce(last_loss, name="loss")

    # (hvd) The global batch grows with the number of ranks, and so does the
    # learning rate.
    optimizer = tf.train.MomentumOptimizer(arguments.lr * hvd.size(), 0.9)
    # (hvd) Gradients are averaged over all ranks.
    optimizer = hvd.DistributedOptimizer(optimizer)
    global_step = tf.train.get_or_create_global_step()
    train_op = optimizer.minimize(loss, global_step=global_step)

    steps = arguments.steps // hvd.size()
    # (hvd) All ranks start with the variables of rank 0, also those of its
    # checkpoint.
    hooks = [hvd.BroadcastGlobalVariablesHook(0)]
    # (hvd) Only rank 0 saves checkpoints.
    checkpoint_dir = arguments.checkpoint_dir if hvd.rank() == 0 else None
    batches = feeds(arguments, train, (images, labels))
    with tf.train.MonitoredTrainingSession(
            checkpoint_dir=checkpoint_dir, hooks=hooks) as session:
        # Not 0 after a checkpoint.
        before = step = session.run_step_fn(
            lambda step_context: step_context.session.run(global_step))
        start = time.monotonic()
        value = 0.0
        while step < steps:
            value, _, step = session.run([loss, train_op, global_step],
                                         next(batches))
        seconds = time.monotonic() - start
        share = slice(hvd.rank(), None, hvd.size())
        found, value = session.run(
            [all_correct, mean_loss],
            {images: tests[0][share], labels: tests[1][share],
             last_loss: value})
    if hvd.rank() == 0:
        trained = (step - before) * arguments.batch_size * hvd.size()
        print(f"step {step}: loss {value:.7g}")
        print(f"ranks: {hvd.size()}, training time: {seconds:.1f} s")
        print(f"test accuracy: {100 * found / len(tests[1]):.2f} %")
        print(f"images per second: {trained / seconds:.0f}", flush=True)
    hvd.shutdown()  # (hvd)


if __name__ == "__main__":
    main()
