"""Measures images per second of training a network on random images.

    maypolerun -np 4 python3 examples/tensorflow2_synthetic_benchmark.py

Comments with (hvd) mark the lines that distributed training adds to a script.
"""

import argparse
import timeit

import numpy as np
import tensorflow as tf

import maypole.tensorflow as hvd


def parse_arguments():
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n", maxsplit=1)[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--fp16-allreduce", action="store_true",
                        help="send gradients as 16-bit numbers")
    parser.add_argument("--model", default="ResNet50",
                        help="a model of tf.keras.applications, or small: two "
                        "convolutions")
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--batch-size", type=int, default=32,
                        help="images per step and rank")
    parser.add_argument("--num-warmup-batches", type=int, default=10)
    parser.add_argument("--num-batches-per-iter", type=int, default=10)
    parser.add_argument("--num-iters", type=int, default=10)
    parser.add_argument("--eager", action="store_true",
                        help="no tf.function around a step")
    parser.add_argument("--no-cuda", action="store_true",
                        help="train on the CPU")
    return parser.parse_args()


def make_model(arguments):
    shape = [arguments.image_size, arguments.image_size, 3]
    if arguments.model != "small":
        return getattr(tf.keras.applications, arguments.model)(
            weights=None, input_shape=shape)
    layers = tf.keras.layers
    return tf.keras.Sequential([
        layers.Input(shape),
        layers.Conv2D(8, 3, strides=2, activation="relu"),
        layers.Conv2D(16, 3, strides=2, activation="relu"),
        layers.GlobalAveragePooling2D(),
        layers.Dense(1000, activation="softmax"),
    ])


def make_step(arguments, model, optimizer):
    # (hvd) Gradients can travel compressed.
    compression = (hvd.Compression.fp16 if arguments.fp16_allreduce
                   else hvd.Compression.none)
    shape = (arguments.batch_size, *model.input_shape[1:])
    images = tf.random.uniform(shape)
    labels = tf.random.uniform([arguments.batch_size], maxval=999,
                               dtype=tf.int64)

    def step():
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.keras.losses.sparse_categorical_crossentropy(
                labels, model(images, training=True)))
        # (hvd) The gradients are averaged over all ranks.
        tape = hvd.DistributedGradientTape(tape, compression=compression)
        variables = model.trainable_variables
        optimizer.apply_gradients(
            zip(tape.gradient(loss, variables), variables))

    return step if arguments.eager else tf.function(step)


def broadcast(model, optimizer):
    """(hvd) All ranks start with the weights and the state of rank 0."""
    hvd.broadcast_variables(model.variables, root_rank=0)
    state = optimizer.variables  # a method in Keras 2's first optimizers
    hvd.broadcast_variables(state() if callable(state) else state, root_rank=0)


def main():
    arguments = parse_arguments()
    hvd.init()  # (hvd)
    gpus = tf.config.list_physical_devices("GPU")
    if arguments.no_cuda:
        tf.config.set_visible_devices([], "GPU")
        gpus = []
    elif gpus:  # (hvd) Each rank has its own GPU, if there are enough.
        tf.config.set_visible_devices(gpus[hvd.local_rank() % len(gpus)], "GPU")
    device = "GPU" if gpus else "CPU"

    def log(text):
        if hvd.rank() == 0:  # (hvd)
            print(text, flush=True)

    model = make_model(arguments)
    optimizer = tf.keras.optimizers.SGD(0.01)
    step = make_step(arguments, model, optimizer)
    log(f"Model: {arguments.model}")
    log(f"Batch size: {arguments.batch_size}")
    log(f"Number of {device}s: {hvd.size()}")
    step()
    broadcast(model, optimizer)
    if arguments.num_warmup_batches > 1:
        timeit.timeit(step, number=arguments.num_warmup_batches - 1)
    rates = []
    for i in range(arguments.num_iters):
        seconds = timeit.timeit(step, number=arguments.num_batches_per_iter)
        rates.append(
            arguments.batch_size * arguments.num_batches_per_iter / seconds)
        log(f"Iter #{i}: {rates[-1]:.1f} img/sec per {device}")
    mean, spread = np.mean(rates), 1.96 * np.std(rates)
    log(f"Img/sec per {device}: {mean:.1f} +-{spread:.1f}")
    log(f"Total img/sec on {hvd.size()} {device}(s): "
        f"{hvd.size() * mean:.1f} +-{hvd.size() * spread:.1f}")
    hvd.shutdown()  # (hvd)


if __name__ == "__main__":
    main()
