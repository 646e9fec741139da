"""Trains a small CNN on Fashion-MNIST, with one process or with many.

    maypolerun -np 4 --nodes 2 python3 examples/pytorch_fashion_mnist.py

Comments with (hvd) mark the lines that distributed training adds to a script.
"""

import argparse
import gzip
import os
import struct
import sys
import time

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

import maypole.torch as hvd


def parse_arguments():
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n", maxsplit=1)[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--data-dir",
                        default="/usr/share/datasets/fashion-mnist",
                        help="directory with the four *-ubyte.gz files")
    parser.add_argument("--synthetic", action="store_true",
                        help="train on images that are made on the spot")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=64,
                        help="images per step and rank")
    parser.add_argument("--lr", type=float, default=0.0125,
                        help="learning rate of one rank; the example uses it "
                        "times the number of ranks")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--limit", type=int, default=None,
                        help="use only the first LIMIT images of each set")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu",
                        help="where to train; with cuda, the ranks of a node "
                        "take its GPUs in turn")
    parser.add_argument("--bucket-view", action="store_true",
                        help="keep gradients in memory that the ranks of a "
                        "node share (gradient_as_bucket_view)")
    return parser.parse_args()


def read_idx(path):
    """Reads a gzipped idx file of unsigned bytes into a tensor."""
    with gzip.open(path) as file:
        zero, kind, dims = struct.unpack(">HBB", file.read(4))
        if (zero, kind) != (0, 8):
            sys.exit(f"{path} is not an idx file of unsigned bytes")
        shape = struct.unpack(f">{dims}I", file.read(4 * dims))
        return torch.frombuffer(bytearray(file.read()),
                                dtype=torch.uint8).view(shape)


def load(data_dir, part, limit):
    """Loads the normalized images [n, 1, 28, 28] and labels [n] of `part`."""
    paths = [
        os.path.join(data_dir, f"{part}-{what}-ubyte.gz")
        for what in ("images-idx3", "labels-idx1")
    ]
    for path in paths:
        if not os.path.exists(path):
            sys.exit(f"{path} is missing: apt-get install "
                     "dataset-fashion-mnist, or set its directory with "
                     "--data-dir, or use --synthetic")
    images, labels = (read_idx(path)[:limit] for path in paths)
    images = (images.float() / 255 - 0.286) / 0.353
    return TensorDataset(images.unsqueeze(1), labels.long())


def synthesize(seed, count):
    """Makes `count` images: a random pattern for each label, and noise."""
    patterns = torch.randn(10, 1, 28, 28,
                           generator=torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(10, (count,), generator=generator)
    noise = torch.randn(count, 1, 28, 28, generator=generator)
    return TensorDataset(patterns[labels] + noise, labels)


class Net(torch.nn.Module):
    """Two convolutions and two linear layers, 107,000 weights."""

    def __init__(self):
        super().__init__()
        self.conv1 = torch.nn.Conv2d(1, 16, 3, padding=1)
        self.conv2 = torch.nn.Conv2d(16, 32, 3, padding=1)
        self.fc1 = torch.nn.Linear(32 * 7 * 7, 64)
        self.fc2 = torch.nn.Linear(64, 10)

    def forward(self, x):
        x = F.relu(F.max_pool2d(self.conv1(x), 2))
        x = F.relu(F.max_pool2d(self.conv2(x), 2))
        return self.fc2(F.relu(self.fc1(x.flatten(1))))


class Progress:
    """Shows the progress of rank 0: a bar on a terminal, otherwise a line every
    five seconds.

    Under maypolerun with several ranks, standard output is a pipe even if
    maypolerun itself writes to a terminal, so the lines appear.
    """

    def __init__(self, epoch, steps):
        self.epoch, self.steps = epoch, steps
        self.shown = hvd.rank() == 0
        self.tty = sys.stdout.isatty()
        self.next = time.monotonic() + (0 if self.tty else 5)

    def update(self, step, loss):
        now = time.monotonic()
        if not self.shown or (now < self.next and step < self.steps):
            return
        self.next = now + (0.1 if self.tty else 5)
        text = f"epoch {self.epoch} step {step}/{self.steps} loss {loss:.3f}"
        if self.tty:
            bar = "#" * (30 * step // self.steps)
            end = "\n" if step == self.steps else ""
            print(f"\r[{bar:30}] {text} ", end=end, flush=True)
        else:
            print(text, flush=True)


def train(model, optimizer, loader, epoch, device):
    """Trains one epoch; returns this rank's mean loss."""
    model.train()
    progress = Progress(epoch, len(loader))
    total = 0.0
    for step, (images, labels) in enumerate(loader, start=1):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images.to(device)), labels.to(device))
        loss.backward()
        optimizer.step()
        total += loss.item()
        progress.update(step, total / step)
    return total / len(loader)


