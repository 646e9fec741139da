"""Trains a small CNN on Fashion-MNIST with TensorFlow 2, in a loop of its own.

    maypolerun -np 4 --nodes 2 python3 examples/tensorflow2_fashion_mnist.py

Comments with (hvd) mark the lines that distributed training adds to a script.
"""

import argparse
import os
import time

import numpy as np
import tensorflow as tf

import fashion_mnist_data
import maypole.tensorflow as hvd


def parse_arguments():
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n", maxsplit=1)[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--data-dir", default=fashion_mnist_data.DIRECTORY,
                        help="directory with the four *-ubyte.gz files")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=64,
                        help="images per step and rank")
    parser.add_argument("--lr", type=float, default=0.0125,
                        help="learning rate of one rank; the example uses it "
                        "times the number of ranks")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--limit", type=int, default=None,
                        help="use only the first LIMIT images of each set")
    parser.add_argument("--checkpoint-dir", default=None,
                        help="where rank 0 saves the weights")
    return parser.parse_args()


def make_model():
    layers = tf.keras.layers
    return tf.keras.Sequential([
        layers.Input([28, 28, 1]),
        layers.Conv2D(16, 3, padding="same", activation="relu"),
        layers.MaxPooling2D(),
        layers.Conv2D(32, 3, padding="same", activation="relu"),
        layers.MaxPooling2D(),
        layers.Flatten(),
        layers.Dense(64, activation="relu"),
        layers.Dense(10),
    ])


def make_step(model, optimizer):
    loss_of = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    @tf.function
    def step(images, labels):
        with tf.GradientTape() as tape:
            loss = loss_of(labels, model(images, training=True))
        # (hvd) The gradients are averaged over all ranks.
        tape = hvd.DistributedGradientTape(tape)
        variables = model.trainable_variables
        optimizer.apply_gradients(
            zip(tape.gradient(loss, variables), variables))
        return loss

    return step


def broadcast(model, optimizer):
    """(hvd) All ranks start with the weights and the state of rank 0."""
    hvd.broadcast_variables(model.variables, root_rank=0)
    state = optimizer.variables  # a method in Keras 2's first optimizers
    hvd.broadcast_variables(state() if callable(state) else state, root_rank=0)


def accuracy_of(model, images, labels):
    """The accuracy over the test set; each rank tests its share."""
    share = slice(hvd.rank(), None, hvd.size())
    correct = sum(
        int(np.sum(np.argmax(model(x, training=False), 1) == y))
        for x, y in zip(np.array_split(images[share], 20),
                        np.array_split(labels[share], 20)) if len(y))
    # (hvd) The sum of all ranks' counts.
    correct = hvd.allreduce(tf.constant(correct), name="correct", op=hvd.Sum)
    return int(correct) / len(labels)


def main():
    arguments = parse_arguments()
    hvd.init()  # (hvd)
    gpus = tf.config.list_physical_devices("GPU")
    if gpus:  # (hvd) Each rank has its own GPU, if there are enough.
        tf.config.set_visible_devices(gpus[hvd.local_rank() % len(gpus)], "GPU")
    tf.keras.utils.set_random_seed(arguments.seed)
    images, labels = fashion_mnist_data.load(arguments.data_dir, "train",
                                             arguments.limit)
    tests = fashion_mnist_data.load(arguments.data_dir, "t10k",
                                    arguments.limit)
    model = make_model()
    # (hvd) The global batch grows with the number of ranks, and so does the
    # learning rate.
    optimizer = tf.keras.optimizers.SGD(arguments.lr * hvd.size(), momentum=0.9)
    step = make_step(model, optimizer)
    seconds, trained = 0.0, 0
    for epoch in range(1, arguments.epochs + 1):
        start = time.monotonic()
        losses = []
        for batch in fashion_mnist_data.share(
                len(labels), arguments.batch_size, arguments.seed + epoch,
                hvd.rank(), hvd.size()):
            losses.append(step(images[batch], labels[batch]))
            trained += len(batch) * hvd.size()
            # (hvd) After the first step, because it makes the optimizer's state.
            if epoch == 1 and len(losses) == 1:
                broadcast(model, optimizer)
        # (hvd) Each rank's loss covers its own part only: average over all.
        loss = hvd.allreduce(tf.reduce_mean(losses), name="loss")
        seconds += time.monotonic() - start
        accuracy = accuracy_of(model, *tests)
        if hvd.rank() == 0:
            print(f"epoch {epoch}: loss {float(loss):.7g}, "
                  f"test accuracy {100 * accuracy:.2f} %", flush=True)
    if hvd.rank() == 0:
        print(f"ranks: {hvd.size()}, training time: {seconds:.1f} s")
        print(f"test accuracy: {100 * accuracy:.2f} %")
        print(f"images per second: {trained / seconds:.0f}", flush=True)
        if arguments.checkpoint_dir:  # (hvd) Only on rank 0.
            os.makedirs(arguments.checkpoint_dir, exist_ok=True)
            model.save_weights(
                os.path.join(arguments.checkpoint_dir, "model.weights.h5"))
    hvd.shutdown()  # (hvd)


if __name__ == "__main__":
    main()
