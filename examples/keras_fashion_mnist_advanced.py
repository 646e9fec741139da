"""Trains a small CNN on Fashion-MNIST with Keras, as large jobs do it.

    maypolerun -np 8 --nodes 4 python3 examples/keras_fashion_mnist_advanced.py

What keras_fashion_mnist.py lacks: images that are augmented, a learning rate that
warms up and decays, epochs that all ranks share, the best model kept by rank 0,
and, if that file exists at the start, training that goes on from it. Comments with
(hvd) mark the lines that distributed training adds.
"""

import argparse
import os
import time

import keras
import numpy as np

import fashion_mnist_data
import maypole.keras as hvd

# Keras 3 and Keras 2.
Dataset = getattr(keras.utils, "PyDataset", None) or keras.utils.Sequence


def parse_arguments():
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n", maxsplit=1)[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--data-dir",
                        default=fashion_mnist_data.DIRECTORY,
                        help="directory with the four *-ubyte.gz files")
    parser.add_argument("--epochs", type=int, default=6,
                        help="how often all images are seen")
    parser.add_argument("--warmup-epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=32,
                        help="images per step and rank")
    parser.add_argument("--lr", type=float, default=0.01,
                        help="learning rate of one rank; the example warms up "
                        "to it times the number of ranks")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--limit", type=int, default=None,
                        help="use only the first LIMIT images of each set")
    parser.add_argument("--checkpoint", default=None, metavar="FILE",
                        help="where rank 0 keeps the best model (.keras; "
                        "Keras 2: .h5)")
    return parser.parse_args()


class Augmented(Dataset):
    """This rank's parts of batches, in another order in each epoch; each image
    is shifted by up to two pixels, and half of them are mirrored."""

    def __init__(self, images, labels, batch_size, seed):
        super().__init__()
        self.images, self.labels = images, labels
        self.batch_size, self.seed, self.epoch = batch_size, seed, -1
        self.on_epoch_end()

    def on_epoch_end(self):
        self.epoch += 1
        # (hvd) Each rank trains on its own part of each batch.
        self.batches = list(fashion_mnist_data.share(
            len(self.images), self.batch_size, self.seed + self.epoch,
            hvd.rank(), hvd.size()))

    def __len__(self):
        return len(self.batches)

    def __getitem__(self, index):
        rows = self.batches[index]
        random = np.random.RandomState([self.seed, self.epoch, rows[0]])
        images = self.images[rows]
        for i, image in enumerate(images):
            image = np.roll(image, random.randint(-2, 3, 2), (0, 1))
            images[i] = image[:, ::-1] if random.rand() < 0.5 else image
        return images, self.labels[rows]


def make_model():
    """Two convolutions with batch normalization, and two dense layers."""
    layers = keras.layers
    x = inputs = keras.Input((28, 28, 1))
    for channels in (16, 32):
        x = layers.Conv2D(channels, 3, padding="same", use_bias=False)(x)
        x = layers.BatchNormalization()(x)
        x = layers.MaxPooling2D()(layers.Activation("relu")(x))
    x = layers.Dense(64, activation="relu")(layers.Flatten()(x))
    x = layers.Dropout(0.2)(x)
    return keras.Model(inputs, layers.Dense(10, activation="softmax")(x))


def make_or_load(arguments):
    """The model, compiled."""
    # (hvd) All ranks must agree on it, whatever their file systems have.
    exists = arguments.checkpoint and os.path.exists(arguments.checkpoint)
    if hvd.broadcast(bool(exists), 0, name="exists"):
        # (hvd) Rank 0's model and optimizer are sent by the callback.
        if hvd.rank() == 0:
            return hvd.load_model(arguments.checkpoint)
    model = make_model()
    # (hvd) Gradients are averaged over all ranks.
    optimizer = hvd.DistributedOptimizer(
        keras.optimizers.SGD(arguments.lr * hvd.size(), momentum=0.9))
    model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(),
                  metrics=["accuracy"])
    return model


def make_callbacks(arguments):
    rate = arguments.lr * hvd.size()
    warm = arguments.warmup_epochs
    last = arguments.epochs - max(1, arguments.epochs // 3)
    callbacks = [
        # (hvd) All ranks start with the weights and the state of rank 0.
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        # (hvd) Before the callbacks that use metrics.
        hvd.callbacks.MetricAverageCallback(),
        # (hvd) A large learning rate from the start would diverge.
        hvd.callbacks.LearningRateWarmupCallback(rate, warm, verbose=1),
        hvd.callbacks.LearningRateScheduleCallback(rate, 1.0, warm, last),
        hvd.callbacks.LearningRateScheduleCallback(rate, lambda epoch: 0.1,
                                                   last),
    ]
    if arguments.checkpoint:
        # (hvd) It is rank 0 that writes.
        callbacks.append(
            hvd.callbacks.BestModelCheckpoint(monitor="val_accuracy",
                                              mode="max",
                                              filepath=arguments.checkpoint))
    return callbacks


def main():
    arguments = parse_arguments()
    hvd.init()  # (hvd)
    keras.utils.set_random_seed(arguments.seed + hvd.rank())

    images, labels = fashion_mnist_data.load(arguments.data_dir, "train",
                                             arguments.limit)
    data = Augmented(images, labels, arguments.batch_size, arguments.seed)
    mine = slice(hvd.rank(), None, hvd.size())  # (hvd) of the images of the test
    test_images, test_labels = fashion_mnist_data.load(
        arguments.data_dir, "t10k", arguments.limit)

    model = make_or_load(arguments)
    start = time.monotonic()
    model.fit(data, epochs=arguments.epochs,
              validation_data=(test_images[mine], test_labels[mine]),
              callbacks=make_callbacks(arguments),
              verbose=2 if hvd.rank() == 0 else 0)  # (hvd) only rank 0 prints
    seconds = time.monotonic() - start

    # (hvd) Each rank tests its share; the sum is over all of them.
    found = model.predict(test_images[mine], batch_size=500, verbose=0)
    correct = int((found.argmax(1) == test_labels[mine]).sum())
    accuracy = (hvd.allreduce(correct, name="correct", op=hvd.Sum) /
                len(test_labels))
    if hvd.rank() == 0:
        images_seen = (len(data) * arguments.batch_size * hvd.size() *
                       arguments.epochs)
        print(f"ranks: {hvd.size()}, training time: {seconds:.1f} s")
        print(f"test accuracy: {100 * accuracy:.2f} %")
        print(f"images per second: {images_seen / seconds:.0f}", flush=True)
    hvd.shutdown()  # (hvd)


if __name__ == "__main__":
    main()