def test(model, dataset, device):
    """Returns the accuracy over the test set; each rank tests its share."""
    model.eval()
    images, labels = dataset.tensors
    share = slice(hvd.rank(), None, hvd.size())
    correct = 0
    with torch.no_grad():
        for x, y in zip(images[share].split(500), labels[share].split(500)):
            correct += (model(x.to(device)).argmax(1).cpu() == y).sum().item()
    # (hvd) The sum of all ranks' counts.
    correct = hvd.allreduce(torch.tensor(correct), name="correct", op=hvd.Sum)
    return correct.item() / len(dataset)


def main():
    arguments = parse_arguments()
    hvd.init()  # (hvd)
    if arguments.device == "cuda":
        if not torch.cuda.is_available():
            sys.exit("--device cuda: torch finds no GPU")
        # (hvd) Each rank has its own GPU, if there are enough.
        torch.cuda.set_device(hvd.local_rank() % torch.cuda.device_count())
    torch.manual_seed(arguments.seed)
    torch.set_num_threads(1)  # the ranks of a node share its cores

    if arguments.synthetic:
        dataset = synthesize(1, arguments.limit or 60000)
        test_dataset = synthesize(2, arguments.limit or 10000)
    else:
        dataset = load(arguments.data_dir, "train", arguments.limit)
        test_dataset = load(arguments.data_dir, "t10k", arguments.limit)
    # (hvd) Each rank reads its own part of the images.
    sampler = DistributedSampler(dataset, num_replicas=hvd.size(),
                                 rank=hvd.rank(), seed=arguments.seed)
    loader = DataLoader(dataset, arguments.batch_size, sampler=sampler)

    model = Net().to(arguments.device)
    # (hvd) The global batch grows with the number of ranks, and so does the
    # learning rate.
    optimizer = torch.optim.SGD(model.parameters(),
                                lr=arguments.lr * hvd.size(), momentum=0.9)
    # (hvd) Gradients are averaged over all ranks.
    optimizer = hvd.DistributedOptimizer(
        optimizer, named_parameters=model.named_parameters(),
        gradient_as_bucket_view=arguments.bucket_view)
    # (hvd) All ranks start with the weights and the state of rank 0.
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)

    hvd.barrier()
    seconds = 0.0
    for epoch in range(1, arguments.epochs + 1):
        sampler.set_epoch(epoch)
        start = time.monotonic()
        loss = train(model, optimizer, loader, epoch, arguments.device)
        # (hvd) Each rank's loss covers its own part only: average over all.
        loss = hvd.allreduce(torch.tensor(loss), name="loss").item()
        seconds += time.monotonic() - start
        accuracy = test(model, test_dataset, arguments.device)
        if hvd.rank() == 0:
            print(f"epoch {epoch}: loss {loss:.4f}, "
                  f"test accuracy {100 * accuracy:.2f} %", flush=True)
    if hvd.rank() == 0:
        images = len(sampler) * hvd.size() * arguments.epochs
        print(f"ranks: {hvd.size()}, training time: {seconds:.1f} s")
        print(f"test accuracy: {100 * accuracy:.2f} %")
        print(f"images per second: {images / seconds:.0f}", flush=True)
    hvd.shutdown()  # (hvd)


if __name__ == "__main__":
    main()
