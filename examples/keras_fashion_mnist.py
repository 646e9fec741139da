"""Trains a small CNN on Fashion-MNIST with Keras, with one process or with many.

    maypolerun -np 4 --nodes 2 python3 examples/keras_fashion_mnist.py

Runs with Keras 3 on any of its backends (KERAS_BACKEND=tensorflow, jax or torch)
and with Keras 2. Comments with (hvd) mark the lines that distributed training
adds to a script. keras_fashion_mnist_advanced.py shows more.
"""

import argparse
import time

import keras
import numpy as np

import fashion_mnist_data
import maypole.keras as hvd


def parse_arguments():
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n", maxsplit=1)[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--data-dir",
                        default=fashion_mnist_data.DIRECTORY,
                        help="directory with the four *-ubyte.gz files")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=64,
                        help="images per step and rank")
    parser.add_argument("--lr", type=float, default=0.0005,
                        help="learning rate of one rank; the example uses it "
                        "times the number of ranks")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--limit", type=int, default=None,
                        help="use only the first LIMIT images of each set")
    parser.add_argument("--save", default=None, metavar="FILE",
                        help="where to save the model (.keras; Keras 2: .h5)")
    return parser.parse_args()


def make_model():
    """Two convolutions and two dense layers, 107,000 weights."""
    layers = keras.layers
    inputs = keras.Input((28, 28, 1))
    x = layers.Conv2D(16, 3, padding="same", activation="relu")(inputs)
    x = layers.MaxPooling2D()(x)
    x = layers.Conv2D(32, 3, padding="same", activation="relu")(x)
    x = layers.MaxPooling2D()(x)
    x = layers.Dense(64, activation="relu")(layers.Flatten()(x))
    return keras.Model(inputs, layers.Dense(10, activation="softmax")(x))


def main():
    arguments = parse_arguments()
    hvd.init()  # (hvd)
    keras.utils.set_random_seed(arguments.seed + hvd.rank())

    images, labels = fashion_mnist_data.load(arguments.data_dir, "train",
                                             arguments.limit)
    # (hvd) Each rank trains on its own part of each batch.
    mine = np.concatenate(list(fashion_mnist_data.share(
        len(images), arguments.batch_size, arguments.seed, hvd.rank(),
        hvd.size())))

    model = make_model()
    # (hvd) The global batch grows with the number of ranks, and so does the
    # learning rate. Gradients are averaged over all ranks.
    optimizer = hvd.DistributedOptimizer(
        keras.optimizers.Adam(arguments.lr * hvd.size()))
    model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(),
                  metrics=["accuracy"])

    callbacks = [
        # (hvd) All ranks start with the weights and the state of rank 0.
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        # (hvd) The metrics that rank 0 prints are those of all ranks.
        hvd.callbacks.MetricAverageCallback(),
    ]
    start = time.monotonic()
    model.fit(images[mine], labels[mine], shuffle=False,
              batch_size=arguments.batch_size, epochs=arguments.epochs,
              callbacks=callbacks,
              verbose=2 if hvd.rank() == 0 else 0)  # (hvd) only rank 0 prints
    seconds = time.monotonic() - start

    # (hvd) Each rank tests its share; the average is over all of them.
    test_images, test_labels = fashion_mnist_data.load(
        arguments.data_dir, "t10k", arguments.limit)
    part = slice(hvd.rank(), None, hvd.size())
    found = model.predict(test_images[part], batch_size=500, verbose=0)
    correct = int((found.argmax(1) == test_labels[part]).sum())
    accuracy = (hvd.allreduce(correct, name="correct", op=hvd.Sum) /
                len(test_labels))
    if hvd.rank() == 0:  # (hvd) only rank 0 saves; the file needs no Maypole
        if arguments.save:
            model.save(arguments.save)
        images_seen = len(mine) * hvd.size() * arguments.epochs
        print(f"ranks: {hvd.size()}, training time: {seconds:.1f} s")
        print(f"test accuracy: {100 * accuracy:.2f} %")
        print(f"images per second: {images_seen / seconds:.0f}", flush=True)
    hvd.shutdown()  # (hvd)


if __name__ == "__main__":
    main()
