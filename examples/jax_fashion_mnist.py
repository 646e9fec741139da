"""Trains a small CNN on Fashion-MNIST with JAX and Optax.

    maypolerun -np 4 --nodes 2 python3 examples/jax_fashion_mnist.py

Comments with (hvd) mark the lines that distributed training adds to a script.
"""

import argparse
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax

import fashion_mnist_data
import maypole.jax as hvd


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
    return parser.parse_args()


def make_params(key):
    """Two convolutions and two linear layers, 107,000 weights."""
    shapes = {
        "conv1": (3, 3, 1, 16),
        "conv2": (3, 3, 16, 32),
        "fc1": (32 * 7 * 7, 64),
        "fc2": (64, 10),
    }
    params = {}
    for name, shape in shapes.items():
        key, own = jax.random.split(key)
        bound = np.prod(shape[:-1])**-0.5
        params[name] = {
            "w": jax.random.uniform(own, shape, minval=-bound, maxval=bound),
            "b": jnp.zeros(shape[-1]),
        }
    return params


def apply(params, x):
    for name in ("conv1", "conv2"):
        x = jax.lax.conv_general_dilated(x, params[name]["w"], (1, 1), "SAME",
                                         dimension_numbers=("NHWC", "HWIO",
                                                            "NHWC"))
        x = jax.nn.relu(x + params[name]["b"])
        n, rows, columns, channels = x.shape
        x = x.reshape(n, rows // 2, 2, columns // 2, 2, channels).max((2, 4))
    x = x.reshape(x.shape[0], -1)
    x = jax.nn.relu(x @ params["fc1"]["w"] + params["fc1"]["b"])
    return x @ params["fc2"]["w"] + params["fc2"]["b"]


def loss_of(params, images, labels):
    losses = optax.softmax_cross_entropy_with_integer_labels(
        apply(params, images), labels)
    return losses.mean()


def make_step(optimizer):

    @jax.jit
    def step(params, state, images, labels):
        loss, gradients = jax.value_and_grad(loss_of)(params, images, labels)
        # (hvd) The optimizer averages the gradients over all ranks.
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, loss

    return step


def accuracy_of(params, images, labels):
    """The accuracy over the test set; each rank tests its share."""
    share = slice(hvd.rank(), None, hvd.size())
    count = jax.jit(lambda p, x, y: jnp.sum(jnp.argmax(apply(p, x), 1) == y))
    correct = count(params, images[share], labels[share])
    # (hvd) The sum of all ranks' counts.
    correct = hvd.allreduce(correct, name="correct", op=hvd.Sum)
    return int(correct) / len(labels)


def main():
    arguments = parse_arguments()
    hvd.init()  # (hvd)
    images, labels = fashion_mnist_data.load(arguments.data_dir, "train",
                                             arguments.limit)
    tests = fashion_mnist_data.load(arguments.data_dir, "t10k",
                                    arguments.limit)
    params = make_params(jax.random.PRNGKey(arguments.seed))
    # (hvd) The global batch grows with the number of ranks, and so does the
    # learning rate. The optimizer averages the gradients.
    optimizer = hvd.DistributedOptimizer(
        optax.sgd(arguments.lr * hvd.size(), momentum=0.9))
    # (hvd) All ranks start with the weights of rank 0.
    params = hvd.broadcast_parameters(params, root_rank=0)
    state = optimizer.init(params)
    step = make_step(optimizer)
    seconds, trained = 0.0, 0
    for epoch in range(1, arguments.epochs + 1):
        start = time.monotonic()
        losses = []
        for batch in fashion_mnist_data.share(
                len(labels), arguments.batch_size, arguments.seed + epoch,
                hvd.rank(), hvd.size()):
            params, state, loss = step(params, state, images[batch],
                                       labels[batch])
            losses.append(loss)
            trained += len(batch) * hvd.size()
        # (hvd) Each rank's loss covers its own part only: average over all.
        loss = hvd.allreduce(jnp.mean(jnp.stack(losses)), name="loss")
        seconds += time.monotonic() - start
        accuracy = accuracy_of(params, *tests)
        if hvd.rank() == 0:
            print(f"epoch {epoch}: loss {float(loss):.6f}, "
                  f"test accuracy {100 * accuracy:.2f} %", flush=True)
    if hvd.rank() == 0:
        print(f"ranks: {hvd.size()}, training time: {seconds:.1f} s")
        print(f"test accuracy: {100 * accuracy:.2f} %")
        print(f"images per second: {trained / seconds:.0f}", flush=True)
    hvd.shutdown()  # (hvd)


if __name__ == "__main__":
    main()
