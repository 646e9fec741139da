"""Trains a small CNN on Fashion-MNIST with MXNet's Gluon, with one process or with many.

    maypolerun -np 4 --nodes 2 python3 examples/mxnet_fashion_mnist.py

Comments with (hvd) mark the lines that distributed training adds to a script.
"""

import argparse
import time

import mxnet as mx
from mxnet import autograd, gluon

import fashion_mnist_data as data
import maypole.mxnet as hvd


def parse_arguments():
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n", maxsplit=1)[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--data-dir",
                        default=data.DIRECTORY,
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


def network():
    """Two convolutions and two dense layers. Gluon learns the shapes of the
    weights from the first images (deferred initialization)."""
    net = gluon.nn.HybridSequential()
    net.add(gluon.nn.Conv2D(16, 3, padding=1, activation="relu"),
            gluon.nn.MaxPool2D(),
            gluon.nn.Conv2D(32, 3, padding=1, activation="relu"),
            gluon.nn.MaxPool2D(), gluon.nn.Flatten(),
            gluon.nn.Dense(64, activation="relu"), gluon.nn.Dense(10))
    net.hybridize()
    return net


def train(net, trainer, images, labels, batches):
    """Trains one epoch; returns this rank's mean loss."""
    loss_of = gluon.loss.SoftmaxCrossEntropyLoss()
    total = count = 0
    for part in batches:
        with autograd.record():
            loss = loss_of(net(images[part]), labels[part])
        loss.backward()
        trainer.step(len(part))
        total += loss.sum().asscalar()
        count += len(part)
    return total / count


def test(net, images, labels):
    """Returns the accuracy over the test set; each rank tests its share."""
    correct = 0
    for start in range(500 * hvd.rank(), len(images), 500 * hvd.size()):
        part = slice(start, start + 500)
        guessed = net(images[part]).argmax(axis=1)
        correct += (guessed == labels[part]).sum().asscalar()
    # (hvd) The sum of all ranks' counts.
    correct = hvd.allreduce(mx.nd.array([correct]), name="correct", op=hvd.Sum)
    return correct.asscalar() / len(images)


def load(data_dir, part, limit):
    """Images [n, 1, 28, 28] and labels [n] as MXNet's arrays."""
    images, labels = data.load(data_dir, part, limit)
    return (mx.nd.array(images.transpose(0, 3, 1, 2)),
            mx.nd.array(labels, dtype="float32"))


def main():
    arguments = parse_arguments()
    hvd.init()  # (hvd)
    mx.random.seed(arguments.seed + hvd.rank())
    images, labels = load(arguments.data_dir, "train", arguments.limit)
    test_set = load(arguments.data_dir, "t10k", arguments.limit)

    net = network()
    net.initialize(mx.init.Xavier())
    # (hvd) All ranks start with the weights of rank 0.
    hvd.broadcast_parameters(net.collect_params(), root_rank=0)
    # (hvd) Gradients are averaged over all ranks. The global batch grows with
    # the number of ranks, and so does the learning rate.
    trainer = hvd.DistributedTrainer(
        net.collect_params(), "sgd",
        {"learning_rate": arguments.lr * hvd.size(), "momentum": 0.9})

    seconds = 0.0
    for epoch in range(1, arguments.epochs + 1):
        start = time.monotonic()
        # (hvd) Each rank takes its own part of each batch.
        batches = data.share(len(images), arguments.batch_size,
                             arguments.seed + epoch, hvd.rank(), hvd.size())
        loss = train(net, trainer, images, labels, batches)
        # (hvd) Each rank's loss covers its own part only: average over all.
        loss = hvd.allreduce(mx.nd.array([loss]), name="loss").asscalar()
        seconds += time.monotonic() - start
        accuracy = test(net, *test_set)
        if hvd.rank() == 0:
            print(f"epoch {epoch}: loss {loss:.4f}, "
                  f"test accuracy {100 * accuracy:.2f} %", flush=True)
    if hvd.rank() == 0:
        print(f"ranks: {hvd.size()}, training time: {seconds:.1f} s")
        print(f"test accuracy: {100 * accuracy:.2f} %", flush=True)
    hvd.shutdown()  # (hvd)


if __name__ == "__main__":
    main()
